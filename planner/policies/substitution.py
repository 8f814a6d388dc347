"""Spare substitution: idle workers take dead slots over; what is left is rerouted."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, product

from estimator.costs import Costs
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Pipeline, Plan, Policy, Slot
from planner.policies.rerouting import reroute

MOST_CHOICES = 8
"""If there are no more ways to choose the places that are taken, all of them are priced."""

MOST_WORK = 512
"""Workers of all plans together that are priced where workers differ and any spare might take any place, or none."""

MOST_SPEEDS = 4
"""In larger jobs: speeds of spares, from the least on, that are tried as the least one that is of use."""


def shortest(_: Plan, price: Estimate) -> float:
    """What a plan is worth by its step alone."""
    return -price.iteration_seconds


def substitute(
    plan: Plan,
    survivors: Collection[str],
    spares: Sequence[str],
    costs: Costs,
    worth: Callable[[Plan, Estimate], float] = shortest,
) -> tuple[Plan, Estimate]:
    """`plan`, and its price, with spares in the place of dead workers; those that are worth less than nobody stay idle.

    A worker that lost its state takes its own place back. Of a few ways to give the others places, the one that is worth most
    is taken; of more, the fastest spares take the places whose layers keep their holders busiest.

    Args:
        plan: what ran last.
        survivors: workers of the plan that are alive with their state.
        spares: living workers without state, in cluster order.
        costs: of the job.
        worth: of such a plan at its price; of equal ones the shortest step wins.

    Raises:
        InfeasibleError: there is no dead slot or no spare worker, or no living worker holds what stays dead.
    """
    dead = [
        Slot(pipeline=p, stage=s)
        for p, pipeline in enumerate(plan.pipelines)
        for s, stage in enumerate(pipeline.stages[: pipeline.num_workers])
        if stage.worker not in survivors
    ]
    if not dead:
        raise InfeasibleError("no slot is dead", field="plan", value=None)
    if not spares:
        raise InfeasibleError("no living worker is idle", field="alive", value=None)
    returned = {plan.slots_of[worker][0]: worker for worker in spares if worker in plan.slots_of}
    free = [worker for worker in spares if worker not in plan.slots_of]
    fastest = sorted(free, key=lambda worker: (-costs.cluster.by_id[worker].speed_ratio, costs.cluster.order[worker]))
    empty = [place for place in dead if place not in returned]
    options, refusals = [], []
    for given in _ways(plan, empty, sorted([*survivors, *returned.values()]), fastest, costs):
        takers = returned | given
        if not takers:
            continue
        try:
            options.append(reroute(_filled(plan, takers), {*survivors, *takers.values()}, costs))
        except InfeasibleError as error:
            refusals.append(error)
    if not options:
        raise refusals[0]
    result, price = options[0]
    if len(options) > 1:
        result, price = max(options, key=lambda option: (worth(*option), shortest(*option)))
    return result.amended(policy=Policy.SPARE_SUBSTITUTION), price


def _ways(
    plan: Plan, empty: Sequence[Slot], present: Sequence[str], fastest: Sequence[str], costs: Costs
) -> Iterator[dict[Slot, str]]:
    """Spares by the places that they take: all ways where spares may be worse than nobody and few, else the most promising ones."""
    kinds = _kinds(fastest, costs)
    if not costs.is_uniform and (len(kinds) + 1) ** len(empty) * len(plan.workers) <= MOST_WORK:
        for chosen in product((None, *kinds), repeat=len(empty)):
            if all(chosen.count(kind) <= len(alike) for kind, alike in kinds.items()):
                queues = {kind: iter(alike) for kind, alike in kinds.items()}
                yield {place: next(queues[kind]) for place, kind in zip(empty, chosen, strict=True) if kind is not None}
        return
    by_id = costs.cluster.by_id
    for slowest in sorted({by_id[worker].speed_ratio for worker in fastest})[:MOST_SPEEDS] or [0.0]:
        some = [worker for worker in fastest if by_id[worker].speed_ratio >= slowest]
        for places in _choices(plan, empty, present, some, costs):
            yield dict(zip(places, some, strict=False))


def _kinds(workers: Sequence[str], costs: Costs) -> dict[object, list[str]]:
    """Workers by all that tells them apart: speed, memory, and, where links differ, the host."""
    cluster, result = costs.cluster, dict[object, list[str]]()
    for worker in map(cluster.by_id.__getitem__, workers):
        host = None if cluster.has_equal_links else worker.host
        result.setdefault((worker.speed_ratio, worker.memory_bytes, host), []).append(worker.id)
    return result


def _choices(
    plan: Plan, empty: Sequence[Slot], present: Sequence[str], fastest: Sequence[str], costs: Costs
) -> Iterator[Sequence[Slot]]:
    """Places that are taken, those first that need a fast worker most: one choice, or all where they are few."""
    if len(empty) <= len(fastest) or math.comb(len(empty), len(fastest)) > MOST_CHOICES:
        yield _neediest(plan, empty, present, fastest, costs)
        return
    for some in combinations(empty, len(fastest)):
        yield _neediest(plan, some, present, fastest, costs)


def _neediest(plan: Plan, empty: Sequence[Slot], present: Sequence[str], fastest: Sequence[str], costs: Costs) -> tuple[Slot, ...]:
    """One after the other the empty place whose layers keep those who hold them by then busy for the longest time."""
    by_id, speeds = costs.cluster.by_id, [0.0] * plan.num_layers
    left, taken = list(empty), list[Slot]()
    for worker in present:
        for layer in plan.layers_of.get(worker, ()):
            speeds[layer] += by_id[worker].speed_ratio
    for worker in fastest[: len(empty)]:
        place = max(left, key=lambda place: _need(plan, place, speeds, costs))
        left.remove(place)
        taken.append(place)
        for layer in _layers(plan, place):
            speeds[layer] += by_id[worker].speed_ratio
    return tuple(taken)


def _need(plan: Plan, place: Slot, speeds: Sequence[float], costs: Costs) -> tuple[float, float]:
    """Forward passes of all micro-batches on those who hold a place's layers, infinite where nobody does; then its own ones."""
    layers, sums = _layers(plan, place), costs.sums.forward
    speed = min(speeds[layer] for layer in layers)
    seconds = sum(sums[layer + 1] - sums[layer] for layer in layers)
    own = plan.pipelines[place.pipeline].num_microbatches * seconds
    return (plan.num_microbatches * seconds / speed if speed else math.inf), own


