"""Ways to share the micro-batches of dead slots out among the living holders of their layers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import cycle

from estimator.costs import Costs
from kintsugi.core.layout import Stage
from kintsugi.core.plan import Plan, Route, Slot

Holders = Mapping[Slot, Sequence[str]]
"""Living holders of the layers of every dead slot, in slot order."""

Routes = tuple[Route, ...]
"""By slot and micro-batch."""

Gift = tuple[Slot, int]
"""A dead slot, and one of its micro-batches."""

Crews = Mapping[Slot, Sequence[tuple[str, int, float]]]
"""Those holders, their pipelines, and what a micro-batch of the slot takes them, in seconds."""

Rank = Callable[[float, float], tuple[float, ...]]
"""What a holder is chosen by, the least first: seconds of passes that it would have, and that its pipeline would have taken in."""


def spreads(plan: Plan, holders: Holders, costs: Costs) -> tuple[Routes, ...]:
    """Those that are worth a price, without repetition: none of them is the best for every plan.

    Micro-batches go one by one to the holder that would be through first. Of several, to the one whose pipeline has taken in
    least: what is taken in at several stages of a pipeline adds up on its own micro-batches' way. Or to the holder whose
    pipeline has taken in least anyway, micro-batch by micro-batch. Or evenly, as the paper has it (section IV-A).
    """
    by_slot, crews, loads = list(_gifts(plan, holders)), _crews(plan, holders, costs), _own_loads(plan, holders, costs)
    found = (
        _ranked(plan, crews, loads, by_slot, lambda end, _: (end,)),
        _ranked(plan, crews, loads, by_slot, lambda end, taken: (end, taken)),
        _ranked(plan, crews, loads, sorted(by_slot, key=_turn(plan)), lambda end, taken: (taken, end)),
        even_spread(plan, holders),
    )
    return tuple(dict.fromkeys(found))


def even_spread(plan: Plan, holders: Holders) -> Routes:
    """To holders in turn, over all dead slots of the same layers (Zhou et al., section IV-A)."""
    turns: dict[range, Iterator[str]] = {}
    return tuple(
        _route(slot, microbatch, next(turns.setdefault(_stage(plan, slot).layers, cycle(holders[slot]))))
        for slot, microbatch in _gifts(plan, holders)
    )


def _gifts(plan: Plan, dead: Iterable[Slot]) -> Iterator[Gift]:
    for slot in dead:
        for microbatch in plan.microbatches_of(slot.pipeline):
            yield slot, microbatch


def _turn(plan: Plan) -> Callable[[Gift], int]:
    """The place of a micro-batch in its own pipeline."""
    return lambda gift: gift[1] - plan.microbatches_of(gift[0].pipeline)[0]


def _ranked(plan: Plan, crews: Crews, loads: Mapping[str, float], gifts: Iterable[Gift], rank: Rank) -> Routes:
    """Each micro-batch in turn to the holder of the least rank; ties go to slot order.

    Ranks never fall, so the first of a slot's queue is the least once its own is up to date. O(log holders) a micro-batch, about.
    """
    load, taken = dict(loads), [0.0] * len(plan.pipelines)
    queues = {
        slot: [(rank(load[worker] + seconds, taken[p] + seconds), place) for place, (worker, p, seconds) in enumerate(crew)]
        for slot, crew in crews.items()
    }
    for queue in queues.values():
        heapify(queue)
    takers: dict[Gift, str] = {}
    for slot, microbatch in gifts:
        queue = queues[slot]
        while True:
            known, place = queue[0]
            worker, p, seconds = crews[slot][place]
            now = rank(load[worker] + seconds, taken[p] + seconds)
            if now == known:
                break
            heapreplace(queue, (now, place))
        takers[slot, microbatch] = worker
        load[worker] += seconds
        taken[p] += seconds
    return tuple(_route(*gift, takers[gift]) for gift in _gifts(plan, crews))


def _crews(plan: Plan, holders: Holders, costs: Costs) -> Crews:
    return {
        slot: [(worker, plan.pipeline_of[worker], _seconds(costs, worker, _stage(plan, slot))) for worker in workers]
        for slot, workers in holders.items()
    }


def _own_loads(plan: Plan, holders: Holders, costs: Costs) -> dict[str, float]:
    """What each holder computes of its own pipeline, in seconds."""
    return {
        worker: plan.pipelines[plan.pipeline_of[worker]].num_microbatches
        * sum(_seconds(costs, worker, stage) for stage in plan.stages_of[worker])
        for workers in holders.values()
        for worker in workers
    }


def _stage(plan: Plan, slot: Slot) -> Stage:
    return plan.pipelines[slot.pipeline].stages[slot.stage]


def _route(slot: Slot, microbatch: int, worker: str) -> Route:
    return Route(microbatch=microbatch, pipeline=slot.pipeline, stage=slot.stage, worker=worker)


def _seconds(costs: Costs, worker: str, stage: Stage) -> float:
    times = costs.stage(worker, stage.layer_start, stage.layer_stop)
    return times.forward_seconds + times.backward_seconds
