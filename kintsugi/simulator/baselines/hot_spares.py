"""Hot spares: idle workers wait for failures ("warm backup" in Chameleon, section II-B; Elan, Xie et al., ICDCS 2020).

A spare that takes a slot over receives its state from a replica. When the spares are used up, the job restarts from its
last checkpoint on fewer pipelines, and keeps what is over as spares.
"""

from dataclasses import dataclass

from estimator.costs import Costs
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Snapshot
from kintsugi.simulator.baselines.common import Grids, first_grid, stay, with_idle
from kintsugi.simulator.baselines.constants import HOT_SPARE_PIPELINES
from kintsugi.simulator.running import Response
from kintsugi.simulator.transitions import Survivors, fastest_grid, migration_pause_seconds, require_memory
from planner.policies.substitution import substitute


@dataclass(frozen=True)
class HotSpares(Grids):
    """A grid with workers in waiting."""

    name: str = "hot-spares"
    waiting_pipelines: int = HOT_SPARE_PIPELINES

    def first(self, num_workers: int) -> tuple[int, int]:
        """The scenario's grid beside its spares; without any, fewer pipelines, so that there are some."""
        if self.job.num_spares:
            return first_grid(self.job, self._working(num_workers))
        dp, pp = first_grid(self.job, num_workers)
        return self._beside_waiting(dp), pp

    def chosen(self, num_workers: int) -> tuple[int, int]:
        """After a restart: the fastest grid that leaves spares again, if any does."""
        dp, pp = fastest_grid(self.job, self._working(num_workers))
        return (dp, pp) if self.job.num_spares else (self._beside_waiting(dp), pp)

    def _working(self, num_workers: int) -> int:
        """Workers beside the scenario's spares; one where there are no more than spares."""
        return max(1, num_workers - self.job.num_spares)

    def _beside_waiting(self, dp: int) -> int:
        """Pipelines that work while others wait: no fewer than the job allows."""
        return min(dp, max(self.job.settings.ranges.min_dp, dp - self.waiting_pipelines))

    def respond(self, snapshot: Snapshot) -> Response:
        """Spares for dead slots as long as there are enough; a larger grid only where spares are left beside it."""
        assert snapshot.plan is not None
        own = Survivors.of(snapshot)
        dead = len(snapshot.plan.workers) - len(own.holding)
        if not dead:
            dp, pp = self._restored(snapshot)
            return self._grow(snapshot, dp, pp) if dp * pp > len(snapshot.plan.workers) else stay(self.present(snapshot), snapshot)
        if dead > len(own.empty):
            return super().respond(snapshot)
        try:
            return self._substituted(snapshot, own)
        except InfeasibleError:
            return super().respond(snapshot)

    def _restored(self, snapshot: Snapshot) -> tuple[int, int]:
        """The grid for as many workers as there are, at most that of the beginning."""
        dp, pp = self.chosen(len(snapshot.alive))
        first = self.job.first
        return (min(dp, first.dp), pp) if first is not None and first.pp == pp else (dp, pp)

    def _substituted(self, snapshot: Snapshot, own: Survivors) -> Response:
        assert snapshot.plan is not None
        plan, price = substitute(snapshot.plan, own.holding, own.empty, Costs(snapshot.profile, snapshot.cluster))
        require_memory(snapshot, price)
        pause = migration_pause_seconds(snapshot, plan)
        return Response(running=self.of(with_idle(plan, snapshot.alive), price, snapshot), pause_seconds=pause)
