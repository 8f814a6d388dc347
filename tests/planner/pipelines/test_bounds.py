"""Bounds on splits, and what is found within them, against every split."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from estimator.layers import LayerSums
from estimator.split import scheduled_times
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.pipelines import partition
from planner.pipelines.bounds import greatest_bound, most_apart
from planner.pipelines.exploring import explore
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.partition import CLOSE
from planner.pipelines.pricing import ROUNDING, neighbours
from planner.pipelines.shifting import neighbours_below
from planner.pipelines.zero_bubble import partitioner_for
from tests.builders import layer, profile_of
from tests.planner.oracle import splits

parts = st.sampled_from([0.0, 0.002, 0.005, 0.011])
speeds = st.sampled_from([0.5, 0.8, 1.0])
SCHEDULES = [Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2]


@st.composite
def chains(draw):
    """Layers, the speeds of a pipeline's workers, its micro-batches, what reducing layers takes, and its schedule."""
    layers = draw(st.lists(st.tuples(parts, parts, parts, parts), min_size=2, max_size=6))
    profile = profile_of(
        [
            layer(f"l{n}", forward_seconds=0.001 + f, backward_input_seconds=i, backward_weight_seconds=w, optimizer_seconds=u)
            for n, (f, i, w, u) in enumerate(layers)
        ],
        inter_host=LinkCost(alpha_seconds=draw(st.sampled_from([0.0, 0.001, 0.006])), beta_seconds_per_byte=0.0),
    )
    workers = draw(st.lists(speeds, min_size=1, max_size=4))
    assume(len(workers) <= len(layers))
    tail = np.cumsum([draw(parts) for _ in range(len(layers) + 1)])
    return profile, workers, draw(st.integers(1, 9)), tail, draw(st.sampled_from(SCHEDULES))


