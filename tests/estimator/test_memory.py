"""Peak memory of a stage against a walk through its passes, layer by layer."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.layers import FIRST_PASS, KINDS, PASS, WEIGHT_PART, LayerSums
from estimator.memory import (
    allowance,
    peak_bytes,
    running_bytes,
    stage_peak_bytes,
    worker_static_bytes,
)
from estimator.moments import pipeline_moments, stage_moments
from estimator.schedule import ORDERS, Pass, order
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import OptimizerSharding
from tests.builders import grid_plan, layer, profile_of, transformer_profile, uniform_profile

sizes = st.integers(0, 1_000)
NAMES = (
    "activation_bytes",
    "temporary_bytes",
    "optimizer_temporary_bytes",
    "gradient_bytes",
    "entry_bytes",
    "first_temporary_bytes",
    "deferred_bytes",
    "input_temporary_bytes",
    "weight_temporary_bytes",
    "first_weight_temporary_bytes",
)
known = st.tuples(sizes, st.integers(1, 1_000), *(sizes,) * 6, st.integers(1, 1_000), sizes)
layers = st.lists(known, min_size=1, max_size=5)
some_unknown = st.lists(st.tuples(sizes, st.integers(1, 1_000), *(sizes,) * 8), min_size=1, max_size=5)
STAGED = [schedule for schedule in ORDERS if not schedule.is_interleaved]


def profile_with(found):
    return profile_of([layer(f"l{n}", **dict(zip(NAMES, own, strict=False))) for n, own in enumerate(found)])


class Walk:
    """Every layer of every pass of a stage: what is held beyond static memory, and the most there ever was."""

    def __init__(self, layers, *, is_split: bool) -> None:
        self.layers, self.held, self.most = layers, 0, max(own.optimizer_temporary_bytes for own in layers)
        is_told = not is_split or all(own.weight_temporary_bytes or not own.gradient_bytes for own in layers[1:])
        self.lacking = {index: own.gradient_bytes for index, own in enumerate(layers) if is_told}

    def kept(self, index: int) -> int:
        return self.layers[index].activation_bytes + self.layers[index].entry_bytes * (index == 0)

    def put_off(self, index: int) -> int:
        return self.layers[index].deferred_bytes or self.kept(index)

    def sees(self, num_bytes: int) -> None:
        self.most = max(self.most, self.held + num_bytes - sum(self.lacking.values()))

    def do(self, kind: Pass) -> None:
        for index in range(len(self.layers)) if kind is Pass.FORWARD else reversed(range(len(self.layers))):
            own = self.layers[index]
            if kind is Pass.FORWARD:
                self.held += self.kept(index)
                self.sees(own.temporary_bytes)
            elif kind is Pass.BACKWARD:
                made = min(max(own.first_temporary_bytes - own.temporary_bytes, 0), own.gradient_bytes)
                self.sees(own.temporary_bytes + made * (index in self.lacking))
                self.held -= self.kept(index)
                self.lacking.pop(index, None)
            elif kind is Pass.BACKWARD_INPUT:
                grown = (own.deferred_bytes or own.activation_bytes) - own.activation_bytes
                self.sees(max(own.input_temporary_bytes, grown))
                self.held += self.put_off(index) - self.kept(index)
            else:
                first, lacking = own.first_weight_temporary_bytes, self.lacking.get(index, 0)
                made = min(max(first - own.weight_temporary_bytes, 0), lacking) if first else lacking
                self.sees(own.weight_temporary_bytes + made)
                self.held -= self.put_off(index)
                self.lacking.pop(index, None)


@pytest.mark.parametrize("schedule", STAGED)
@given(st.one_of(layers, some_unknown), st.integers(1, 5), st.integers(1, 12), st.data())
def test_a_stage_takes_what_a_walk_through_its_passes_takes(schedule, found, num_stages, num_microbatches, data):
    stage = data.draw(st.integers(0, num_stages - 1))
    profile = profile_with(found)
    sums, walk = LayerSums(profile), Walk(profile.layers, is_split=schedule.is_split and stage > 0)
    for step in order(schedule, stage, num_stages, num_microbatches):
        walk.do(step.kind)
    assert walk.held == sum(walk.lacking.values()) == 0
    moments = stage_moments(schedule, stage, num_stages, num_microbatches)
    peak = stage_peak_bytes(sums, 0, len(found), moments=moments, num_replicas=1)
    assert peak == sums.static_bytes(0, len(found), 1) + walk.most


@pytest.mark.parametrize("schedule", STAGED)
def test_a_pipeline_has_the_moments_of_its_stages_however_many_micro_batches_there_are(schedule):
    for num_stages, num_microbatches in itertools.product(range(1, 8), range(1, 40)):
        found = pipeline_moments(schedule, num_stages, num_microbatches)
        own = [stage_moments(schedule, stage, num_stages, num_microbatches) for stage in range(num_stages)]
        assert found.shape[1] == max(map(len, own))
        assert all(np.array_equal(np.unique(rows, axis=0), np.unique(mine, axis=0)) for rows, mine in zip(found, own, strict=True))


def test_layers_that_keep_nothing_still_take_what_passes_take():
    """The first backward pass makes the gradients; the next one needs its memory beside them."""
    sums = LayerSums(profile_with([(0, 70, 0, 50, 0, 0)]))
    static = sums.static_bytes(0, 1, 1)
    for count, running in ((1, 20), (2, 70), (3, 70)):
        assert stage_peak_bytes(sums, 0, 1, moments=stage_moments(Schedule.GPIPE, 0, 2, count), num_replicas=1) == static + running


@given(st.one_of(layers, some_unknown))
def test_tables_hold_every_range(found):
    sums = LayerSums(profile_with(found))
    taken, update = [sums.temporary_table(kind) for kind in KINDS], sums.update_table()
    for start, stop in itertools.combinations(range(len(found) + 1), 2):
        for kind in KINDS:
            assert taken[kind][start, stop] == sums.temporary_bytes(start, stop, kind)
        assert found[stop - 1][1] <= taken[PASS][start, stop] >= taken[FIRST_PASS][start, stop]
        assert update[start, stop] == sums.update_bytes(start, stop) == max(own for _, _, own, *_ in found[start:stop])
    assert np.all(np.tril(update) == 0)


def test_without_temporary_memory_it_is_equation_14():
    profile = uniform_profile(6)
    sums, one = LayerSums(profile), profile.layers[0]
    for stage, count in itertools.product(range(3), (1, 2, 8)):
        amounts = one.parameter_bytes, one.optimizer_bytes, one.gradient_bytes, one.activation_bytes
        expected = peak_bytes(2, *amounts, stage=stage, num_stages=3, num_microbatches=count)
        moments = stage_moments(Schedule.ONE_F_ONE_B, stage, 3, count)
        assert stage_peak_bytes(sums, 0, 2, moments=moments, num_replicas=1) == expected


def test_of_several_stages_the_widest_pass_counts():
    found = [(10, 5, 0, 1, 0), (10, 70, 0, 1, 0), (10, 20, 900, 1, 0), (10, 0, 0, 1, 0)]
    sums, moments = LayerSums(profile_with(found)), np.array([[PASS, 60, 20, 0, 0], [WEIGHT_PART, 0, 0, 100, 0]])
    assert running_bytes(sums, [(0, 1), (2, 4)], moments) == 60 * 10 + 20 * 20 + 10
    assert running_bytes(sums, [(0, 2), (2, 4)], moments) == 100 * 20
    assert running_bytes(sums, [(0, 2), (2, 4)], moments // 10 * [0, 1, 1, 1, 1]) == 900


def test_what_waits_for_weight_parts_counts():
    """Three stages, six micro-batches; the last stage holds one and puts two more off, of which 25 bytes each are kept."""
    found = [(10, 1, 0, 40, 3, 0, 25, 30, 7)]
    sums = LayerSums(profile_with(found))
    static = sums.static_bytes(0, 1, 1)
    for schedule, running in ((Schedule.ONE_F_ONE_B, 13 + 1), (Schedule.ZB_H1, max(13 + 2 * 25 + 30, 3 * 25 + 7))):
        moments = stage_moments(schedule, 2, 3, 6)
        assert stage_peak_bytes(sums, 0, 1, moments=moments, num_replicas=1) == static + running


@pytest.mark.parametrize("worker", ["w00", "w01"])
def test_a_worker_that_uses_its_budget_up_fills_its_device(worker):
    profile = profile_with([(10, 5, 0, 1, 2), (10, 70, 0, 1, 2), (10, 20, 3, 1, 2), (10, 0, 0, 1, 2)])
    plan, sums = grid_plan(4, [2], [4]), LayerSums(profile)
    usable = worker_static_bytes(plan, worker, sums) + 500
    own = allowance(plan, worker, sums)
    assert own.peak_bytes(own.activation_budget(usable)) == usable


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


@pytest.mark.parametrize("sharding", list(OptimizerSharding))
@pytest.mark.parametrize("replicas", [1, 3, 8])
def test_tables_hold_what_each_range_does(sharding, replicas):
    profile = transformer_profile(6, optimizer_sharding=sharding)
    sums = LayerSums(profile)
    table = sums.static_table(replicas)
    for start, stop in itertools.combinations(range(9), 2):
        assert table[start, stop] == sums.held_bytes([(start, stop)], replicas)
