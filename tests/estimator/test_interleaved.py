"""Orders of interleaved pipelines keep the five invariants, are Megatron's where it has any, and are timed as they run."""

from collections import Counter, defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import interleaved
from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.interleaved import groups_of, held_passes, stage_limit, worker_order
from estimator.layers import PASS, StageTimes
from estimator.moments import most_held
from estimator.schedule import LAST_PASSES, Pass, Step
from estimator.split import scheduled_times
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Schedule
from tests.builders import FREE, grid_plan, transformer_profile, uniform_profile

SHAPES = [(workers, virtual, count) for workers in range(1, 6) for virtual in range(2, 5) for count in range(1, 13)]
BOTH = pytest.mark.parametrize("schedule", [Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB])
WAITED = frozenset({Pass.BACKWARD, Pass.BACKWARD_INPUT})
Order = tuple[tuple[int, Step], ...]


def orders(num_workers: int, num_virtual: int, num_microbatches: int, schedule: Schedule = Schedule.INTERLEAVED) -> list[Order]:
    num_stages = num_workers * num_virtual
    return [worker_order(schedule, w, num_workers, num_stages, num_microbatches) for w in range(num_workers)]


def kinds_of(schedule: Schedule, stage: int) -> list[Pass]:
    if schedule is Schedule.INTERLEAVED or stage == 0:
        return [Pass.FORWARD, Pass.BACKWARD]
    return [Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT]


@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_every_microbatch_passes_every_stage_of_its_worker_once_each_way_forward_first(shape, schedule):
    num_workers, num_virtual, count = shape
    for worker, order in enumerate(orders(*shape, schedule)):
        own = range(worker, num_workers * num_virtual, num_workers)
        passed = Counter((step.kind, stage, step.microbatch) for stage, step in order)
        assert passed == Counter((kind, s, m) for s in own for kind in kinds_of(schedule, s) for m in range(count))
        places = {(step.kind, stage, step.microbatch): place for place, (stage, step) in enumerate(order)}
        for stage in own:
            for m in range(count):
                in_order = [places[kind, stage, m] for kind in kinds_of(schedule, stage)]
                assert in_order == sorted(in_order)


@pytest.mark.parametrize("shape", SHAPES)
def test_interleaved_zero_bubble_puts_off_nothing_but_weight_parts(shape):
    """As many of them as the worker's place; everything else is in the order of the schedule with whole passes."""
    split = orders(*shape, Schedule.INTERLEAVED_ZB)
    for worker, (order, whole) in enumerate(zip(split, orders(*shape), strict=True)):
        as_whole = [
            (stage, Step(Pass.BACKWARD, step.microbatch) if step.kind is Pass.BACKWARD_INPUT else step)
            for stage, step in order
            if step.kind is not Pass.BACKWARD_WEIGHT
        ]
        assert tuple(as_whole) == whole
        late, latest = 0, 0
        for place, (_, step) in enumerate(order):
            late += (step.kind is Pass.BACKWARD_INPUT) - (step.kind is Pass.BACKWARD_WEIGHT)
            if step.kind is Pass.BACKWARD_WEIGHT and any(other.kind is Pass.BACKWARD_INPUT for _, other in order[place:]):
                assert late == worker
            latest = max(latest, late)
        assert latest == min(worker + 1, shape[1] * shape[2]) or worker == 0


@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_microbatches_pass_every_stage_in_order(shape, schedule):
    for order in orders(*shape, schedule):
        passed = defaultdict(list)
        for stage, step in order:
            passed[stage, step.kind].append(step.microbatch)
        assert all(microbatches == sorted(microbatches) for microbatches in passed.values())


@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_no_worker_and_no_stage_holds_more_than_its_limit(shape, schedule):
    """Weight parts that are put off make no worker hold more than the first one."""
    num_workers, num_virtual, count = shape
    stride, is_split = groups_of(num_workers, count)[3], schedule.is_split
    for worker, order in enumerate(orders(*shape, schedule)):
        held, most, between, moments, kept = Counter(), Counter(), Counter(), set(), set()
        for stage, step in order:
            held[stage] += (step.kind is Pass.FORWARD) - (step.kind in LAST_PASSES)
            between[stage] += (step.kind is Pass.FORWARD) - (step.kind in WAITED)
            most[stage] = max(most[stage], between[stage])
            own = range(worker, num_workers * num_virtual, num_workers)
            moments.add(tuple(held[s] for s in own))
            kept.add(tuple(between[s] for s in own) + tuple(held[s] - between[s] for s in own))
        fewer = worker if is_split else 2 * worker
        assert max(map(sum, moments)) <= (num_virtual - 1) * stride + 2 * (num_workers - 1) + 1 - fewer
        assert {s: stage_limit(s, num_workers, num_workers * num_virtual, count) for s in most} == most
        peaks = held_passes(worker, num_workers, num_virtual, count, is_split=is_split)
        assert {tuple(row[1:]) for row in peaks.tolist()} <= kept
        assert most_held(peaks) == max(map(sum, moments))
        for weights in ([3, 5, 2, 7, 4, 6, 3, 9], [5, 3, 4, 2, 1, 2, 3, 1]):
            own = [*weights[:num_virtual], *weights[4 : 4 + num_virtual]]
            assert max(peaks[:, 1:] @ own) == max(int(np.dot(moment, own)) for moment in kept)


