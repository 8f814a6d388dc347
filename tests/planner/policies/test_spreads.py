"""Micro-batches of dead slots, shared out among living holders."""

import random
from dataclasses import replace

import pytest

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Slot
from planner.policies.spreads import spreads
from tests.builders import grid_plan, transformer_profile

RANKS = [lambda end, _: (end,), lambda end, taken: (end, taken), lambda end, taken: (taken, end)]


def one_by_one(plan, holders, costs, rank, *, by_turn):
    """Who takes each micro-batch of each dead slot when all holders are looked at every time."""
    stages = {slot: plan.pipelines[slot.pipeline].stages[slot.stage] for slot in holders}

    def seconds(worker, stage):
        times = costs.stage(worker, stage.layer_start, stage.layer_stop)
        return times.forward_seconds + times.backward_seconds

    load = {
        worker: plan.pipelines[p].num_microbatches * sum(seconds(worker, stage) for stage in plan.stages_of[worker])
        for worker, p in plan.pipeline_of.items()
    }
    taken, takers = [0.0] * plan.dp, {}
    gifts = [(slot, turn, microbatch) for slot in holders for turn, microbatch in enumerate(plan.microbatches_of(slot.pipeline))]
    for slot, _, microbatch in sorted(gifts, key=lambda gift: gift[1]) if by_turn else gifts:
        own = {worker: seconds(worker, stages[slot]) for worker in holders[slot]}
        worker = min(own, key=lambda worker: rank(load[worker] + own[worker], taken[plan.pipeline_of[worker]] + own[worker]))
        load[worker] += own[worker]
        taken[plan.pipeline_of[worker]] += own[worker]
        takers[microbatch, slot] = worker
    return takers


@pytest.mark.parametrize("seed", range(20))
def test_each_microbatch_goes_to_the_least_of_all_holders(seed):
    chance = random.Random(seed)
    dp, pp, profile = chance.randint(2, 6), chance.randint(1, 3), transformer_profile(chance.randint(4, 9))
    plan = grid_plan(profile.num_layers, [pp] * dp, [chance.randint(1, 9) for _ in range(dp)])
    cluster = Cluster.uniform(dp * pp)
    workers = tuple(replace(worker, speed_ratio=chance.choice([1.0, 1.0, 0.5, 0.9])) for worker in cluster.workers)
    costs = Costs(profile, cluster.with_workers(workers))
    dead = [(chance.randrange(dp), stage) for stage in range(chance.randint(1, pp))]
    holders = {
        Slot(pipeline=p, stage=s): tuple(own.stages[s].worker for other, own in enumerate(plan.pipelines) if (other, s) not in dead)
        for p, s in sorted(dead)
    }
    found = [
        {(r.microbatch, Slot(pipeline=r.pipeline, stage=r.stage)): r.worker for r in routes}
        for routes in spreads(plan, holders, costs)
    ]
    for rank, by_turn in zip(RANKS, (False, False, True), strict=True):
        assert one_by_one(plan, holders, costs, rank, by_turn=by_turn) in found
