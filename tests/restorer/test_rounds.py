"""Rounds: every layer reduced once over all its holders, nobody in two reductions at once."""

from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_equal_pipelines_need_one_round():
    rounds = colour_rounds(grid_plan(8, [4, 4, 4], [1, 1, 1]), uniform_profile(8))
    assert [len(reductions) for reductions in rounds] == [4]
    assert [reduction.layers for reduction in rounds[0]] == [(0, 1), (2, 3), (4, 5), (6, 7)]
