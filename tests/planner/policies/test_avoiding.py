"""Hosts behind slow links that are left out."""

import itertools
from dataclasses import replace

from kintsugi.core.cluster import Cluster, HostLink
from planner.arranging import request
from planner.arranging.search import EqualSearch
from planner.replan import replan
from tests.builders import snapshot_of, transformer_profile


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
