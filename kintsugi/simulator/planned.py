"""Kintsugi's own planner as a policy: free to choose, or held to one kind of answer."""

from contextlib import suppress
from dataclasses import dataclass, replace

from kintsugi.core.decision import Decision
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges, Snapshot
from kintsugi.core.plan import Policy, Schedule
from kintsugi.simulator.job import Job
from kintsugi.simulator.running import Response, Running, StepPrice
from kintsugi.simulator.transitions import restart_pause_seconds
from planner.replan import replan


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
        return self._running(replan(first_of(self.job, self._scheduled(snapshot))))

    def respond(self, snapshot: Snapshot) -> Response:
        """The planner's decision; where the pinned policies are impossible, its choice among all."""
        decision = self._decision(self._scheduled(snapshot))
        running = self._running(decision)
        if decision.policy is Policy.CHECKPOINT_RESTART:
            return Response(running=running, pause_seconds=restart_pause_seconds(self.job.profile), rolls_back=True)
        return Response(running=running, pause_seconds=decision.estimate.reconfiguration_seconds)

    def _decision(self, snapshot: Snapshot) -> Decision:
        for policy in self.pinned:
            with suppress(InfeasibleError):
                return replan(replace(snapshot, settings=replace(snapshot.settings, policy=policy)))
        return replan(snapshot)

    def _scheduled(self, snapshot: Snapshot) -> Snapshot:
        if self.schedule is None:
            return snapshot
        return replace(snapshot, settings=replace(snapshot.settings, schedule=self.schedule))

    def _running(self, decision: Decision) -> Running:
        return Running(
            plan=decision.plan,
            price=StepPrice.of(decision.estimate),
            checkpoint_interval_seconds=self.job.profile.recovery.checkpoint_interval_seconds,
        )


def first_of(job: Job, snapshot: Snapshot) -> Snapshot:
    """The question for a first plan: the scenario's grid where there are workers for it, else the best plan there is."""
    if job.first is None or job.first.dp * job.first.pp > len(snapshot.alive):
        return snapshot
    dp, pp = job.first.dp, job.first.pp
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp)
    return replace(snapshot, settings=replace(snapshot.settings, ranges=ranges))
