"""Peak memory of a stage against a walk through its passes, layer by layer."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.layers import LayerSums
from estimator.memory import (
    activation_budget,
    holds_all,
    peak_bytes,
    running_bytes,
    stage_peak_bytes,
    worker_peak_bytes,
    worker_static_bytes,
)
from estimator.schedule import Pass, order
from kintsugi.core.plan import Schedule
from tests.builders import grid_plan, layer, profile_of, uniform_profile

sizes = st.integers(0, 1_000)
layers = st.lists(st.tuples(sizes, st.integers(1, 1_000), sizes, sizes, sizes, sizes), min_size=1, max_size=5)
"""Activations, temporary memory of passes and of the update, gradients, input that a stage keeps, memory of first passes."""


def profile_with(found):
    names = ("activation_bytes", "temporary_bytes", "optimizer_temporary_bytes", "gradient_bytes", "entry_bytes")
    named = [dict(zip((*names, "first_temporary_bytes"), own, strict=False)) for own in found]
    return profile_of([layer(f"l{n}", **own) for n, own in enumerate(named)])


def walked_bytes(found, stage: int, num_stages: int, num_microbatches: int) -> int:
    """The most beyond static memory, looking at every layer of every pass of a stage."""
    held, most = 0, max(update for _, _, update, *_ in found)
    lacking = {index: own[3] for index, own in enumerate(found)}
    entry = found[0][4]
    for step in order(Schedule.ONE_F_ONE_B, stage, num_stages, num_microbatches):
        is_forward = step.kind is Pass.FORWARD
        for index in range(len(found)) if is_forward else reversed(range(len(found))):
            kept, temporary, _, gradients, _, first = found[index]
            held += (kept + entry * (index == 0)) if is_forward else 0
            made = min(max(first - temporary, 0), gradients) if not is_forward and index in lacking else 0
            most = max(most, held + temporary + made - sum(lacking.values()))
            if not is_forward:
                held -= kept + entry * (index == 0)
                lacking.pop(index, None)
    assert held == sum(lacking.values()) == 0
    return most


@given(layers, st.integers(1, 4), st.integers(1, 6), st.data())
def test_a_stage_takes_what_a_walk_through_its_passes_takes(found, num_stages, num_microbatches, data):
    stage = data.draw(st.integers(0, num_stages - 1))
    sums = LayerSums(profile_with(found))
    in_flight = min(num_stages - stage, num_microbatches)
    is_all = holds_all(Schedule.ONE_F_ONE_B, in_flight, num_microbatches)
    peak = stage_peak_bytes(sums, 0, len(found), num_in_flight=in_flight, num_replicas=1, is_all=is_all)
    assert peak == sums.static_bytes(0, len(found), 1) + walked_bytes(found, stage, num_stages, num_microbatches)


def test_layers_that_keep_nothing_still_take_what_passes_take():
    """The first backward pass makes the gradients; the next one needs its memory beside them."""
    sums = LayerSums(profile_with([(0, 70, 0, 50, 0, 0)]))
    static = sums.static_bytes(0, 1, 1)
    for num_in_flight, running in ((1, 20), (2, 70), (3, 70)):
        assert stage_peak_bytes(sums, 0, 1, num_in_flight=num_in_flight, num_replicas=1, is_all=True) == static + running


@given(layers)
def test_tables_hold_every_range(found):
    sums = LayerSums(profile_with(found))
    temporary, first, update = sums.temporary_table(), sums.first_temporary_table(), sums.update_table()
    for start, stop in itertools.combinations(range(len(found) + 1), 2):
        assert temporary[start, stop] == sums.temporary_bytes(start, stop) >= found[stop - 1][1]
        assert first[start, stop] == sums.first_temporary_bytes(start, stop) <= temporary[start, stop]
        assert update[start, stop] == sums.update_bytes(start, stop) == max(own for _, _, own, *_ in found[start:stop])
    assert np.all(np.tril(update) == 0)


def test_without_temporary_memory_it_is_equation_14():
    profile = uniform_profile(6)
    sums, one = LayerSums(profile), profile.layers[0]
    for stage, count in itertools.product(range(3), (1, 2, 8)):
        amounts = one.parameter_bytes, one.optimizer_bytes, one.gradient_bytes, one.activation_bytes
        expected = peak_bytes(2, *amounts, stage=stage, num_stages=3, num_microbatches=count)
        held = min(3 - stage, count)
        for is_all in {held == count, False}:
            assert stage_peak_bytes(sums, 0, 2, num_in_flight=held, num_replicas=1, is_all=is_all) == expected


def test_of_several_stages_the_widest_pass_counts():
    found = [(10, 5, 0, 1, 0), (10, 70, 0, 1, 0), (10, 20, 900, 1, 0), (10, 0, 0, 1, 0)]
    sums = LayerSums(profile_with(found))
    assert running_bytes(sums, [(0, 1), (2, 4)], 1_000) == 1_000 + 10
    assert running_bytes(sums, [(0, 2), (2, 4)], 1_000) == 1_000 + 70
    assert running_bytes(sums, [(0, 2), (2, 4)], 100) == 900


@pytest.mark.parametrize("worker", ["w00", "w01"])
def test_a_worker_that_uses_its_budget_up_fills_its_device(worker):
    profile = profile_with([(10, 5, 0, 1, 2), (10, 70, 0, 1, 2), (10, 20, 3, 1, 2), (10, 0, 0, 1, 2)])
    plan, sums = grid_plan(4, [2], [4]), LayerSums(profile)
    usable = worker_static_bytes(plan, worker, sums) + 500
    budget = activation_budget(plan, worker, sums, usable)
    assert worker_peak_bytes(plan, worker, sums, budget) == usable


@pytest.mark.parametrize(
    ("start", "stop", "weights", "optimizer"),
    [(0, 3, 80 + 42 - 20, 170 - 40), (0, 1, 80, 100), (2, 3, 30 + 12 + 20, 60)],
)
def test_shared_parameters_are_held_once(start, stop, weights, optimizer):
    """Of the last layer's 30 bytes of parameters 20 are those of the first, 40 of its 60 of optimizer state, and no gradient."""
    profile = profile_of(
        [
            layer("first", parameter_bytes=40, gradient_bytes=40, optimizer_bytes=100),
            layer("middle", parameter_bytes=0, gradient_bytes=0, optimizer_bytes=10),
            layer("last", parameter_bytes=30, gradient_bytes=12, optimizer_bytes=60, tied_to="first", tied_bytes=20),
        ]
    )
    sums = LayerSums(profile)
    assert sums.static_bytes(start, stop, 1) == weights + optimizer
    assert sums.static_table(1)[start, stop] == weights + optimizer
