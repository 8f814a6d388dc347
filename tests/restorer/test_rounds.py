"""Rounds: every layer reduced once over all its holders, nobody in two reductions at once."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.plan import Pipeline, Plan, Schedule
from restorer.rounds import colour_rounds
from tests.builders import grid_plan, transformer_profile, uniform_profile


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


def test_alike_interleaved_pipelines_reduce_the_last_stages_of_their_workers_first():
    plan = grid_plan(8, [2, 2], [1, 1], schedule=Schedule.INTERLEAVED, stages_per_worker=2)
    assert [[r.layers for r in own] for own in colour_rounds(plan, uniform_profile(8))] == [[(4, 5), (6, 7)], [(0, 1), (2, 3)]]


def test_equal_pipelines_need_one_round():
    rounds = colour_rounds(grid_plan(8, [4, 4, 4], [1, 1, 1]), uniform_profile(8))
    assert [len(reductions) for reductions in rounds] == [4]
    assert [reduction.layers for reduction in rounds[0]] == [(0, 1), (2, 3), (4, 5), (6, 7)]
