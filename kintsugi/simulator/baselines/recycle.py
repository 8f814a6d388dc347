"""ReCycle: data rerouting into bubbles (Gandhi et al., SOSP 2024).

The micro-batches of failed workers go to their data-parallel peers. Backward passes are decoupled, so that weight parts fill
bubbles, and the optimizer is staggered: a stage updates as soon as its own gradients are reduced, and its next step begins
behind that, without waiting for other stages. The schedule is the best of Kintsugi's own list schedules, which stand in for
ReCycle's MILP. The parallel configuration never changes while every stage has a living peer; once one has none the job
restarts from a checkpoint on the fastest grid. Workers that come fill dead slots; when a whole pipeline's worth is idle, the
grid grows (the paper describes re-joins into the same configuration only).
"""

from dataclasses import dataclass, replace
from itertools import accumulate

from estimator.costs import Costs
from estimator.goodput import rerouting_seconds
from estimator.rerouted import rerouted_schedules, touched_pipelines
from estimator.split import scheduled_times
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import Plan, Policy
from kintsugi.simulator.baselines.common import LiveGrids, is_hit, stay, with_idle
from kintsugi.simulator.baselines.constants import RECYCLE_STAGGERS_OPTIMIZER
from kintsugi.simulator.running import Response, Running, StepPrice
from kintsugi.simulator.transitions import Survivors, fastest_grid, migration_pause_seconds, require_memory
from planner.policies.rerouting import reroute
from planner.policies.substitution import substitute


@dataclass(frozen=True)
class ReCycle(LiveGrids):
    """Reroutes, and nothing else as long as it can."""

    name: str = "recycle"
    staggers_optimizer: bool = RECYCLE_STAGGERS_OPTIMIZER

    def respond(self, snapshot: Snapshot) -> Response:
        """Idle workers into dead slots, the rest rerouted; from the last checkpoint where that is impossible."""
        assert snapshot.plan is not None
        if not is_hit(snapshot) and not snapshot.plan.dead_slots:
            return super().respond(snapshot)
        own = Survivors.of(snapshot)
        if not is_hit(snapshot) and not own.empty:
            return stay(self.present(snapshot), snapshot)
        try:
            return self._rerouted(snapshot, own)
        except InfeasibleError:
            dp, pp = fastest_grid(self.job, len(snapshot.alive))
            return super().move(snapshot, dp, pp)

    def _rerouted(self, snapshot: Snapshot, own: Survivors) -> Response:
        assert snapshot.plan is not None
        costs = Costs(snapshot.profile, snapshot.cluster)
        if own.empty:
            plan, price = substitute(snapshot.plan, own.holding, own.empty, costs)
            pause = migration_pause_seconds(snapshot, plan)
        else:
            plan, price = reroute(snapshot.plan, own.holding, costs)
            pause = rerouting_seconds(snapshot.profile.recovery)
        require_memory(snapshot, price)
        plan = with_idle(replace(plan, policy=Policy.DATA_REROUTING), snapshot.alive)
        return Response(running=self.of(plan, price, snapshot), pause_seconds=pause)

    def of(self, plan: Plan, price: Estimate, snapshot: Snapshot) -> Running:
        """A plan with its price, the optimizer staggered."""
        running = super().of(plan, price, snapshot)
        if not self.staggers_optimizer:
            return running
        seconds = staggered_seconds(plan, Costs(snapshot.profile, snapshot.cluster))
        parts: StepPrice = running.price.lasting(min(seconds, price.iteration_seconds))
        return replace(running, price=parts)


def staggered_seconds(plan: Plan, costs: Costs) -> float:
    """From one step to the next when every worker goes on by itself once its own layers are updated, in seconds.

    Each worker repeats its order of passes; it is free for the next step when its last reduction and its update are through,
    and needs not be before the first micro-batch reaches its stage. The longest such span paces all.
    """
    free = _ends(plan, costs)
    for reductions in plan.rounds:
        for reduction in reductions:
            end = max(free[worker] for worker in reduction.workers) + costs.reduction_seconds(reduction)
            free.update(dict.fromkeys(reduction.workers, end))
    arrivals = _arrivals(plan, costs)
    return max(
        free[worker] + costs.stage(worker, stage.layer_start, stage.layer_stop).optimizer_seconds - arrivals[worker]
        for worker, (stage, *_) in plan.stages_of.items()
    )


def _ends(plan: Plan, costs: Costs) -> dict[str, float]:
    """End of each worker's last pass."""
    touched = touched_pipelines(plan) if plan.routes else frozenset()
    schedules = rerouted_schedules(plan, costs, touched) if touched else {}
    ends = {worker: schedule.end_seconds for worker, schedule in schedules.items()}
    known: dict[object, tuple[float, ...]] = {}
    for index, pipeline in enumerate(plan.pipelines):
        if index in touched:
            continue
        workers = [stage.worker for stage in pipeline.stages if stage.worker is not None]
        stages = tuple(costs.stage(w, s.layer_start, s.layer_stop) for w, s in zip(workers, pipeline.stages, strict=True))
        delays = _delays(workers, [stage.layer_stop for stage in pipeline.stages], costs)
        key = stages, delays, pipeline.num_microbatches
        if key not in known:
            known[key] = scheduled_times(plan.schedule, stages, delays, pipeline.num_microbatches).stage_end_seconds
        ends.update(zip(workers, known[key], strict=True))
    return ends


def _arrivals(plan: Plan, costs: Costs) -> dict[str, float]:
    """When the first micro-batch of its own pipeline reaches each worker, were every stage's worker there."""
    result = {}
    for pipeline in plan.pipelines:
        workers = [stage.worker or plan.workers[0] for stage in pipeline.stages]
        forward = [
            costs.stage(w, s.layer_start, s.layer_stop).forward_seconds for w, s in zip(workers, pipeline.stages, strict=True)
        ]
        delays = _delays(workers, [stage.layer_stop for stage in pipeline.stages], costs)
        moments = accumulate((f + d for f, d in zip(forward, delays, strict=False)), initial=0.0)
        for stage, moment in zip(pipeline.stages, moments, strict=True):
            if stage.worker is not None:
                result[stage.worker] = moment
    return result


def _delays(workers: list[str], stops: list[int], costs: Costs) -> tuple[float, ...]:
    return tuple(costs.boundary_seconds(a, b, stop) for a, b, stop in zip(workers, workers[1:], stops, strict=False))
