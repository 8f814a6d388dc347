"""Whether layers fit the memory of a pipeline, against every split and every order of its workers."""

import math
import random
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest

from estimator.layers import LayerSums
from estimator.memory import stage_peak_bytes
from estimator.moments import stage_moments
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.plan import Schedule
from planner.legality import violations
from planner.pipelines import partition
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.partition import Partitioner
from planner.pipelines.zero_bubble import partitioner_for
from planner.replan import replan
from tests.builders import FAST, layer, profile_of, snapshot_of
from tests.planner.oracle import best_pipeline_seconds, splits

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2)


def profile_with(chance, *, has_parts=False):
    """A few layers, some of which are large."""
    return profile_of(
        [
            layer(
                f"l{n}",
                optimizer_bytes=chance.choice([100, 400, 1600]) * 10**6,
                activation_bytes=chance.choice([10, 50, 300]) * 10**6,
                **(parts_of(chance) if has_parts else {}),
            )
            for n in range(chance.randint(2, 7))
        ]
    )


def parts_of(chance):
    """What passes and parts of backward passes take and keep."""
    names = ("temporary", "first_temporary", "input_temporary", "weight_temporary", "first_weight_temporary", "deferred")
    return {f"{name}_bytes": chance.choice([1, 40, 200, 600]) * 10**6 for name in names}


def fits_in_order(sums, schedule, sizes, microbatches):
    """Whether some split fits workers of these memories."""
    moments = [stage_moments(schedule, stage, len(sizes), microbatches) for stage in range(len(sizes))]
    return any(
        all(
            stage_peak_bytes(sums, a, b, moments=own, num_replicas=1) <= size
            for (a, b), own, size in zip(pairwise(cuts), moments, sizes, strict=True)
        )
        for cuts in splits(sums.profile.num_layers, len(sizes))
    )


@pytest.mark.parametrize("has_parts", [False, True], ids=["activations", "parts"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda item: item.value)
def test_what_fits_and_in_which_order_is_known_exactly(schedule, has_parts):
    chance, num_fitting = random.Random(3), 0
    for _ in range(300):
        profile, microbatches = profile_with(chance, has_parts=has_parts), chance.randint(1, 5)
        sums, length = LayerSums(profile), chance.randint(2, min(4, profile.num_layers))
        partitioner = Partitioner(sums, schedule, FAST, 1)
        whole = sums.static_bytes(0, profile.num_layers, 1)
        sizes = [int(whole * chance.choice([0.4, 0.6, 0.9])) for _ in range(length)]
        kinds = [WorkerKind(1.0, size) for size in sizes]
        assert partitioner.fits(kinds, microbatches) == fits_in_order(sums, schedule, sizes, microbatches)
        order = partitioner.order_that_fits(kinds, microbatches)
        if len(set(sizes)) > 1:
            exists = any(fits_in_order(sums, schedule, own, microbatches) for own in set(permutations(sizes)))
            assert (order is not None) == exists
        if order is not None:
            assert sorted(order) == sorted(kinds)
            assert partitioner.fits(order, microbatches)
            num_fitting += 1
    assert num_fitting >= 30


@pytest.mark.parametrize("schedule", [Schedule.ZB_H1, Schedule.ZB_H2, Schedule.INTERLEAVED_ZB], ids=lambda item: item.value)
def test_what_waits_for_weight_parts_may_be_more_than_there_is_room_for(schedule):
    """Three times the activations: with these a plan fits that then does not, and with room for them it does again."""
    names = [f"l{n}" for n in range(8)]
    kept = profile_of([layer(name, deferred_bytes=50_000_000) for name in names])
    more = profile_of([layer(name, deferred_bytes=150_000_000) for name in names])
    ranges = Ranges(min_dp=1, max_dp=1, min_pp=4, max_pp=4)
    settings = JobSettings(num_microbatches=12, schedule=schedule, ranges=ranges)

    def planned(profile, memory_bytes):
        sized = replace(profile, device=replace(profile.device, memory_bytes=memory_bytes))
        return replan(replace(snapshot_of(sized, Cluster.uniform(4), 12), settings=settings))

    most = max(stage.peak_memory_bytes for stage in planned(kept, 80 * 10**9).estimate.stages)
    assert planned(kept, most).estimate is not None
    with pytest.raises(InfeasibleError):
        planned(more, most)
    needed = max(stage.peak_memory_bytes for stage in planned(more, 80 * 10**9).estimate.stages)
    assert needed > most
    assert planned(more, needed).estimate.iteration_seconds == planned(more, 80 * 10**9).estimate.iteration_seconds


def test_a_layer_that_fits_later_stages_alone_is_given_to_one():
    layers = [
        layer(
            f"l{n}",
            forward_seconds=seconds,
            backward_input_seconds=seconds,
            gradient_bytes=0,
            optimizer_seconds=0.0,
            optimizer_bytes=(1_600 if n == 2 else 400) * 10**6,
        )
        for n, seconds in enumerate((0.03, 0.01, 0.02, 0.01, 0.01))
    ]
    profile = profile_of(layers, memory_bytes=1_805_000_000)  # two micro-batches in flight beside the large layer, and no more
    asked = snapshot_of(profile, Cluster.uniform(5), 4)
    decision, best = replan(asked), best_pipeline_seconds(profile, 5, 4, 1)
    assert violations(asked, decision) == ()
    assert decision.search.lower_bound_seconds <= best * (1 + 1e-3)
    assert decision.estimate.pipeline_seconds == pytest.approx(best)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda item: item.value)
def test_bounds_do_not_depend_on_what_was_asked_before(schedule, monkeypatch):
    """Splits that were good for other micro-batches spare work, whether they fit or not, and change neither bounds nor splits."""
    monkeypatch.setattr(partition, "MOST_SPLITS", 0)
    chance, num_fitting = random.Random(7), 0
    for _ in range(100):
        profile, length = profile_with(chance, has_parts=schedule.is_split), chance.randint(2, 4)
        sums = LayerSums(profile)
        if length > profile.num_layers:
            continue
        usable = int(sums.static_bytes(0, profile.num_layers, 1) * chance.choice([0.4, 0.6, 0.9]))
        kinds, tail = (WorkerKind(1.0, usable),) * length, np.zeros(profile.num_layers + 1)
        asked_before = partitioner_for(schedule)(sums, schedule, FAST, 1)
        for microbatches in chance.sample(range(1, 12), 4):
            fresh = partitioner_for(schedule)(sums, schedule, FAST, 1).attain(kinds, microbatches, tail)
            again = asked_before.attain(kinds, microbatches, tail)
            assert again.seconds == fresh.seconds
            assert np.array_equal(again.starts, fresh.starts)
            num_fitting += fresh.seconds < math.inf
    assert num_fitting >= 50
