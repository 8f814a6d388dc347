"""Lanes that are alike are timed once, and as if each were timed alone."""

import itertools
from dataclasses import replace

import pytest

from estimator.costs import Costs
from estimator.estimate import priced
from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.job import JobSettings
from kintsugi.core.plan import Pipeline, Plan, Policy, Schedule, Stage
from planner.arranging.lanes import Timing, changes, distinct_changes
from planner.arranging.request import Request
from planner.batches import distribute
from planner.placing.placement import Holdings
from restorer.rounds import fastest_rounds
from tests.builders import uniform_profile

LANES = (("w00", "w01", "w02"), ("w03", "w04", "w05"))


def request_of(cluster, microbatches=8):
    settings = JobSettings(num_microbatches=microbatches)
    workers = tuple(worker.id for worker in cluster.workers)
    costs = Costs(uniform_profile(6), cluster)
    return Request(costs, settings, workers, Holdings(None, ()), 0, Policy.FAULT_FREE)


def slow(cluster):
    return cluster.with_workers((replace(cluster.workers[0], speed_ratio=0.5), *cluster.workers[1:]))


def linked(cluster):
    link = HostLink(between=("h00", "h04"), alpha_seconds=0.1, beta_seconds_per_byte=0.0)
    return replace(cluster, links=(link,))


@pytest.mark.parametrize(
    "cluster", [slow(Cluster.uniform(6)), linked(Cluster.uniform(6)), slow(Cluster.uniform(6, workers_per_host=2))]
)
def test_every_change_takes_as_long_as_if_it_were_timed_alone(cluster):
    request = request_of(cluster)
    together = Timing(request, Schedule.ONE_F_ONE_B)
    options = list(changes(LANES, (), together.likeness))
    assert len(options) > 50
    for option in options[::4]:
        alone = Timing(request, Schedule.ONE_F_ONE_B)
        assert together.seconds(option) == pytest.approx(alone.seconds(option), rel=1e-12)


def test_names_alone_make_no_difference_and_cost_nothing(monkeypatch):
    timing, times = Timing(request_of(slow(Cluster.uniform(6))), Schedule.ONE_F_ONE_B), []
    timed = timing._timed
    monkeypatch.setattr(timing, "_timed", lambda *of: times.append(of) or timed(*of))
    first = timing.seconds(LANES)
    num_times = len(times)
    assert timing.seconds((("w03", "w04", "w05"), ("w00", "w02", "w01"))) == first
    assert len(times) == num_times
    timing.seconds((("w01", "w00", "w02"), ("w03", "w04", "w05")))
    assert len(times) > num_times


@pytest.mark.parametrize("lanes", [LANES, (("w00", "w01"), ("w02",), ("w03", "w04", "w05"))])
def test_very_many_microbatches_are_shared_out_as_one_by_one_without_timing_each(monkeypatch, lanes):
    timing, times = Timing(request_of(slow(Cluster.uniform(6)), 3_000), Schedule.ONE_F_ONE_B), []
    timed = timing._timed
    monkeypatch.setattr(timing, "_timed", lambda *of: times.append(of) or timed(*of))
    found = timing.shares(lanes)
    assert len(times) < 600
    assert found == distribute(len(lanes), 3_000, lambda k, m: timing._pace(len(lanes), lanes[k], m)[0].seconds)


def mixed(cluster, *speeds):
    workers = zip(cluster.workers, itertools.cycle(speeds), strict=False)
    return cluster.with_workers(tuple(replace(worker, speed_ratio=speed) for worker, speed in workers))


@pytest.mark.parametrize("speeds", [(0.5, 1, 1, 1, 1, 1, 1), (0.5, 1), (0.5, 1, 0.7), (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)])
@pytest.mark.parametrize("lanes", [LANES, (("w00", "w01"), ("w02", "w03"), ("w04",)), (("w00",), ("w01", "w02", "w03", "w04"))])
def test_distinct_changes_come_to_all_that_changes_come_to_but_are_fewer(lanes, speeds):
    timing = Timing(request_of(mixed(Cluster.uniform(7), *speeds)), Schedule.ONE_F_ONE_B)
    idle = sorted({f"w{n:02d}" for n in range(7)}.difference(*lanes))
    all_of_them = list(changes(lanes, idle, timing.likeness))
    distinct = list(distinct_changes(lanes, idle, timing.likeness, timing.kind))
    assert {timing.alike(option) for option in distinct} | {timing.alike(lanes)} == set(map(timing.alike, all_of_them)) | {
        timing.alike(lanes)
    }
    assert {tuple(sorted(option)) for option in distinct} <= {tuple(sorted(option)) for option in all_of_them}
    assert len(distinct) < len(all_of_them) or len(set(speeds)) == len(speeds)


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ZB_H1])
def test_a_step_is_what_the_estimator_makes_of_the_plan(schedule):
    request = request_of(mixed(Cluster.uniform(7), 0.5, 1, 1), 14)
    request = replace(request, settings=replace(request.settings, schedule=schedule))
    timing = Timing(request, schedule)
    for lanes in (LANES, (("w00", "w01", "w02", "w03"), ("w04", "w05"), ("w06",)), (("w01",), ("w02",), ("w00", "w03", "w04"))):
        shares = timing.shares(lanes)
        pipelines = tuple(
            Pipeline(
                num_microbatches=share,
                stages=tuple(
                    Stage(layer_start=a, layer_stop=b, worker=worker)
                    for worker, (a, b) in zip(lane, itertools.pairwise(timing.cuts(len(lanes), lane, share)), strict=True)
                ),
            )
            for lane, share in zip(lanes, shares, strict=True)
        )
        plan = Plan(generation=0, policy=Policy.FAULT_FREE, schedule=schedule, pipelines=pipelines)
        plan = plan.amended(rounds=fastest_rounds(plan, request.costs))
        assert timing.step_seconds(lanes) == pytest.approx(priced(plan, request.costs).iteration_seconds, rel=1e-12)
