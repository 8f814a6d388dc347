"""The timelines of recoveries: when each phase ended, on the host's monotonic clock."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kintsugi.core.logs import get_logger
from kintsugi.core.plan import Plan
from kintsugi.core.resiliency import RecoveryEvent


@dataclass(slots=True, kw_only=True)
class RecoveryTimeline:
    """From a failure, or a worker's coming or leaving, to training again. Times are instants in seconds; null until they come."""

    lost: list[str] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)
    """Workers that came to take part."""
    layers: list[int] = field(default_factory=list)
    """Of which replicas differed, and nobody could tell which of them was right: all went back to a checkpoint."""
    left: list[str] = field(default_factory=list)
    """Workers that were asked to leave and handed their state over."""
    generation: int = -1
    """Of the plan that ended the recovery."""
    policy: str = ""
    failed_at: float | None = None
    """When the worker was struck, where that is known."""
    detected_at: float
    planned_at: float | None = None
    quiesced_at: float | None = None
    regrouped_at: float | None = None
    transferred_at: float | None = None
    resumed_at: float | None = None
    """The last survivor begins its first step."""
    committed_at: float | None = None
    """The first step is committed."""

    @property
    def began_at(self) -> float:
        """The failure, or its detection where the failure's instant is unknown."""
        return self.failed_at if self.failed_at is not None else self.detected_at

    def phase_seconds(self) -> dict[str, float]:
        """Seconds from the failure to the end of each phase that came to its end.

        `detected`: the agent knows of it; `planned`: the plan is there; `quiesced`: all survivors have stopped;
        `regrouped`: the next generation's groups are built; `transferred`: every layer is where the plan wants it; `resumed`: all
        train again; `first_step`: a step is committed.
        """
        instants = {
            "detected": self.detected_at,
            "planned": self.planned_at,
            "quiesced": self.quiesced_at,
            "regrouped": self.regrouped_at,
            "transferred": self.transferred_at,
            "resumed": self.resumed_at,
            "first_step": self.committed_at,
        }
        return self._since(instants)

    def event_seconds(self) -> dict[str, float]:
        """Seconds from the failure to each event, under the names of NVIDIA's resiliency extension.

        The rendezvous is the building of the next generation's groups; a worker has started once it trains again.
        """
        instants = {
            RecoveryEvent.FAILURE_DETECTED.value: self.detected_at if self.lost else None,
            RecoveryEvent.RENDEZVOUS_STARTED.value: self.quiesced_at,
            RecoveryEvent.RENDEZVOUS_COMPLETED.value: self.regrouped_at,
            RecoveryEvent.WORKER_START_STARTED.value: self.transferred_at,
            RecoveryEvent.WORKER_START_COMPLETED.value: self.resumed_at,
        }
        return self._since(instants)

    def _since(self, instants: Mapping[str, float | None]) -> dict[str, float]:
        return {name: max(instant - self.began_at, 0.0) for name, instant in instants.items() if instant is not None}


class Recoveries:
    """All recoveries of a run, in order; at most one is under way."""

    def __init__(self) -> None:
        self.all: list[RecoveryTimeline] = []
        self._under_way: RecoveryTimeline | None = None

    def lost(self, worker: str, struck_at: float | None, now: float) -> None:
        """A loss begins a recovery, or belongs to the one under way; what else is under way begins anew with it."""
        timeline = self._of_losses(now)
        timeline.lost.append(worker)
        timeline.failed_at = timeline.failed_at or struck_at

    def changed(self, joined: Sequence[str], left: Sequence[str], now: float, planned_at: float | None) -> None:
        """The job leaves its step for workers that came, or that were asked to leave."""
        self._begin(RecoveryTimeline(detected_at=now, joined=list(joined), left=list(left), planned_at=planned_at))

    def differed(self, layers: Sequence[int], now: float) -> None:
        """The job leaves its step, and goes back, for replicas that are not; in a recovery from losses that belongs to it."""
        timeline = self._of_losses(now)
        timeline.layers, timeline.planned_at = list(layers), timeline.planned_at or now

    def _of_losses(self, now: float) -> RecoveryTimeline:
        """The recovery from losses under way; else one that begins now, also with what one of another kind was for."""
        before = self._under_way
        if before is None:
            return self._begin(RecoveryTimeline(detected_at=now))
        if before.lost:
            return before
        return self._begin(RecoveryTimeline(detected_at=now, joined=before.joined, left=before.left, layers=before.layers))

    def _begin(self, timeline: RecoveryTimeline) -> RecoveryTimeline:
        if self._under_way is not None:
            self.all.remove(self._under_way)
        self._under_way = timeline
        self.all.append(timeline)
        return timeline

    def note(self, **values: float | str | None) -> None:
        """Write into the timeline of the recovery under way; what is null stays as it was."""
        if self._under_way is not None:
            for name, value in values.items():
                if value is not None:
                    setattr(self._under_way, name, value)

    def end(self, plan: Plan) -> None:
        """The job trains again, by `plan`: the recovery under way, if one is, is over with that, and told."""
        over, self._under_way = self._under_way, None
        if over is None:
            return
        told = {"lost": over.lost, "joined": over.joined, "left": over.left}
        get_logger("kintsugi.runtime").info(
            "training goes on",
            policy=plan.policy.value,
            workers=len(plan.workers),
            seconds=round((over.resumed_at or time.monotonic()) - over.began_at, 3),
            **{name: workers for name, workers in told.items() if workers},
        )

    def committed(self, at: float) -> RecoveryTimeline | None:
        """A step is committed: the recovery whose first step it is."""
        if not self.all or self.all[-1].committed_at is not None:
            return None
        self.all[-1].committed_at = at
        return self.all[-1]
