"""What several published policies share: staying as they are, and moving between grids of equal pipelines."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from estimator.estimate import estimate
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import StateLostError
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import IdleWorker, Plan, Policy
from kintsugi.simulator.job import Job
from kintsugi.simulator.running import Response, Running, StepPrice
from kintsugi.simulator.transitions import NOT_USED, Survivors, fastest_grid, grid, grid_seconds, restart_pause_seconds
from planner.policies.found import Found


def is_hit(snapshot: Snapshot) -> bool:
    """Whether a worker that holds a stage is gone, or came back without its state."""
    assert snapshot.plan is not None
    return len(Survivors.of(snapshot).holding) < len(snapshot.plan.workers)


def with_idle(plan: Plan, alive: Collection[str]) -> Plan:
    """The plan with every living worker that it does not use."""
    used = set(plan.workers)
    return plan.amended(idle_workers=tuple(IdleWorker(worker=w, reason=NOT_USED) for w in alive if w not in used))


def stay(running: Running, snapshot: Snapshot) -> Response:
    """Nothing changes but who is idle."""
    return Response(running=replace(running, plan=with_idle(running.plan, snapshot.alive)), pause_seconds=0.0)


def is_worthwhile(now_seconds: float, then_seconds: float, cost_seconds: float, mtbf_seconds: float) -> bool:
    """Whether a shorter step pays for its transition before the next failure (equation 8)."""
    return max(0.0, 1 - cost_seconds / mtbf_seconds) / then_seconds > 1 / now_seconds


def first_grid(job: Job, num_workers: int) -> tuple[int, int]:
    """Pipelines and stages that a job begins with: the scenario's where there are workers for them, else the fastest."""
    if job.first is not None and job.first.dp * job.first.pp <= num_workers:
        return job.first.dp, job.first.pp
    return fastest_grid(job, num_workers)


@dataclass(frozen=True)
class Grids:
    """A job on equal pipelines, which restarts from its last checkpoint when workers fail."""

    job: Job

    name: str = "grids"

    def start(self, snapshot: Snapshot) -> Running:
        """The scenario's grid, else the fastest one."""
        dp, pp = self.first(len(snapshot.alive))
        return self.running(self.arranged(snapshot, dp, pp, keeps_state=False), snapshot)

    def respond(self, snapshot: Snapshot) -> Response:
        """Another grid; for arrivals only where it pays."""
        dp, pp = self.chosen(len(snapshot.alive))
        if not is_hit(snapshot):
            return self._grow(snapshot, dp, pp)
        return self.move(snapshot, dp, pp)

    def first(self, num_workers: int) -> tuple[int, int]:
        """Pipelines and stages to begin with."""
        return first_grid(self.job, num_workers)

    def chosen(self, num_workers: int) -> tuple[int, int]:
        """Pipelines and stages for so many workers."""
        return fastest_grid(self.job, num_workers)

    def interval_seconds(self, num_workers: int) -> float | None:
        """Training time between two checkpoints."""
        del num_workers
        return self.job.profile.recovery.checkpoint_interval_seconds

    def move(self, snapshot: Snapshot, dp: int, pp: int) -> Response:
        """After a failure: all restart from the last checkpoint."""
        found = self.arranged(snapshot, dp, pp, keeps_state=False)
        return Response(
            running=self.running(found, snapshot), pause_seconds=restart_pause_seconds(self.job.profile), rolls_back=True
        )

    def reach(self, snapshot: Snapshot, dp: int, pp: int) -> Response:
        """Another grid without a failure: a checkpoint first, so nothing is lost."""
        found = self.arranged(snapshot, dp, pp, keeps_state=False)
        pause = self.job.checkpoint_pause_seconds + restart_pause_seconds(self.job.profile)
        return Response(running=self.running(found, snapshot), pause_seconds=pause, saves=True)

    def arranged(self, snapshot: Snapshot, dp: int, pp: int, *, keeps_state: bool) -> Found:
        """Equal pipelines on living workers."""
        policy = Policy.DYNAMIC_PARALLELISM if keeps_state else Policy.CHECKPOINT_RESTART
        return grid(snapshot, snapshot.alive, dp, pp, keeps_state=keeps_state, policy=policy)

    def running(self, found: Found, snapshot: Snapshot) -> Running:
        """What runs then."""
        return self.of(found.plan, found.estimate, snapshot)

    def of(self, plan: Plan, price: Estimate, snapshot: Snapshot) -> Running:
        """A plan with its price and its checkpoints."""
        interval = self.interval_seconds(len(snapshot.alive))
        return Running(plan=plan, price=StepPrice.of(price), checkpoint_interval_seconds=interval)

    def _grow(self, snapshot: Snapshot, dp: int, pp: int) -> Response:
        assert snapshot.plan is not None
        present = self.present(snapshot)
        seconds = grid_seconds(self.job.profile, self.job.settings, dp, pp)
        if seconds is None or seconds >= present.price.iteration_seconds:
            return stay(present, snapshot)
        response = self.reach(snapshot, dp, pp)
        if is_worthwhile(present.price.iteration_seconds, seconds, response.pause_seconds, snapshot.settings.mtbf_seconds):
            return response
        return stay(present, snapshot)

    def present(self, snapshot: Snapshot) -> Running:
        """What runs now, at its present price."""
        assert snapshot.plan is not None
        return self.of(snapshot.plan, estimate(snapshot.plan, snapshot.profile, snapshot.cluster), snapshot)


@dataclass(frozen=True)
class LiveGrids(Grids):
    """Equal pipelines whose state moves between living workers; a checkpoint is read only where state is lost."""

    name: str = "live-grids"

    def move(self, snapshot: Snapshot, dp: int, pp: int) -> Response:
        """After a failure: what is missing moves from survivors that hold it."""
        try:
            return self.reach(snapshot, dp, pp)
        except StateLostError:
            return super().move(snapshot, dp, pp)

    def reach(self, snapshot: Snapshot, dp: int, pp: int) -> Response:
        """Another grid without a failure: the same way."""
        found = self.arranged(snapshot, dp, pp, keeps_state=True)
        return Response(running=self.running(found, snapshot), pause_seconds=found.estimate.reconfiguration_seconds)
