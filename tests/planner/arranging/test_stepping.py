"""Steps of arrangements without names against the estimator's price of the plan."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from estimator.estimate import estimate
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Schedule
from planner.arranging.stepping import Kind, Stepper
from restorer.ordering import QuickOrder
from restorer.rounds import fastest_rounds
from tests.builders import even_cuts, grid_plan, transformer_profile


def quick_rounds(buckets, num_bytes, *times):
    return QuickOrder.of(buckets, num_bytes).rounds(*times)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5),
    st.lists(st.sampled_from([1.0, 0.8, 0.3]), min_size=30, max_size=30),
    st.booleans(),
    st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2]),
)
def test_a_step_is_what_the_estimator_says(pipelines, speeds, tied, schedule):
    profile = transformer_profile(6, tied=tied)
    lengths, counts = zip(*pipelines, strict=True)
    uniform = Cluster.uniform(sum(lengths))
    workers = zip(uniform.workers, speeds, strict=False)
    cluster = uniform.with_workers(tuple(replace(worker, speed_ratio=speed) for worker, speed in workers))
    plan = grid_plan(8, lengths, counts, schedule=schedule)
    rest = iter(speeds)
    kinds = Counter(Kind(even_cuts(8, length), count, tuple(islice(rest, length))) for length, count in pipelines)
    link = profile.network.inter_host
    seconds = Stepper(Costs(profile, cluster), schedule, link).seconds(kinds, link)
    price = estimate(replace(plan, rounds=fastest_rounds(plan, Costs(profile, cluster))), profile, cluster)
    quick = replace(plan, rounds=fastest_rounds(plan, Costs(profile, cluster), quick_rounds))
    if sum(lengths) > 1:
        assert price.iteration_seconds <= seconds * (1 + 1e-12)
        assert seconds == pytest.approx(estimate(quick, profile, cluster).iteration_seconds, rel=1e-12)
