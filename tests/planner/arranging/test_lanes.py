"""Lanes that are alike are timed once, and as if each were timed alone."""

from dataclasses import replace

import pytest

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.job import JobSettings
from kintsugi.core.plan import Policy, Schedule
from planner.arranging.lanes import Timing, changes
from planner.arranging.request import Request
from planner.batches import distribute
from planner.placing.placement import Holdings
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
