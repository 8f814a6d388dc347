"""Kintsugi's own planner as a policy: free to choose, or held to one kind of answer."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock

from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges, Snapshot
from kintsugi.core.plan import Plan, Policy, Schedule
from kintsugi.simulator.job import Job
from kintsugi.simulator.running import Response, Running, StepPrice
from kintsugi.simulator.transitions import restart_pause_seconds
from planner.replan import replan

MOST_REMEMBERED = 200_000
"""Workers in all plans that a process remembers the planner's decisions with."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What a simulated job takes from a decision."""

    policy: Policy
    plan: Plan
    price: StepPrice
    reconfiguration_seconds: float


@dataclass
class Memory:
    """Decisions by their snapshots. `replan` is a pure function of these, so what it said once holds for everybody who asks.

    A pinned policy restricts the choice alone: each policy's best plan does not depend on it. So where a free choice fell on
    the very policy that is pinned, it answers both questions.
    """

    known: dict[Snapshot, Decided] = field(default_factory=dict)
    num_workers: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def decided(self, snapshot: Snapshot) -> Decided:
        """The planner's decision; several threads may ask at once.

        Raises:
            InfeasibleError: there is none.
        """
        unpinned = replace(snapshot, settings=replace(snapshot.settings, policy=None))
        with self._lock:
            free, own = self.known.get(unpinned), self.known.get(snapshot)
        if free is not None and snapshot.settings.policy in (None, free.policy):
            return free
        if own is None:
            own = _decided(snapshot)
            self._keep(snapshot, own)
        return own

    def _keep(self, snapshot: Snapshot, decided: Decided) -> None:
        with self._lock:
            if snapshot in self.known:  # another thread was faster
                return
            self.known[snapshot] = decided
            self.num_workers += len(snapshot.alive)
            while self.num_workers > MOST_REMEMBERED and len(self.known) > 1:
                oldest = next(iter(self.known))
                del self.known[oldest]
                self.num_workers -= len(oldest.alive)


def _decided(snapshot: Snapshot) -> Decided:
    decision = replan(snapshot)
    price = decision.estimate
    return Decided(decision.policy, decision.plan, StepPrice.of(price), price.reconfiguration_seconds)


_MEMORY = Memory()


@dataclass(frozen=True)
class Planned:
    """`planner.replan.replan`, asked at every incident."""

    job: Job
    pinned: tuple[Policy, ...] = ()
    """The only kinds of plans that are moved to, the first that is possible; none leaves the choice to the planner."""
    schedule: Schedule | None = None
    """In the place of the scenario's."""
    name: str = "kintsugi"

    def start(self, snapshot: Snapshot) -> Running:
        """The scenario's first plan, else the best one."""
        return self._running(_MEMORY.decided(first_of(self.job, self._scheduled(snapshot))))

    def respond(self, snapshot: Snapshot) -> Response:
        """The planner's decision; where the pinned policies are impossible, its choice among all."""
        decided = self._decided(self._scheduled(snapshot))
        running = self._running(decided)
        if decided.policy is Policy.CHECKPOINT_RESTART:
            return Response(running=running, pause_seconds=restart_pause_seconds(self.job.profile), rolls_back=True)
        return Response(running=running, pause_seconds=decided.reconfiguration_seconds)

    def _decided(self, snapshot: Snapshot) -> Decided:
        for policy in self.pinned:
            with suppress(InfeasibleError):
                return _MEMORY.decided(replace(snapshot, settings=replace(snapshot.settings, policy=policy)))
        return _MEMORY.decided(snapshot)

    def _scheduled(self, snapshot: Snapshot) -> Snapshot:
        if self.schedule is None:
            return snapshot
        return replace(snapshot, settings=replace(snapshot.settings, schedule=self.schedule))

    def _running(self, decided: Decided) -> Running:
        return Running(
            plan=decided.plan,
            price=decided.price,
            checkpoint_interval_seconds=self.job.profile.recovery.checkpoint_interval_seconds,
        )


def first_of(job: Job, snapshot: Snapshot) -> Snapshot:
    """The question for a first plan: the scenario's grid where there are workers for it, else the best plan there is."""
    if job.first is None or job.first.dp * job.first.pp > len(snapshot.alive):
        return snapshot
    dp, pp = job.first.dp, job.first.pp
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp)
    return replace(snapshot, settings=replace(snapshot.settings, ranges=ranges))
