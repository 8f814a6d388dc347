"""Algorithm 1 as published, and the search, which it never beats."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.plan import Policy
from planner.arranging.request import Request
from planner.baseline import algorithm_1
from planner.placing.placement import Holdings
from planner.policies.reshaping import realise
from planner.replan import replan
from tests.builders import snapshot_of, transformer_profile, uniform_profile


def baseline_seconds(profile, num_workers, job, original_dp):
    """Pipeline and iteration time of the baseline's arrangement, by the estimator."""
    cluster = Cluster.uniform(num_workers)
    workers = tuple(worker.id for worker in cluster.workers)
    costs = Costs(profile, cluster)
    request = Request(costs, job, workers, Holdings(None, ()), 0, Policy.FAULT_FREE)
    estimate = realise(request, algorithm_1(costs, job, workers, original_dp)).estimate
    return estimate.pipeline_seconds, estimate.iteration_seconds


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_baseline_is_never_better(data):
    layers, workers, microbatches = (data.draw(st.integers(low, high)) for low, high in ((4, 10), (3, 14), (4, 24)))
    build = data.draw(st.sampled_from([uniform_profile, partial(transformer_profile, tied=False)]))
    profile = build(layers, memory_bytes=data.draw(st.sampled_from([10**12, 4 * 10**9])))
    job = JobSettings(num_microbatches=microbatches, ranges=Ranges(max_pp=8))
    try:
        _, iteration = baseline_seconds(profile, workers, job, data.draw(st.integers(1, min(5, workers, microbatches))))
    except InfeasibleError:
        return
    decision = replan(snapshot_of(profile, Cluster.uniform(workers), microbatches, ranges=job.ranges))
    assert decision.estimate.iteration_seconds <= iteration * (1 + 1e-9)
    assert decision.search.lower_bound_seconds <= iteration * (1 + 1e-12)


@pytest.mark.parametrize("dp", [2, 3, 4])
def test_the_baseline_is_never_faster_in_pipeline_time(dp):
    profile = uniform_profile(12, layer_changes={"gradient_bytes": 0, "optimizer_seconds": 0.0})
    job = JobSettings(num_microbatches=24, ranges=Ranges(min_pp=2, max_pp=6))
    pipeline, _ = baseline_seconds(profile, 11, job, dp)
    decision = replan(snapshot_of(profile, Cluster.uniform(11), 24, ranges=job.ranges))
    assert decision.estimate.pipeline_seconds <= pipeline * (1 + 1e-9)


@pytest.mark.parametrize("most", [1, 40])
def test_of_more_partitions_than_are_tried_the_most_even_ones_are(monkeypatch, most):
    """Of 26 workers and 6 or 7 pipelines of equal layers, the most even partition is the fastest."""
    profile, workers = uniform_profile(12), tuple(worker.id for worker in Cluster.uniform(26).workers)
    costs, job = Costs(profile, Cluster.uniform(26)), JobSettings(num_microbatches=52, ranges=Ranges(min_dp=6, max_dp=7, max_pp=12))
    seconds = algorithm_1(costs, job, workers, 6).seconds
    monkeypatch.setattr("planner.baseline.MOST_CANDIDATES", most)
    assert algorithm_1(costs, job, workers, 6).seconds == seconds


def test_no_candidate_within_the_ranges():
    job = JobSettings(num_microbatches=8, ranges=Ranges(min_pp=4, max_pp=4))
    with pytest.raises(InfeasibleError, match="Algorithm 1"):
        baseline_seconds(uniform_profile(8), 9, job, 2)