def objective(chain, cuts) -> float:
    """The last stage to be through with its passes and its reduction, and then the longest update."""
    profile, workers, microbatches, tail, schedule = chain
    sums, ranges = LayerSums(profile), list(itertools.pairwise(cuts))
    stages = [sums.times(a, b, speed) for (a, b), speed in zip(ranges, workers, strict=True)]
    delays = [profile.network.inter_host.transfer_seconds(profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
    ends = scheduled_times(schedule, stages, delays, microbatches).stage_end_seconds
    reduced = max(end + tail[b] - tail[a] + tail[0] for end, (a, b) in zip(ends, ranges, strict=True))
    return reduced + max(stage.optimizer_seconds for stage in stages)


@given(chains())
@settings(max_examples=300, deadline=None)
def test_no_split_is_faster_than_its_bounds_and_close_ones_are_found(chain):
    profile, workers, microbatches, tail, schedule = chain
    least = min(objective(chain, cuts) for cuts in splits(profile.num_layers, len(workers)))
    partitioner = partitioner_for(schedule)(LayerSums(profile), schedule, profile.network.inter_host, 1)
    attained = partitioner.attain([WorkerKind(speed, 10**12) for speed in workers], microbatches, tail, 0.0)
    split = partitioner.best(attained)
    assert attained.seconds <= split.least_seconds <= least * (1 + 1e-9)
    assert split.seconds == pytest.approx(objective(chain, split.cuts), rel=1e-9)
    assert split.seconds <= least * (1 + CLOSE)


@given(chains(), st.floats(0.0, 1e-4), st.floats(0.0, 1e-4))
@settings(max_examples=200, deadline=None)
def test_what_was_found_for_other_reductions_is_close_for_these_and_bounds_stay_bounds(chain, less_seconds, later_seconds):
    profile, workers, microbatches, tail, schedule = chain
    partitioner = partitioner_for(schedule)(LayerSums(profile), schedule, profile.network.inter_host, 1)
    kinds, later = [WorkerKind(speed, 10**12) for speed in workers], tail * (1 - less_seconds) + later_seconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "MOST_SPLITS", 0)
        partitioner.best(partitioner.attain(kinds, microbatches, tail, 0.0))
        attained = partitioner.attain(kinds, microbatches, later, 0.0)
    split = partitioner.best(attained)
    least = min(
        objective((profile, workers, microbatches, later, schedule), cuts) for cuts in splits(profile.num_layers, len(workers))
    )
    assert attained.seconds <= split.least_seconds <= least * (1 + 1e-9)
    assert split.seconds == pytest.approx(objective((profile, workers, microbatches, later, schedule), split.cuts), rel=1e-9)
    assert split.seconds <= least * (1 + 2 * CLOSE)


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_reductions_of_a_stage_differ_at_most_by_what_is_told(data):
    """Over all stages that take no longer than the reach, and layers that are reduced together."""
    count = data.draw(st.integers(1, 7))
    steps = st.lists(st.integers(0, 9), min_size=count + 1, max_size=count + 1)
    one, other, both = (np.cumsum(data.draw(steps)).astype(float) for _ in range(3))
    both -= both[0]
    reach, common = float(data.draw(st.integers(0, 40))), data.draw(st.integers(0, count))
    apart = one - other
    stages = [(a, b) for a in range(count + 1) for b in range(a, count + 1) if both[b] - both[a] <= reach]
    least = max(
        *(abs(apart[b] - apart[a] + apart[0]) for a, b in stages),
        *(abs(apart[layer]) for layer in range(common + 1)),
    )
    steps_apart = np.abs(np.diff(apart))
    most = max(max(float(steps_apart[a:b].sum()) for a, b in stages) + abs(apart[0]), np.abs(apart[: common + 1]).max())
    assert least <= most_apart(both, one, other, reach, common) == most


@given(chains(), st.sampled_from([0.3, 0.6, 2.0]), st.data())
@settings(max_examples=300, deadline=None)
def test_neighbours_are_ruled_out_by_their_bounds_alone(chain, share, data):
    """In the order of all neighbours: those that fit memory and of which no stage's bound is above the time."""
    profile, workers, microbatches, tail, schedule = chain
    sums = LayerSums(profile)
    partitioner = partitioner_for(schedule)(sums, schedule, profile.network.inter_host, 1)
    usable = int(share * sums.static_bytes(0, profile.num_layers, 1)) + 10**7
    asked = partitioner.attain([WorkerKind(speed, usable) for speed in workers], microbatches, tail, 0.0).chain
    cuts = np.array(data.draw(st.sampled_from(list(splits(profile.num_layers, len(workers))))))
    model, options = partitioner.priced_model, neighbours(cuts)
    bounds = np.array([greatest_bound(model, asked, option) for option in options])
    for below in (*bounds[bounds < np.inf], np.inf):
        expected = options[(bounds <= below * (1 + ROUNDING)) & (bounds < np.inf)] if len(options) else options
        assert np.array_equal(neighbours_below(model, asked, cuts, below), expected)


@given(chains(), st.data())
@settings(max_examples=200, deadline=None)
def test_few_splits_are_explored_to_the_last(chain, data):
    """From any split to the fastest one, and to a bound that says so."""
    profile, workers, microbatches, tail, schedule = chain
    partitioner = partitioner_for(schedule)(LayerSums(profile), schedule, profile.network.inter_host, 1)
    attained = partitioner.attain([WorkerKind(speed, 10**12) for speed in workers], microbatches, tail, 0.0)
    found = list(splits(profile.num_layers, len(workers)))
    cuts = np.array(data.draw(st.sampled_from(found)))
    bound, seconds, best = explore(partitioner.priced_model, attained.chain, attained.seconds, cuts, 0.0)
    least = min(objective(chain, option) for option in found)
    assert seconds == pytest.approx(least, rel=1e-9)
    assert objective(chain, best) == pytest.approx(least, rel=1e-9)
    assert bound == pytest.approx(least, rel=1e-3)


def test_where_splits_are_many_none_is_priced():
    """40 equal layers over twelve stages: thousands of splits have no stage with more than four."""
    profile = profile_of([layer(f"l{n}", forward_seconds=0.001) for n in range(40)])
    partitioner = partitioner_for(Schedule.ONE_F_ONE_B)(LayerSums(profile), Schedule.ONE_F_ONE_B, profile.network.inter_host, 1)
    attained = partitioner.attain([WorkerKind(1.0, 10**12)] * 12, 9000, np.zeros(41), 0.0)
    cuts = np.array([0, *range(1, 12), 40])
    bound, seconds, best = explore(partitioner.priced_model, attained.chain, attained.seconds, cuts, 0.0)
    assert (bound, list(best)) == (attained.seconds, list(cuts))
    assert seconds > 2 * attained.seconds