@pytest.mark.parametrize("num_workers", [2, 3, 5])
@pytest.mark.parametrize("is_split", [False, True])
def test_many_groups_alike_show_what_few_do(num_workers, is_split):
    counts = [*range(1, 4 * num_workers), *(9 * num_workers + rest for rest in range(num_workers)), 14 * num_workers + 1]
    for worker, num_virtual, count in product(range(num_workers), (2, 3), counts):
        told = held_passes(worker, num_workers, num_virtual, count, is_split=is_split)
        every = interleaved._held(worker, num_workers, num_virtual, count, is_split)
        assert told.tolist() == every.tolist()


def test_of_very_many_micro_batches_few_are_looked_at():
    interleaved._passes.cache_clear()
    assert held_passes(0, 4, 50, 65_536).shape == (50, 101)
    assert interleaved._passes.cache_info().misses == 1
    assert len(interleaved._passes(4, 50, interleaved._telling(4, 65_536), False)[0][0]) < 5_000


def test_moments_halfway_between_others_are_left_out():
    """A worker takes up its first stage as it lets go of its other one: what it holds between the two ends matters to no peak."""
    assert held_passes(1, 4, 2, 8).tolist() == [[PASS, 5, 4, 0, 0], [PASS, 8, 1, 0, 0]]
    assert len(held_passes(3, 16, 8, 64)) == 8


@BOTH
@pytest.mark.parametrize("shape", SHAPES)
def test_all_workers_together_admit_an_execution(shape, schedule):
    num_stages = shape[0] * shape[1]
    lists = [list(order) for order in orders(*shape, schedule)]
    done: set[tuple[Pass, int, int]] = set()
    while any(lists):
        before = len(done)
        for left in lists:
            while left and is_ready(*left[0], num_stages, done):
                stage, step = left.pop(0)
                done.add((step.kind, stage, step.microbatch))
        assert len(done) > before, "deadlock"


def is_ready(stage: int, step: Step, num_stages: int, done: set[tuple[Pass, int, int]]) -> bool:
    if step.kind is Pass.FORWARD:
        return stage == 0 or (Pass.FORWARD, stage - 1, step.microbatch) in done
    if step.kind is Pass.BACKWARD_WEIGHT or stage == num_stages - 1:
        return True
    return any((kind, stage + 1, step.microbatch) in done for kind in WAITED)


def megatron(worker: int, num_workers: int, num_virtual: int, num_microbatches: int) -> list[tuple[int, Step]]:
    """The order of Megatron-LM's forward_backward_pipelining_with_interleaving, for a multiple of the workers."""
    total = num_virtual * num_microbatches

    def passed(index: int, kind: Pass) -> tuple[int, Step]:
        chunk = index % (num_workers * num_virtual) // num_workers
        chunk = chunk if kind is Pass.FORWARD else num_virtual - 1 - chunk
        microbatch = index // (num_workers * num_virtual) * num_workers + index % num_workers
        return chunk * num_workers + worker, Step(kind, microbatch)

    warmup = min(total, (num_workers - worker - 1) * 2 + (num_virtual - 1) * num_workers)
    result = [passed(k, Pass.FORWARD) for k in range(warmup)]
    for k in range(total - warmup):
        result += [passed(warmup + k, Pass.FORWARD), passed(k, Pass.BACKWARD)]
    return result + [passed(k, Pass.BACKWARD) for k in range(total - warmup, total)]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[2] % shape[0] == 0])
def test_with_a_multiple_of_the_workers_the_orders_are_megatrons(shape):
    assert [list(order) for order in orders(*shape)] == [megatron(worker, *shape) for worker in range(shape[0])]


@given(st.integers(1, 40), st.integers(1, 200))
def test_groups_have_a_microbatch_for_every_worker_and_hardly_more(num_workers, count):
    groups, size, larger, stride = groups_of(num_workers, count)
    assert groups * size + larger == count
    assert larger < groups
    assert stride >= max(num_workers, size + (larger > 0))
    assert size >= min(num_workers, count)
    if count >= num_workers**2:
        assert stride <= num_workers + 1


