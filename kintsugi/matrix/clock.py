"""Where the wall-clock time of a cell went (ECRL, equation 7), from its events and from what each checkpoint cost.

Every stretch between two events belongs to one part: a step that holds, a step that is lost or trained again, or the way from a
failure back to training. The stall of a checkpoint lies between two steps and is taken off the second one's stretch; what the
end of the job waits for lies after the last step.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kintsugi.matrix.events import Event, Kind
from kintsugi.matrix.record import WallTime
from kintsugi.runtime.checkpoints.advice import CheckpointRecord
from kintsugi.runtime.checkpoints.recording import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """What the events of a cell tell."""

    wall: WallTime
    recovery_seconds: tuple[float, ...]
    """From every failure to training again."""
    trained_steps: int
    """Also those that were trained again."""
    world_sizes: tuple[int, ...]
    """Workers that trained, after every change."""


@dataclass(slots=True)
class _Clock:
    """Follows the events."""

    stalls: dict[int, list[CheckpointRecord]]
    """What checkpoints cost, by the step that came after each, in the order in which they were written."""
    began_at: float | None = None
    start: float = 0.0
    compute: float = 0.0
    snapshot: float = 0.0
    write: float = 0.0
    sync: float = 0.0
    restart: float = 0.0
    repeated: float = 0.0
    recoveries: list[float] = field(default_factory=list)
    world_sizes: list[int] = field(default_factory=list)
    trained_steps: int = 0
    _highest: int = -1
    """Step that was committed."""
    _since: float = 0.0
    """End of the stretch before."""
    _failed_at: float | None = None
    """Training stands still since then; null where it does not."""
    _is_failure: bool = False

    def take(self, event: Event) -> None:
        """The next event."""
        if event.kind is Kind.TRAINING:
            self._resume(event)
        elif event.kind is Kind.STEP:
            self._step(event)
        elif event.kind in (Kind.STRUCK, Kind.INTERRUPTED):
            self._stop(event)
        elif event.kind is Kind.TRAINED:
            self._end(event)

    def _resume(self, event: Event) -> None:
        if self._failed_at is not None:
            seconds = event.at - self._failed_at
            self.restart += seconds
            if self._is_failure:
                self.recoveries.append(seconds)
        elif self.began_at is not None and not self.world_sizes:
            self.start = event.at - self.began_at
        self._failed_at, self._since = None, event.at
        if event.workers is not None and self.world_sizes[-1:] != [event.workers]:
            self.world_sizes.append(event.workers)

    def _step(self, event: Event) -> None:
        """A step is committed. One that is told of after training stopped took its time before that."""
        assert event.step is not None
        stretch = event.at - self._since if self._failed_at is None else 0.0
        own = max(stretch - self._stall_before(event.step, stretch), 0.0)
        self.trained_steps += 1
        if event.step > self._highest:
            self.compute += own
            self._highest = event.step
        else:
            self.repeated += own
        self._since = max(self._since, event.at)

    def _stop(self, event: Event) -> None:
        """Training stops; what was done of the step is lost. A second loss belongs to the stop that it falls into."""
        if self._failed_at is None:
            self.repeated += max(event.at - self._since, 0.0)
            self._since = self._failed_at = max(event.at, self._since)
            self._is_failure = False
        self._is_failure |= event.kind is Kind.STRUCK or bool(event.lost)

    def _stall_before(self, step: int, at_most: float) -> float:
        """Seconds that training stood still before a step, for a checkpoint of the state before it."""
        if not self.stalls.get(step):
            return 0.0
        return self._note_stall(self.stalls[step].pop(0), at_most)

    def _note_stall(self, record: CheckpointRecord, at_most: float) -> float:
        stall = min(record.stall_seconds, at_most)
        snapshot = min(record.snapshot_seconds, stall)
        write = min(record.write_seconds, stall - snapshot) if record.strategy == Strategy.BLOCKING.value else 0.0
        self.snapshot += snapshot
        self.write += write
        self.sync += stall - snapshot - write
        return stall

    def _end(self, event: Event) -> None:
        """All that the job still waited for after its last step is the write of its last checkpoint, but for the copy."""
        waited = event.at - self._since if self._failed_at is None else 0.0
        last = self.stalls.get(self._highest + 1)
        snapshot = min(last.pop(0).snapshot_seconds, waited) if last else 0.0
        self.snapshot += snapshot
        self.write += waited - snapshot
        self._since = event.at


def step_seconds(events: Iterable[Event]) -> dict[int, float]:
    """What every step took from the end of the one before it, stalls for checkpoints included; of repeats, the last.

    Steps in which training began or stopped are left out.
    """
    found: dict[int, float] = {}
    since: float | None = None
    for event in events:
        if event.kind is Kind.STEP:
            assert event.step is not None
            if since is not None:
                found[event.step] = event.at - since
            else:
                found.pop(event.step, None)
        since = event.at if event.kind is Kind.STEP else None
    return found


def accounts(
    events: Iterable[Event], checkpoints: Sequence[CheckpointRecord], total_seconds: float, *, began_at: float | None = None
) -> Accounts:
    """Split the wall-clock time of a cell.

    Args:
        events: of all its lives, in order.
        checkpoints: what each cost, in order.
        total_seconds: from the start of its first process to the end of its last.
        began_at: when the first process was started, on the clock of the events; where it is not known, no part holds the start.
    """
    stalls: dict[int, list[CheckpointRecord]] = defaultdict(list)
    for record in checkpoints:
        stalls[record.step].append(record)
    clock = _Clock(stalls, began_at)
    for event in events:
        clock.take(event)
    wall = WallTime(
        total_seconds=total_seconds,
        compute_seconds=clock.compute,
        snapshot_seconds=clock.snapshot,
        write_seconds=clock.write,
        sync_seconds=clock.sync,
        restart_seconds=clock.restart,
        repeated_seconds=clock.repeated,
        start_seconds=clock.start,
    )
    return Accounts(
        wall=wall,
        recovery_seconds=tuple(clock.recoveries),
        trained_steps=clock.trained_steps,
        world_sizes=tuple(clock.world_sizes),
    )
