"""Whether layers fit the memory of a pipeline, against every split and every order of its workers."""

import random
from itertools import pairwise, permutations

import pytest

from estimator.layers import LayerSums
from estimator.memory import holds_all, stage_peak_bytes
from estimator.schedule import scheduled_in_flight
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Schedule
from planner.legality import violations
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.partition import Partitioner
from planner.replan import replan
from tests.builders import FAST, layer, profile_of, snapshot_of
from tests.planner.oracle import best_pipeline_seconds, splits

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2)


def profile_with(chance):
    """A few layers, some of which are large."""
    return profile_of(
        [
            layer(
                f"l{n}",
                optimizer_bytes=chance.choice([100, 400, 1600]) * 10**6,
                activation_bytes=chance.choice([10, 50, 300]) * 10**6,
            )
            for n in range(chance.randint(2, 7))
        ]
    )


def fits_in_order(sums, schedule, sizes, microbatches):
    """Whether some split fits workers of these memories."""
    held = [scheduled_in_flight(schedule, stage, len(sizes), microbatches) for stage in range(len(sizes))]
    return any(
        all(
            stage_peak_bytes(sums, a, b, num_in_flight=own, num_replicas=1, is_all=holds_all(schedule, own, microbatches)) <= size
            for (a, b), own, size in zip(pairwise(cuts), held, sizes, strict=True)
        )
        for cuts in splits(sums.profile.num_layers, len(sizes))
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda item: item.value)
def test_what_fits_and_in_which_order_is_known_exactly(schedule):
    chance, num_fitting = random.Random(3), 0
    for _ in range(300):
        profile, microbatches = profile_with(chance), chance.randint(1, 5)
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
