"""Which numbers of pipelines are tried first."""

from collections import Counter
from itertools import pairwise, takewhile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.profile import Profile
from planner.arranging.degrees import PER_OCTAVE, turning_points_first
from planner.replan import replan
from tests.builders import snapshot_of

NUMBERS = st.lists(st.integers(1, 300), min_size=1, max_size=80, unique=True)


def first_of(ordered):
    """Those that come before the others, where the numbers were given in ascending order."""
    return [ordered[0], *(later for _, later in takewhile(lambda pair: pair[0] < pair[1], pairwise(ordered)))]


@given(NUMBERS, st.integers(1, 400), st.integers(1, 2000))
def test_all_numbers_stay_and_each_part_in_its_order(given_numbers, num_workers, num_microbatches):
    ordered = turning_points_first(given_numbers, num_workers, num_microbatches)
    assert sorted(ordered) == sorted(given_numbers)
    ranks = [given_numbers.index(dp) for dp in ordered]
    assert sum(later < sooner for sooner, later in pairwise(ranks)) <= 1


@given(st.integers(1, 400), st.integers(1, 2000))
def test_every_number_has_one_close_to_it_among_the_first(num_workers, num_microbatches):
    everything = list(range(1, 301))
    first = first_of(turning_points_first(everything, num_workers, num_microbatches))
    assert len(first) <= PER_OCTAVE * 9
    assert all(any(max(dp, other) <= min(dp, other) * 2 ** (1 / PER_OCTAVE) for other in first) for dp in everything)


def test_numbers_that_leave_pipelines_fewer_microbatches_or_more_workers_come_first():
    first = first_of(turning_points_first(list(range(100, 200)), 1024, 819))
    assert first == [100, 103, 117, 137, 146, 164, 182]
    assert [-(-819 // dp) for dp in (102, 103, 116, 117, 136, 137, 163, 164)] == [9, 8, 8, 7, 7, 6, 6, 5]
    assert [1024 // dp for dp in (146, 147)] == [7, 6]


def test_the_best_of_2048_numbers_of_pipelines_is_found_though_few_are_searched():
    profile = codec.load(Profile, Path(__file__).parents[3] / "profiles" / "models" / "llama2-7b.h100-80g.json")
    assert replan(snapshot_of(profile, Cluster.uniform(2048), 4096)).search.gap_ratio < 0.01


def test_one_pipeline_may_be_shorter_by_two_stages_where_the_others_would_not_fit():
    """204 of 205 pipelines have four micro-batches: ten workers for each are two too many, and one of nine would be the slowest."""
    profile = codec.load(Profile, Path(__file__).parents[3] / "profiles" / "models" / "llama2-7b.h100-80g.json")
    plan = replan(snapshot_of(profile, Cluster.uniform(2048), 819)).plan
    assert Counter((len(p.stages), p.num_microbatches) for p in plan.pipelines) == {(10, 4): 204, (8, 3): 1}
