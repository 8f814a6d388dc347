"""Rounds: every layer reduced once over all its holders, nobody in two reductions at once."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from estimator.estimate import priced
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Pipeline, Plan, Schedule
from restorer.rounds import colour_rounds, fastest_rounds
from tests import builders
from tests.builders import grid_plan, profile_of, transformer_profile, uniform_profile


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.booleans())
def test_every_layer_is_reduced_once_over_all_its_holders(lengths, tied):
    profile = transformer_profile(6, tied=tied)
    plan = grid_plan(8, lengths, [1] * len(lengths))
    rounds = colour_rounds(plan, profile)
    reduced = {}
    for reductions in rounds:
        busy = [worker for reduction in reductions for worker in reduction.workers]
        assert len(busy) == len(set(busy))
        for reduction in reductions:
            assert reduction.num_bytes == sum(profile.layers[layer].gradient_bytes for layer in reduction.layers)
            for layer in reduction.layers:
                assert layer not in reduced
                reduced[layer] = set(reduction.workers)
    for group in profile.tie_groups:
        holders = {worker for layer in group for worker in plan.holders[layer]}
        for layer in group:
            assert reduced.get(layer, holders if len(holders) == 1 else None) == holders


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=4), st.booleans())
def test_workers_with_several_stages_are_in_each_reduction_once(pipelines, tied):
    profile = transformer_profile(6, tied=tied)
    parts = [grid_plan(8, [length], [1], schedule=Schedule.INTERLEAVED, stages_per_worker=v) for length, v in pipelines]
    named = (_renamed(part.pipelines[0], f"p{index}") for index, part in enumerate(parts))
    plan = Plan(schedule=Schedule.INTERLEAVED, pipelines=tuple(named))
    reduced = {layer: reduction.workers for own in colour_rounds(plan, profile) for reduction in own for layer in reduction.layers}
    for group in profile.tie_groups:
        holders = {worker for layer in group for worker in plan.holders[layer]}
        for layer in group:
            workers = reduced.get(layer, tuple(holders) if len(holders) == 1 else ())
            assert sorted(workers) == sorted(holders)


def _renamed(pipeline: Pipeline, prefix: str) -> Pipeline:
    return replace(pipeline, stages=tuple(replace(stage, worker=f"{prefix}-{stage.worker}") for stage in pipeline.stages))


def random_case(draw: random.Random, schedule: Schedule) -> tuple[Plan, Costs]:
    """Pipelines of other lengths, workers of other speeds, layers of other sizes."""
    profile = profile_of([builders.layer(f"b{n}", gradient_bytes=draw.choice([10**8, 10**9, 3 * 10**9])) for n in range(8)])
    pipelines = []
    for index in range(draw.randint(2, 3)):
        num_virtual = draw.randint(1, 2) if schedule.is_interleaved else 1
        part = grid_plan(8, [draw.randint(1, 3)], [draw.randint(1, 3)], schedule=schedule, stages_per_worker=num_virtual)
        pipelines.append(_renamed(part.pipelines[0], f"p{index}"))
    plan = Plan(schedule=schedule, pipelines=tuple(pipelines))
    (worker,) = Cluster.uniform(1).workers
    workers = (replace(worker, id=name, host=name, speed_ratio=draw.choice([1.0, 1.0, 0.5])) for name in plan.workers)
    return plan, Costs(profile, Cluster(name="random", workers=tuple(workers)))


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED])
def test_the_fastest_rounds_are_never_slower_than_few_ones_and_sometimes_faster(schedule):
    draw, num_faster = random.Random(1), 0
    for _ in range(60):
        plan, costs = random_case(draw, schedule)
        few, fastest = (
            priced(plan.amended(rounds=rounds), costs).iteration_seconds
            for rounds in (colour_rounds(plan, costs.profile, costs), fastest_rounds(plan, costs))
        )
        assert fastest <= few * (1 + 1e-12)
        num_faster += fastest < few * 0.999
    assert num_faster


def test_alike_interleaved_pipelines_reduce_the_last_stages_of_their_workers_first():
    plan = grid_plan(8, [2, 2], [1, 1], schedule=Schedule.INTERLEAVED, stages_per_worker=2)
    assert [[r.layers for r in own] for own in colour_rounds(plan, uniform_profile(8))] == [[(4, 5), (6, 7)], [(0, 1), (2, 3)]]


def test_equal_pipelines_need_one_round():
    rounds = colour_rounds(grid_plan(8, [4, 4, 4], [1, 1, 1]), uniform_profile(8))
    assert [len(reductions) for reductions in rounds] == [4]
    assert [reduction.layers for reduction in rounds[0]] == [(0, 1), (2, 3), (4, 5), (6, 7)]
