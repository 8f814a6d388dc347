"""Chameleon as published (Zhou et al.): its Algorithm 1, its even rerouting, and its choice by equation 8.

The number of pipelines stays within one of the present one; rerouting is judged by equation 13, which hides nothing in bubbles, and
its transition as nothing; a new arrangement by the pipelines' time (equations 10 and 11) and its migration. What is carried out
is priced like every other policy's: the even spread with the better of whole and split backward passes, and reductions in coloured
rounds; new arrangements with reductions in the order that is through first, and migration after the matching. A plan that is
asymmetric already is judged by equation 13 with its own stages.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from estimator.costs import Costs
from estimator.goodput import rerouting_seconds
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges, Snapshot
from kintsugi.core.plan import Plan, Policy, Slot
from kintsugi.simulator.baselines.common import LiveGrids, is_hit, is_worthwhile, stay, with_idle
from kintsugi.simulator.baselines.constants import CHAMELEON_DP_RANGE
from kintsugi.simulator.running import Response
from kintsugi.simulator.transitions import Survivors, fastest_grid, require_memory
from planner.arranging.request import Request
from planner.baseline import Splitter, algorithm_1
from planner.placing.placement import Holdings
from planner.policies.found import Found
from planner.policies.rerouting import reroute_evenly
from planner.policies.reshaping import realise
from restorer.migration import require_state


@dataclass(frozen=True)
class Chameleon(LiveGrids):
    """Rerouting or a new arrangement, whichever the paper's estimates favour."""

    name: str = "chameleon"

    def respond(self, snapshot: Snapshot) -> Response:
        """By equation 8 with the paper's estimates; where neither is possible, the fastest grid.

        Its state moves from the living where they have all of it, and comes from the last checkpoint only where they have not.
        """
        assert snapshot.plan is not None
        if not is_hit(snapshot) and {idle.worker for idle in snapshot.plan.idle_workers} >= set(Survivors.of(snapshot).empty):
            return stay(self.present(snapshot), snapshot)
        anew = self._anew(snapshot)
        rerouted = self._rerouted(snapshot)
        if anew is None and rerouted is None:
            return super().move(snapshot, *fastest_grid(self.job, len(snapshot.alive)))
        if anew is None or (rerouted is not None and not self._prefers(snapshot, anew[1], rerouted[1], anew[0].pause_seconds)):
            assert rerouted is not None
            return rerouted[0]
        return anew[0]

    def _prefers(self, snapshot: Snapshot, anew_seconds: float, rerouted_seconds: float, cost_seconds: float) -> bool:
        """Equation 8; rerouting's transition is taken as nothing."""
        return is_worthwhile(rerouted_seconds, anew_seconds, cost_seconds, snapshot.settings.mtbf_seconds)

    def _anew(self, snapshot: Snapshot) -> tuple[Response, float] | None:
        """Algorithm 1's arrangement with the paper's estimate of its step, in seconds."""
        try:
            found = self._arrangement(snapshot)
        except InfeasibleError:
            return None
        running = self.of(with_idle(found.plan, snapshot.alive), found.estimate, snapshot)
        response = Response(running=running, pause_seconds=found.estimate.reconfiguration_seconds)
        return response, found.estimate.pipeline_seconds

    def _arrangement(self, snapshot: Snapshot) -> Found:
        assert snapshot.plan is not None
        costs, holding = Costs(snapshot.profile, snapshot.cluster), Survivors.of(snapshot).holding
        require_state(snapshot.plan, holding)
        dp, ranges = snapshot.plan.dp, snapshot.settings.ranges
        near = Ranges(
            min_dp=max(ranges.min_dp, dp - CHAMELEON_DP_RANGE),
            max_dp=min(ranges.max_dp or dp + CHAMELEON_DP_RANGE, dp + CHAMELEON_DP_RANGE),
            min_pp=ranges.min_pp,
            max_pp=ranges.max_pp,
        )
        settings = replace(snapshot.settings, ranges=near)
        arrangement = algorithm_1(costs, settings, snapshot.alive, dp, self._splitter)
        held = Holdings(snapshot.plan, holding)
        return realise(Request(costs, settings, snapshot.alive, held, snapshot.generation, Policy.DYNAMIC_PARALLELISM), arrangement)

    @cached_property
    def _splitter(self) -> Splitter:
        """Splits that were tried before, on workers that are all equal."""
        pair = Cluster.uniform(2)
        return Splitter(Costs(self.job.profile, pair), self.job.settings.schedule, tuple(pair.by_id))

    def _rerouted(self, snapshot: Snapshot) -> tuple[Response, float] | None:
        """The even spread with the estimate of equation 13, in seconds."""
        assert snapshot.plan is not None
        if not is_hit(snapshot):
            present = self.present(snapshot)
            return stay(present, snapshot), equation_13_seconds(snapshot.plan, Costs(snapshot.profile, snapshot.cluster))
        costs = Costs(snapshot.profile, snapshot.cluster)
        try:
            require_state(snapshot.plan, Survivors.of(snapshot).holding)
            plan, price = reroute_evenly(snapshot.plan, Survivors.of(snapshot).holding, costs)
            require_memory(snapshot, price)
        except InfeasibleError:
            return None
        running = self.of(with_idle(plan, snapshot.alive), price, snapshot)
        response = Response(running=running, pause_seconds=rerouting_seconds(snapshot.profile.recovery))
        return response, equation_13_seconds(plan, costs)


def equation_13_seconds(plan: Plan, costs: Costs) -> float:
    """The slowest pipeline as if nobody were dead, plus every dead stage's micro-batches spread over its living holders.

    For equal pipelines this is (N_pp + N_m - 1 + sum of N_m * F_i / (N_dp - F_i)) * (T_f + T_b).
    """
    stand_in = plan.workers[0]
    dead = set(plan.dead_slots)
    failed: Counter[tuple[int, int]] = Counter()
    base = 0.0
    for p, pipeline in enumerate(plan.pipelines):
        times = [costs.stage(s.worker or stand_in, s.layer_start, s.layer_stop) for s in pipeline.stages]
        longest = max(time.forward_seconds + time.backward_seconds for time in times)
        base = max(base, (len(times) + pipeline.num_microbatches - 1) * longest)
        for s, stage in enumerate(pipeline.stages):
            if Slot(pipeline=p, stage=s) in dead:
                failed[stage.layer_start, stage.layer_stop] += pipeline.num_microbatches
    extra = 0.0
    for (start, stop), count in failed.items():
        holders = sum(held.layer_start <= start and stop <= held.layer_stop for held, *_ in plan.stages_of.values())
        time = costs.stage(stand_in, start, stop)
        extra += count / holders * (time.forward_seconds + time.backward_seconds)
    return base + extra
