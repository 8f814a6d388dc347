"""Splits of layers over interleaved pipelines of little memory, against all splits there are."""

import itertools
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest

from estimator.layers import LayerSums
from estimator.memory import running_bytes
from estimator.moments import worker_moments
from estimator.split import scheduled_times
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.pipelines.chunks import ChunkSplitter
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.pricing import neighbours
from planner.pipelines.tails import no_reductions, stage_reductions
from tests.builders import profile_of
from tests.planner.tight import LINK, tight_layers

SLOW = LinkCost(alpha_seconds=1e-4, beta_seconds_per_byte=2e-10)


def crew(chance, num_workers, whole_bytes):
    """Workers that differ in speed and memory, hardly enough for all layers together."""
    share = chance.choice([1.2, 1.5, 1.8, 2.2, 3.0]) / num_workers
    return tuple(
        WorkerKind(chance.choice([1.0, 1.0, 0.8, 0.5]), int(whole_bytes * share * chance.choice([0.5, 0.7, 1.0, 1.0, 1.5])))
        for _ in range(num_workers)
    )


def test_splits_fit_nearly_always_where_any_does_and_are_close_to_the_best():
    chance, ratios, num_missed = random.Random(4), [], 0
    for _ in range(250):
        num_layers, num_workers, virtual = chance.randint(7, 11), chance.randint(2, 4), chance.randint(2, 3)
        if num_workers * virtual > num_layers:
            continue
        profile = profile_of(tight_layers(chance, num_layers), inter_host=LINK)
        sums, schedule = LayerSums(profile), chance.choice([Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB])
        splitter, nothing, count = ChunkSplitter(sums, schedule, LINK, 1), no_reductions(num_layers), chance.randint(1, 8)
        kinds = crew(chance, num_workers, sums.static_bytes(0, num_layers, 1) + sums.activation_bytes(0, num_layers))
        inner = itertools.combinations(range(1, num_layers), num_workers * virtual - 1)
        every = np.array([(0, *cuts, num_layers) for cuts in inner])
        fitting = every[splitter.lacking(every, kinds, count) == 0]
        if not len(fitting):
            continue
        found = splitter.best(kinds, virtual, count, nothing)
        if found.lacking_bytes:
            num_missed += 1
        else:
            ratios.append(found.seconds / splitter.seconds(fitting, kinds, count, nothing).min())
    assert len(ratios) >= 100
    assert num_missed <= 1
    assert min(ratios) > 1 - 1e-9
    assert sum(ratio > 1.01 for ratio in ratios) <= len(ratios) // 20


BOTH = pytest.mark.parametrize("schedule", [Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB])


@BOTH
def test_a_longer_search_ends_where_no_neighbour_that_fits_is_faster_and_hardly_any_split(schedule):
    """Reductions, updates and links take their time, too, and workers differ; of some jobs memory is tight."""
    chance, ratios = random.Random(6), []
    for _ in range(60):
        num_workers, virtual, count = chance.randint(2, 4), chance.randint(2, 3), chance.randint(1, 9)
        num_layers = num_workers * virtual + chance.randint(1, 4)
        layers = [
            replace(own, gradient_bytes=chance.randint(1, 10**8), optimizer_seconds=chance.random() * 0.1)
            for own in tight_layers(chance, num_layers)
        ]
        profile = profile_of(layers, inter_host=SLOW)
        sums = LayerSums(profile)
        splitter, reductions = ChunkSplitter(sums, schedule, SLOW, 1), stage_reductions(profile, 3, num_workers, lambda _: SLOW)
        kinds = crew(chance, num_workers, 2 * (sums.static_bytes(0, num_layers, 1) + sums.activation_bytes(0, num_layers)))
        first = splitter.best(kinds, virtual, count, reductions)
        if first.lacking_bytes:
            continue
        found = splitter.bettered(first, kinds, count, reductions)
        near = neighbours(np.array(found.cuts))
        near = near[splitter.lacking(near, kinds, count) == 0]
        every = splitter.every(num_workers * virtual)
        every = every[splitter.lacking(every, kinds, count) == 0]
        assert found.lacking_bytes == 0
        assert found.seconds <= first.seconds * (1 + 1e-12)
        assert splitter.seconds(near, kinds, count, reductions).min(initial=np.inf) >= found.seconds * (1 - 1e-8)
        ratios.append(found.seconds / splitter.seconds(every, kinds, count, reductions).min())
    assert len(ratios) >= 40
    assert min(ratios) > 1 - 1e-9
    assert statistics.mean(ratios) < 1.002


@BOTH
@pytest.mark.parametrize(("num_workers", "virtual", "count"), [(1, 1, 4), (2, 3, 5), (3, 2, 7), (4, 2, 8)])
def test_many_splits_take_and_lack_what_the_estimator_tells_of_each(schedule, num_workers, virtual, count):
    """More of them than are timed at once, on workers of different speeds; of each layer another amount waits for weight parts."""
    chance = random.Random(5)
    sizes = ("deferred_bytes", "input_temporary_bytes", "weight_temporary_bytes")
    layers = [replace(own, **{name: chance.randint(1, 10**8) for name in sizes}) for own in tight_layers(chance, 11)]
    sums = LayerSums(profile_of(layers, inter_host=LINK))
    splitter, kinds = ChunkSplitter(sums, schedule, LINK, 1), crew(chance, num_workers, sums.static_bytes(0, 11, 1))
    options = splitter.every(num_workers * virtual)[:100]
    through = splitter.through_seconds(options, kinds, count, no_reductions(11))
    update, lacks = splitter.update_seconds(options, kinds), splitter.lacks(options, kinds, count)
    for row, cuts in enumerate(map(tuple, options.tolist())):
        assert (through[row], update[row]) == pytest.approx(alone(sums, schedule, kinds, cuts, count), rel=1e-12)
        for place, kind in enumerate(kinds):
            own = list(itertools.pairwise(cuts))[place::num_workers]
            running = running_bytes(sums, own, worker_moments(schedule, place, num_workers, count, virtual))
            assert lacks[row, place] == sums.held_bytes(own, 1) + running - kind.usable_bytes


def alone(sums, schedule, kinds, cuts, count):
    """When a split's workers are through, and their longest update."""
    stages = [sums.times(a, b, kinds[n % len(kinds)].speed_ratio) for n, (a, b) in enumerate(itertools.pairwise(cuts))]
    crossings = cuts[1:-1] if len(kinds) > 1 else []
    delays = [LINK.transfer_seconds(sums.profile.layers[stop - 1].output_bytes) for stop in crossings]
    times = scheduled_times(schedule, stages, delays, count, num_workers=len(kinds))
    updates = [sum(stage.optimizer_seconds for stage in stages[place :: len(kinds)]) for place in range(len(kinds))]
    return max(times.stage_end_seconds[: len(kinds)]), max(updates)
