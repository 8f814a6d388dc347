"""What the passes of a plan make of its workers; pipelines that are alike are timed once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from estimator.costs import Costs
from estimator.layers import StageTimes
from estimator.memory import worker_peak_bytes
from estimator.moments import most_held, worker_moments
from estimator.rerouted import Schedules, allowances_of, rerouted_schedules, touched_pipelines
from estimator.seats import Alike, Seat
from estimator.split import scheduled_times
from kintsugi.core.layout import Pipeline
from kintsugi.core.plan import Plan


@dataclass(slots=True)
class Passes:
    """What the passes of a plan make of its workers."""

    pipeline_seconds: list[float] = field(default_factory=list)
    end_seconds: dict[str, float] = field(default_factory=dict)
    stage_end_seconds: dict[str, Sequence[float]] = field(default_factory=dict)
    """Where no failure touched them: the end of the last pass through each of a worker's stages."""
    rerouted: Schedules = field(default_factory=dict)
    """Schedules of the workers that a failure touched."""
    seats: dict[int, Sequence[Seat | None]] = field(default_factory=dict)
    """Of each pipeline; none for dead slots."""
    busy_seconds: float = 0.0
    """Of all workers together."""
    update_seconds: float = 0.0
    """The longest of a worker."""
    splits_backward: bool = False
    """Whether any backward pass is in two parts."""

    def last_seconds(self, plan: Plan) -> dict[str, Sequence[float]]:
        """End of the last pass through each of a worker's stages, in seconds; of its last of all where a failure touched it."""
        touched = {worker: (own.end_seconds,) * len(plan.stages_of[worker]) for worker, own in self.rerouted.items()}
        return {**touched, **self.stage_end_seconds}


def passes_of(plan: Plan, costs: Costs) -> Passes:
    """Pipelines that no failure touched by the recurrence (equation 11), the others by the simulation that orders their passes."""
    result = Passes()
    touched = touched_pipelines(plan) if plan.routes else frozenset()
    if touched:
        _add_rerouted(result, plan, costs, touched)
    _add_fixed(result, plan, costs, touched)
    return result


def _add_rerouted(result: Passes, plan: Plan, costs: Costs, touched: frozenset[int]) -> None:
    schedules = result.rerouted = rerouted_schedules(plan, costs, touched)
    allowances = allowances_of(plan, costs, touched)
    for index in sorted(touched):
        seats: list[Seat | None] = []
        for stage in plan.pipelines[index].stages:
            if stage.worker is None:
                seats.append(None)
                continue
            own = schedules[stage.worker]
            result.end_seconds[stage.worker] = own.end_seconds
            times = costs.stage(stage.worker, stage.layer_start, stage.layer_stop)
            peak = allowances[stage.worker].peak_bytes(own.activation_bytes)
            seats.append(Seat(times.forward_seconds, times.backward_seconds, own.num_in_flight, peak, own.busy_seconds))
        result.seats[index] = seats
    for worker, index in plan.pipeline_of.items():
        if index in touched:
            result.busy_seconds += schedules[worker].busy_seconds
            stages = [costs.stage(worker, stage.layer_start, stage.layer_stop) for stage in plan.stages_of[worker]]
            result.update_seconds = max(result.update_seconds, sum([stage.optimizer_seconds for stage in stages]))
    result.pipeline_seconds.append(max([schedule.end_seconds for schedule in schedules.values()]))
    result.splits_backward |= any(schedule.splits_backward for schedule in schedules.values())


def _add_fixed(result: Passes, plan: Plan, costs: Costs, touched: frozenset[int]) -> None:
    """Equation 11."""
    for index, workers, alike in _fixed(plan, costs, touched):
        result.pipeline_seconds.append(alike.pipeline_seconds)
        result.stage_end_seconds.update(zip(workers, alike.stage_end_seconds, strict=False))
        result.end_seconds.update(zip(workers, alike.end_seconds, strict=False))
        result.seats[index] = alike.seats
        result.busy_seconds += alike.busy_seconds
        result.update_seconds = max(result.update_seconds, alike.update_seconds)
        result.splits_backward |= plan.schedule.is_split and len(workers) > 1  # first stages pass backward in one


def _fixed(plan: Plan, costs: Costs, touched: frozenset[int]) -> Iterator[tuple[int, list[str], Alike]]:
    """Every pipeline that no failure touched, its stages' workers, and what it has in common with those that are alike."""
    known = costs.alike.setdefault((plan.schedule, plan.num_holders), {})
    for index, pipeline in enumerate(plan.pipelines):
        if index in touched:
            continue
        workers = [stage.worker for stage in pipeline.stages if stage.worker is not None]
        key = len(set(workers)), pipeline.num_microbatches, tuple([stage.layer_stop for stage in pipeline.stages])
        passes = () if costs.is_uniform else (tuple(_stage_times(pipeline, workers, costs)), _delays(pipeline, workers, costs))
        alike = known.get((key, passes))
        if alike is None:
            alike = known[key, passes] = _alike(plan, pipeline, workers, costs)
        yield index, workers, alike


def _alike(plan: Plan, pipeline: Pipeline, workers: list[str], costs: Costs) -> Alike:
    count, num_workers, sums = pipeline.num_microbatches, pipeline.num_workers, costs.sums
    stages = _stage_times(pipeline, workers, costs)
    times = scheduled_times(plan.schedule, stages, _delays(pipeline, workers, costs), count, num_workers=num_workers)
    ends, busy, flights, peaks, updates = [], [], [], [], []
    for place, worker in enumerate(workers[:num_workers]):
        own = stages[place::num_workers]
        ends.append(times.stage_end_seconds[place::num_workers])
        busy.append(count * sum(stage.forward_seconds + stage.backward_seconds for stage in own))
        moments = worker_moments(plan.schedule, place, num_workers, count, len(own))
        flights.append(most_held(moments))
        peaks.append(worker_peak_bytes(plan, worker, sums, moments))
        updates.append(sum(stage.optimizer_seconds for stage in own))
    seats = [
        Seat(
            stage.forward_seconds,
            stage.backward_seconds,
            flights[index % num_workers],
            peaks[index % num_workers],
            busy[index % num_workers],
        )
        for index, stage in enumerate(stages)
    ]
    return Alike(times.pipeline_seconds, ends, list(map(max, ends)), sum(busy), max(updates), seats)


def _stage_times(pipeline: Pipeline, workers: list[str], costs: Costs) -> list[StageTimes]:
    return [
        costs.stage(worker, stage.layer_start, stage.layer_stop) for worker, stage in zip(workers, pipeline.stages, strict=True)
    ]


def _delays(pipeline: Pipeline, workers: list[str], costs: Costs) -> tuple[float, ...]:
    return tuple(
        costs.boundary_seconds(source, target, stage.layer_stop)
        for source, target, stage in zip(workers, workers[1:], pipeline.stages, strict=False)
    )
