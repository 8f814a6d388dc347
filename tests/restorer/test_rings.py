"""Rings around slow links, against every ring of small clusters."""

import itertools
import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.plan import Reduction
from restorer.rings import along_fast_links, untangle
from restorer.rounds import colour_rounds, fastest_rounds
from tests.builders import grid_plan, uniform_profile

PROFILE = uniform_profile(8)
SLOW = {"alpha_seconds": 1e-4, "beta_seconds_per_byte": 1e-8}


def linked(num_workers, slow, *, workers_per_host=1):
    """Equal workers, with slow links between the hosts of these numbers."""
    links = tuple(HostLink(between=(f"h{a:02d}", f"h{b:02d}"), **SLOW) for a, b in slow)
    return replace(Cluster.uniform(num_workers, workers_per_host=workers_per_host), links=links)


def reduction_of(workers, num_bytes=10**8):
    return Reduction(layers=(0,), workers=tuple(workers), num_bytes=num_bytes)


def pace(seconds, ring):
    return max(seconds[a, b] for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))


@settings(deadline=None, max_examples=200)
@given(st.data(), st.integers(3, 9))
def test_untangling_never_lets_a_ring_become_slower(data, size):
    above = data.draw(st.lists(st.integers(0, 5), min_size=size * size, max_size=size * size))
    seconds = np.triu(np.array(above, dtype=np.float64).reshape(size, size), 1)
    seconds += seconds.T
    before = data.draw(st.permutations(range(size)))
    ring = np.array(before)
    untangle(seconds, ring)
    assert sorted(ring.tolist()) == list(range(size))
    assert pace(seconds, ring.tolist()) <= pace(seconds, before)


def test_reductions_keep_off_slow_links_nearly_wherever_some_ring_does():
    chance, missed = random.Random(1), 0
    for _ in range(200):
        size = chance.randint(4, 7)
        slow = [pair for pair in itertools.combinations(range(size), 2) if chance.random() < 0.4]
        costs = Costs(PROFILE, linked(size, slow))
        [found] = along_fast_links([reduction_of(costs.cluster.by_id)], costs)
        rings = (reduction_of((found.workers[0], *rest)) for rest in itertools.permutations(found.workers[1:]))
        missed += costs.reduction_seconds(found) > min(map(costs.reduction_seconds, rings))
    assert missed <= 4


def test_workers_of_a_host_stand_together_and_equal_groups_have_one_order():
    costs = Costs(PROFILE, linked(8, [(0, 1), (2, 3)], workers_per_host=2))
    workers = ("w00", "w02", "w01", "w03", "w04", "w06", "w05", "w07")
    found = along_fast_links([reduction_of(workers, size) for size in (10**8, 10**3)], costs)
    assert found[0].workers == found[1].workers
    hosts = [costs.cluster.by_id[worker].host for worker in found[0].workers]
    assert [host for host, _ in itertools.groupby(hosts)] == ["h00", "h02", "h01", "h03"]
    assert [reduction.num_bytes for reduction in found] == [10**8, 10**3]


def test_where_no_ring_is_faster_workers_keep_their_order():
    between_all = list(itertools.combinations(range(5), 2))
    for slow in ([], between_all, [(0, n) for n in range(1, 5)]):
        costs = Costs(PROFILE, linked(5, slow))
        given_order = reduction_of(("w03", "w00", "w04", "w01", "w02"))
        assert along_fast_links([given_order], costs) == [given_order]


def test_all_rounds_of_a_plan_go_along_fast_links():
    plan, costs = grid_plan(8, [2, 2, 2, 2], [4, 4, 4, 4]), Costs(PROFILE, linked(8, [(0, 2), (3, 5)]))
    for rounds in (fastest_rounds(plan, costs), colour_rounds(plan, PROFILE, costs)):
        reductions = [reduction for own in rounds for reduction in own]
        assert {frozenset(reduction.workers) for reduction in reductions} == {
            frozenset(reduction.workers) for own in colour_rounds(plan, PROFILE) for reduction in own
        }
        assert max(costs.ring_seconds(reduction.workers, 10**8) for reduction in reductions) < 0.1
        assert max(costs.ring_seconds(r.workers, 10**8) for own in colour_rounds(plan, PROFILE) for r in own) > 1.0
