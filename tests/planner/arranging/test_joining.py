"""Bounds that count on reductions waiting for each other, against plans of all kinds."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from estimator.estimate import estimate
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster, worker_name
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Pipeline, Plan, Policy, Schedule, Stage
from kintsugi.core.profile import LinkCost, Profile
from planner.arranging.joining import MOST_WORK, Effort, join
from planner.arranging.request import Request, search_for
from planner.pipelines.partition import Partitioner
from planner.pipelines.timetable import Timetable
from planner.placing.placement import Holdings
from planner.replan import replan
from restorer.rounds import fastest_rounds
from tests.builders import layer, profile_of, snapshot_of, uniform_profile

parts = st.sampled_from([0.0, 0.002, 0.005, 0.011])
sizes = st.sampled_from([0, 10_000_000, 60_000_000, 200_000_000])
MODELS = Path(__file__).parents[3] / "profiles" / "models"
schedules = st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.ZB_H1, Schedule.ZB_H2])


@st.composite
def profiles(draw):
    """Layers whose reductions take about as long as their passes; the first and the last may be tied."""
    count = draw(st.integers(2, 7))
    is_tied = draw(st.booleans())
    layers = [
        layer(
            f"l{n}",
            forward_seconds=0.001 + draw(parts),
            backward_input_seconds=draw(parts),
            backward_weight_seconds=draw(parts),
            optimizer_seconds=draw(parts),
            gradient_bytes=draw(sizes),
            tied_to="l0" if is_tied and n == count - 1 else None,
        )
        for n in range(count)
    ]
    link = LinkCost(alpha_seconds=draw(st.sampled_from([0.0, 0.001])), beta_seconds_per_byte=draw(st.sampled_from([4e-11, 2e-10])))
    return profile_of(layers, inter_host=link)


@st.composite
def plans(draw, num_layers: int, schedule: Schedule):
    """Two to four pipelines of any lengths and cuts."""
    names, pipelines = itertools.count(), []
    for _ in range(draw(st.integers(2, 4))):
        inner = draw(st.sets(st.integers(1, num_layers - 1), max_size=3))
        stages = tuple(
            Stage(layer_start=a, layer_stop=b, worker=worker_name(next(names)))
            for a, b in itertools.pairwise([0, *sorted(inner), num_layers])
        )
        pipelines.append(Pipeline(num_microbatches=draw(st.integers(1, 5)), stages=stages))
    return Plan(schedule=schedule, pipelines=tuple(pipelines))


@settings(deadline=None, max_examples=250)
@given(profiles(), schedules, st.data())
def test_no_plan_is_faster_than_the_bound(profile, schedule, data):
    plan = data.draw(plans(profile.num_layers, schedule))
    cluster = Cluster.uniform(len(plan.workers) + data.draw(st.integers(0, 1)))
    costs = Costs(profile, cluster)
    seconds = estimate(plan.amended(rounds=fastest_rounds(plan, costs)), profile, cluster).iteration_seconds
    job = replace(snapshot_of(profile, cluster, plan.num_microbatches).settings, schedule=schedule)
    request = Request(costs, job, tuple(cluster.by_id), Holdings(None, ()), 0, Policy.FAULT_FREE)
    limit, effort = seconds * data.draw(st.sampled_from([1.001, 1.1, 2.0])), Effort(data.draw(st.sampled_from([0, 20, MOST_WORK])))
    bound, arrangements = join(search_for(request), plan.dp, limit, effort)
    assert bound <= seconds * (1 + 1e-9)
    assert all(len(arrangement.shapes) == plan.dp for arrangement in arrangements)


@pytest.mark.parametrize(("workers", "microbatches"), [(13, 52), (24, 48)])
def test_plans_are_close_to_their_bound_where_reductions_wait(workers, microbatches):
    profile = codec.load(Profile, MODELS / "llama2-7b.h100-80g.json")
    assert replan(snapshot_of(profile, Cluster.uniform(workers), microbatches)).search.gap_ratio < 0.005


def test_every_number_of_pipelines_of_a_small_job_is_pursued():
    """In shared hosts nearly all of them could win, and closed forms say little of those that are left."""
    asked = snapshot_of(uniform_profile(32), Cluster.uniform(64, workers_per_host=8), 128)
    asked = replace(asked, settings=replace(asked.settings, schedule=Schedule.ZB_H1))
    assert replan(asked).search.gap_ratio < 0.005


def test_work_ends_where_micro_batches_are_scarce(monkeypatch):
    profile = codec.load(Profile, MODELS / "llama2-7b.a100-80g.json")
    asked = snapshot_of(profile, Cluster.uniform(61), 17)
    asked = replace(asked, settings=replace(asked.settings, ranges=Ranges(min_pp=3)))
    bounds, attain = [], Partitioner.attain
    monkeypatch.setattr(Partitioner, "attain", lambda *given: bounds.append(given) or attain(*given))
    assert replan(asked).search.gap_ratio < 0.03
    assert len(bounds) < 3 * MOST_WORK


def test_all_work_comes_from_one_effort():
    profile = codec.load(Profile, MODELS / "llama2-7b.a100-80g.json")
    cluster, effort = Cluster.uniform(31), Effort(500)
    job = snapshot_of(profile, cluster, 11).settings
    search = search_for(Request(Costs(profile, cluster), job, tuple(cluster.by_id), Holdings(None, ()), 0, Policy.FAULT_FREE))
    assert join(search, 3, 1.3, effort) == (0.0, [])
    assert effort.is_spent
    left = effort.left
    assert join(search, 4, 1.3, effort) == (0.0, [])
    assert effort.left == left


def test_first_stages_that_no_split_has_take_few_tables(monkeypatch):
    """Where no time is too long, tables of ever longer ones are made until all pipelines are in them, if there are any."""
    made: list[Timetable] = []
    monkeypatch.setattr("planner.arranging.search.Timetable", lambda *given: made.append(Timetable(*given)) or made[-1])
    costs, cluster = Costs(uniform_profile(4), Cluster.uniform(2)), Cluster.uniform(2)
    job = snapshot_of(costs.profile, cluster, 8).settings
    search = search_for(Request(costs, job, tuple(cluster.by_id), Holdings(None, ()), 0, Policy.FAULT_FREE))
    bound, arrangements = join(search, 2, math.inf, Effort())
    assert [shape.cuts for shape in arrangements[0].shapes] == [(0, 4), (0, 4)]
    assert bound < math.inf
    assert len(made) < 100


@settings(deadline=None, max_examples=60)
@given(profiles(), schedules, st.integers(1, 3))
def test_no_single_pipeline_is_faster_than_the_bound(profile, schedule, microbatches):
    cluster, count = Cluster.uniform(4), profile.num_layers
    costs = Costs(profile, cluster)
    job = replace(snapshot_of(profile, cluster, microbatches).settings, schedule=schedule, ranges=Ranges(max_dp=1))
    request = Request(costs, job, tuple(cluster.by_id), Holdings(None, ()), 0, Policy.FAULT_FREE)
    bound, _ = search_for(request).arrange(1)
    for length in range(1, min(4, count) + 1):
        for inner in itertools.combinations(range(1, count), length - 1):
            cuts = itertools.pairwise((0, *inner, count))
            stages = tuple(Stage(layer_start=a, layer_stop=b, worker=worker_name(n)) for n, (a, b) in enumerate(cuts))
            plan = Plan(schedule=schedule, pipelines=(Pipeline(num_microbatches=microbatches, stages=stages),))
            plan = plan.amended(rounds=fastest_rounds(plan, costs))
            assert bound <= estimate(plan, profile, cluster).iteration_seconds * (1 + 1e-9)


def test_a_single_pipeline_is_charged_the_update_of_its_own_length():
    profile = codec.load(Profile, MODELS / "llama2-7b.a100-80g.json")
    assert replan(snapshot_of(profile, Cluster.uniform(61), 1)).search.gap_ratio < 0.04