def _layers(plan: Plan, place: Slot) -> tuple[int, ...]:
    pipeline = plan.pipelines[place.pipeline]
    stages = pipeline.stages[place.stage :: pipeline.num_workers]
    return tuple(chain.from_iterable(stage.layers for stage in stages))


def _filled(plan: Plan, takers: dict[Slot, str]) -> Plan:
    """`plan` with other workers in some places; the routes of their slots go, those to whom they replace lead to them."""
    pipelines = tuple(
        Pipeline(
            num_microbatches=pipeline.num_microbatches,
            stages=tuple(
                replace(stage, worker=takers.get(_place(plan, p, s), stage.worker)) for s, stage in enumerate(pipeline.stages)
            ),
        )
        for p, pipeline in enumerate(plan.pipelines)
    )
    routes = tuple(
        replace(route, worker=takers.get(plan.slots_of[route.worker][0], route.worker))
        for route in plan.routes
        if _place(plan, route.pipeline, route.stage) not in takers
    )
    return replace(plan, pipelines=pipelines, routes=routes, rounds=(), idle_workers=())


def _place(plan: Plan, pipeline: int, stage: int) -> Slot:
    """The first slot of the worker that holds a stage, dead or alive."""
    return Slot(pipeline=pipeline, stage=stage % plan.pipelines[pipeline].num_workers)
