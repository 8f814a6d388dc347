"""Hosts behind slow links that are left out."""

import itertools
from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster, HostLink, Worker, host_name, worker_name
from planner.arranging import request
from planner.arranging.search import EqualSearch
from planner.placing.placement import NOT_NEEDED
from planner.policies.avoiding import BEHIND
from planner.replan import replan
from tests.builders import ETHERNET, snapshot_of, transformer_profile, uniform_profile


def test_what_is_found_of_equal_workers_serves_whichever_host_is_left_out(monkeypatch):
    asked = []
    monkeypatch.setattr(request, "EqualSearch", lambda problem: asked.append(problem) or EqualSearch(problem))
    names = [f"h{n:02d}" for n in range(20)]
    others = [
        name for name in names if name not in (names[3], names[4])
    ]  # no ring goes in and out by the one fast link that is left
    slow = [HostLink(between=(names[3], name), alpha_seconds=1e-4, beta_seconds_per_byte=1e-7) for name in others]
    decision = replan(snapshot_of(transformer_profile(10), replace(Cluster.uniform(20), links=tuple(slow)), 40))
    assert {19, 20} <= {problem.num_workers for problem in asked}
    assert len(asked) == len({(problem.num_workers, problem.allowed) for problem in asked})
    assert decision.estimate.iteration_seconds >= decision.search.lower_bound_seconds


def test_between_racks_nobody_is_left_out(monkeypatch):
    asked = []
    monkeypatch.setattr(request, "EqualSearch", lambda problem: asked.append(problem.num_workers) or EqualSearch(problem))
    hosts = Cluster.uniform(20).hosts
    apart = [(a, b) for a, b in itertools.combinations(range(20), 2) if a % 2 != b % 2]
    slow = [HostLink(between=(hosts[a], hosts[b]), alpha_seconds=1e-4, beta_seconds_per_byte=1e-7) for a, b in apart]
    replan(snapshot_of(transformer_profile(10), replace(Cluster.uniform(20), links=tuple(slow)), 40))
    assert set(asked) == {20}
    asked.clear()
    replan(snapshot_of(transformer_profile(10), replace(Cluster.uniform(20), links=tuple(slow[1:])), 40))
    assert {19, 20} <= set(asked)


def linked(sizes, pairs, *, alpha_seconds=1e-4, beta_seconds_per_byte=1e-7):
    """Hosts of so many workers, with links of their own between pairs of hosts."""
    hosts = [host_name(n) for n, size in enumerate(sizes) for _ in range(size)]
    workers = tuple(Worker(id=worker_name(n), host=host) for n, host in enumerate(hosts))
    links = tuple(
        HostLink(between=(host_name(a), host_name(b)), alpha_seconds=alpha_seconds, beta_seconds_per_byte=beta_seconds_per_byte)
        for a, b in pairs
    )
    return Cluster(name="linked", workers=workers, links=links)


OF_TWO = [(a, b) for a, b in itertools.combinations(range(6), 2) if a < 2]


@pytest.mark.parametrize(
    "costs",
    [
        {},
        {"alpha_seconds": ETHERNET.alpha_seconds},
        {"alpha_seconds": 0.05, "beta_seconds_per_byte": ETHERNET.beta_seconds_per_byte},
    ],
    ids=["slow", "narrow", "late"],
)
def test_two_hosts_that_all_links_to_are_slow_are_left_out(costs):
    decision = replan(snapshot_of(uniform_profile(8), linked([1] * 6, OF_TWO, **costs), 12))
    alone = replan(snapshot_of(uniform_profile(8), Cluster.uniform(4), 12))
    assert sorted(decision.plan.workers) == ["w02", "w03", "w04", "w05"]
    assert {idle.reason for idle in decision.plan.idle_workers} <= {BEHIND, NOT_NEEDED}
    assert decision.estimate.reduce_seconds == alone.estimate.reduce_seconds


def test_two_hosts_behind_late_links_take_part_where_no_reduction_waits_for_these():
    late = {"alpha_seconds": 0.02, "beta_seconds_per_byte": ETHERNET.beta_seconds_per_byte}
    cluster = linked([1] * 6, OF_TWO, **late)
    decision, without = (replan(snapshot_of(uniform_profile(8), cluster, 12, lost=lost)) for lost in ((), ("w00", "w01")))
    assert decision.plan.idle_workers == ()
    assert decision.estimate.iteration_seconds < without.estimate.iteration_seconds


def test_links_as_fast_as_the_others_leave_nobody_out():
    profile = uniform_profile(8)
    usual = linked([1] * 6, OF_TWO, **{name: getattr(ETHERNET, name) for name in ("alpha_seconds", "beta_seconds_per_byte")})
    decision, without = (replan(snapshot_of(profile, cluster, 12)) for cluster in (usual, Cluster.uniform(6)))
    assert decision.plan.idle_workers == ()
    assert decision.estimate.iteration_seconds == without.estimate.iteration_seconds


@pytest.mark.parametrize("num_others", [2, 3])
def test_a_large_host_is_not_left_out_for_small_ones_behind_slow_links(num_others):
    cluster = linked([4] + [1] * num_others, [(0, n) for n in range(1, num_others + 1)])
    decision = replan(snapshot_of(uniform_profile(8), cluster, 12))
    assert sorted(decision.plan.workers) == ["w00", "w01", "w02", "w03"]
    assert {idle.reason for idle in decision.plan.idle_workers} == {BEHIND}