@BOTH
@settings(deadline=None, max_examples=100)
@given(num_workers=st.integers(1, 4), num_virtual=st.integers(2, 4), count=st.integers(1, 12), data=st.data())
def test_the_recurrence_is_the_longest_way_through_the_orders(schedule, num_workers, num_virtual, count, data):
    num_stages = num_workers * num_virtual
    seconds = st.lists(st.integers(1, 9), min_size=num_stages, max_size=num_stages)
    parts = [data.draw(seconds) for _ in range(3)]
    delays = data.draw(st.lists(st.integers(0, 3), min_size=num_stages - 1, max_size=num_stages - 1))
    ends = simulated(orders(num_workers, num_virtual, count, schedule), [*map(np.array, parts)], delays)
    expected = [max(end for (kind, s, _), end in ends.items() if s == stage and kind in LAST_PASSES) for stage in range(num_stages)]
    stages = [StageTimes(*times, 0.0) for times in zip(*parts, strict=True)]
    times = scheduled_times(schedule, stages, delays, count, num_workers=num_workers)
    assert times.stage_end_seconds == tuple(expected)
    assert times.pipeline_seconds == max(expected)


def simulated(lists: list[Order], parts: list[np.ndarray], delays: list[int]) -> dict[tuple[Pass, int, int], float]:
    """When each pass ends, from when its worker and what it waits for are through."""
    forward, backward_input, weight = parts
    seconds = {
        Pass.FORWARD: forward,
        Pass.BACKWARD: backward_input + weight,
        Pass.BACKWARD_INPUT: backward_input,
        Pass.BACKWARD_WEIGHT: weight,
    }
    ends: dict[tuple[Pass, int, int], float] = {}
    free, places = [0.0] * len(lists), [0] * len(lists)
    while any(place < len(order) for place, order in zip(places, lists, strict=True)):
        for worker, order in enumerate(lists):
            while places[worker] < len(order) and is_ready(*order[places[worker]], len(forward), set(ends)):
                stage, step = order[places[worker]]
                neighbour = stage - 1 if step.kind is Pass.FORWARD else stage + 1
                arrival = 0.0
                if step.kind is not Pass.BACKWARD_WEIGHT and 0 <= neighbour < len(forward):
                    sent = {Pass.FORWARD} if step.kind is Pass.FORWARD else WAITED
                    arrival = (
                        max(ends.get((kind, neighbour, step.microbatch), 0.0) for kind in sent) + delays[min(stage, neighbour)]
                    )
                free[worker] = max(free[worker], arrival) + float(seconds[step.kind][stage])
                ends[step.kind, stage, step.microbatch] = free[worker]
                places[worker] += 1
    return ends


@pytest.mark.parametrize(("schedule", "bubble_seconds"), [(Schedule.INTERLEAVED, 0.030), (Schedule.INTERLEAVED_ZB, 0.010)])
@pytest.mark.parametrize(("num_workers", "num_virtual", "count"), [(2, 2, 4), (4, 2, 8), (4, 3, 12), (3, 4, 3)])
def test_equal_stages_without_delays_have_bubbles_of_the_papers_size(schedule, bubble_seconds, num_workers, num_virtual, count):
    """Narayanan et al., section 2.2: (p - 1) * (t_f + t_b) / v, of a whole worker's times; a third of it with split passes."""
    profile = uniform_profile(num_workers * num_virtual, inter_host=FREE, intra_host=FREE)
    plan = grid_plan(profile.num_layers, [num_workers], [count], schedule=schedule, stages_per_worker=num_virtual)
    price = estimate(plan, profile, Cluster.uniform(num_workers))
    assert price.pipeline_seconds == pytest.approx(count * num_virtual * 0.030 + (num_workers - 1) * bubble_seconds)


def test_memory_is_that_of_all_stages_of_a_worker_and_shared_weights_count_once():
    profile = transformer_profile(6, tied=True)
    plan = grid_plan(8, [2], [4], schedule=Schedule.INTERLEAVED, stages_per_worker=2)
    cluster = Cluster.uniform(2)
    peaks = {stage.worker: stage.peak_memory_bytes for stage in estimate(plan, profile, cluster).stages}
    costs, layer_bytes = Costs(profile, cluster), 600_000_000
    assert [stage.layers for stage in plan.stages_of["w01"]] == [range(2, 4), range(6, 8)]
    held = held_passes(1, 2, 2, 4)[:, 1:3] @ np.array([costs.sums.activation_bytes(a, b) for a, b in ((2, 4), (6, 8))])
    assert peaks["w01"] == 4 * layer_bytes + held.max()  # the head brings a copy of the embedding
    single = grid_plan(8, [1], [4], schedule=Schedule.INTERLEAVED, stages_per_worker=4)
    static = estimate(single, profile, cluster).stages[0].peak_memory_bytes - costs.sums.activation_bytes(0, 8)
    assert static == 7 * layer_bytes
