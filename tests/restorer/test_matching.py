"""Matching by kinds against matching worker by worker, and its ties against all permutations."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import restorer.transportation
from kintsugi.core.cluster import Cluster, HostLink, Worker
from restorer.matching import Crew, match, match_layers, missing_bytes
from restorer.proximity import Proximity
from restorer.transportation import tight_pairs, transport
from tests.builders import uniform_profile

LAYER_BYTES = (5, 2, 13, 1, 12, 7)
LAYERS = st.sets(st.integers(0, 5), min_size=1, max_size=4).map(lambda own: tuple(sorted(own)))
NETWORK = uniform_profile(1).network


def crew_of(held, **settings):
    return Crew(names=[f"w{n:02d}" for n in range(len(held))], held=held, **settings)


def moved(held, wanted, chosen, layer_bytes=LAYER_BYTES):
    return int(missing_bytes(layer_bytes, held, wanted)[list(chosen), np.arange(len(wanted))].sum())


def nearness_by_definition(cluster, held, layer_bytes):
    """Seconds and distance of each layer to each worker, from the nearest other worker that holds it."""
    seconds, distances = np.zeros((len(held), 6)), np.zeros((len(held), 6), dtype=int)
    for row, worker in enumerate(cluster.workers):
        for layer in range(6):
            sources = [other for other, own in zip(cluster.workers, held, strict=True) if layer in own]
            betas = [cluster.link(other.id, worker.id, NETWORK).beta_seconds_per_byte for other in sources]
            seconds[row, layer] = layer_bytes[layer] * min(betas, default=NETWORK.inter_host.beta_seconds_per_byte)
            far = [0 if o.host == worker.host else 1 if o.failure_domains == worker.failure_domains else 2 for o in sources]
            distances[row, layer] = min(far, default=2)
    return seconds, distances


def test_distances_take_no_look_at_every_pair_of_hosts(monkeypatch):
    asked = []
    monkeypatch.setattr(Cluster, "host_link", lambda _, *hosts: asked.append(hosts) or NETWORK.inter_host)
    link = HostLink(between=("h00", "h01"), alpha_seconds=0.0, beta_seconds_per_byte=1e-3)
    cluster = replace(Cluster.uniform(9), links=(link,))
    held = np.eye(3, 6, dtype=bool)
    nearness = Proximity(cluster, NETWORK).nearness(list(cluster.by_id), np.array([0, 1, 2, 2, 2, 2, 2, 2, 2]), held, LAYER_BYTES)
    assert nearness.seconds[nearness.place_of[0], 1] == 1e-3 * LAYER_BYTES[1]
    assert not asked


def test_as_few_bytes_as_scipy_in_thousands_of_random_cases():
    draw = random.Random(4)
    for _ in range(3000):
        held = [tuple(sorted(draw.sample(range(6), draw.randint(0, 4)))) for _ in range(draw.randint(1, 12))]
        wanted = [tuple(sorted(draw.sample(range(6), draw.randint(1, 4)))) for _ in range(draw.randint(1, len(held)))]
        cost = missing_bytes(LAYER_BYTES, held, wanted)
        chosen = match_layers(LAYER_BYTES, crew_of(held), wanted)
        assert len(set(chosen)) == len(wanted)
        assert moved(held, wanted, chosen) == cost[linear_sum_assignment(cost)].sum()


@pytest.mark.parametrize("num_workers", [40, 300])
def test_as_few_bytes_as_scipy_with_many_workers_and_state_of_real_size(num_workers):
    draw = random.Random(num_workers)
    layer_bytes = [draw.randrange(10**9, 3 * 10**9) for _ in range(34)]
    starts = [draw.randrange(30) for _ in range(2 * num_workers)]
    ranges = [tuple(range(start, min(34, start + draw.randint(1, 9)))) for start in starts]
    held, wanted = ranges[:num_workers], ranges[num_workers : 2 * num_workers - 5]
    cost = missing_bytes(layer_bytes, held, wanted)
    chosen = match_layers(layer_bytes, crew_of(held), wanted)
    assert cost[list(chosen), np.arange(len(wanted))].sum() == cost[linear_sum_assignment(cost)].sum()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(LAYERS, st.sampled_from("ab")), min_size=1, max_size=7), st.data())
def test_slots_take_workers_of_their_class_only(workers, data):
    slots = data.draw(st.lists(st.tuples(LAYERS, st.sampled_from("ab")), min_size=1, max_size=len(workers)))
    held, classes = zip(*workers, strict=True)
    wanted, asked = zip(*slots, strict=True)
    cost = missing_bytes(LAYER_BYTES, held, wanted).astype(float)
    cost[np.array([[own != other for other in asked] for own in classes])] = np.inf
    chosen = match_layers(LAYER_BYTES, crew_of(held, classes=classes), wanted, classes=asked)
    try:
        best = cost[linear_sum_assignment(cost)].sum()
    except ValueError:
        assert chosen is None
        return
    assert [classes[worker] for worker in chosen] == list(asked)
    assert moved(held, wanted, chosen) == best


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_ties_go_to_the_shortest_wait_then_the_least_waits_then_the_nearest_holders(data):
    layer_bytes = data.draw(st.sampled_from([LAYER_BYTES, (4, 4, 4, 4, 4, 4)]))
    places = data.draw(st.lists(st.tuples(st.sampled_from(["h0", "h1", "h2"]), st.sampled_from("rs")), min_size=2, max_size=6))
    workers = tuple(Worker(id=f"w{n:02d}", host=host, failure_domains=(rack,)) for n, (host, rack) in enumerate(places))
    held = data.draw(st.lists(LAYERS, min_size=len(workers), max_size=len(workers)))
    wanted = data.draw(st.lists(LAYERS, min_size=1, max_size=len(workers)))
    pairs = itertools.combinations(sorted({worker.host for worker in workers}), 2)
    betas = st.sampled_from([1e-10, 1e-9, 2e-9, 3e-9, 7e-9])
    links = tuple(HostLink(between=pair, alpha_seconds=0.0, beta_seconds_per_byte=data.draw(betas)) for pair in pairs)
    cluster = Cluster(name="test", workers=workers, links=links)
    seconds, distances = nearness_by_definition(cluster, held, layer_bytes)

    def price(chosen):
        lacking = [sorted(set(want) - set(held[worker])) for want, worker in zip(wanted, chosen, strict=True)]
        waits = [round(1e12 * seconds[worker, own].sum()) for worker, own in zip(chosen, lacking, strict=True)]
        far = sum(int(distances[worker, own].sum()) for worker, own in zip(chosen, lacking, strict=True))
        return moved(held, wanted, chosen, layer_bytes), max(waits), sum(waits), far

    chosen = match_layers(layer_bytes, crew_of(held), wanted, proximity=Proximity(cluster, NETWORK))
    assert price(chosen) == min(price(rows) for rows in itertools.permutations(range(len(held)), len(wanted)))


def test_the_worker_next_to_a_holder_is_taken():
    workers = tuple(
        Worker(id=f"w{n:02d}", host=host, failure_domains=("r0" if host in ("h0", "h3") else "r1",))
        for n, host in enumerate(["h0", "h1", "h2", "h3", "h0"])
    )
    held = [(0,), (), (), (), ()]
    for usable, expected in (([0, 1, 2, 3, 4], 4), ([0, 1, 2, 3], 3), ([0, 1, 2], 1)):
        cluster = Cluster(name="test", workers=tuple(workers[n] for n in usable))
        crew = Crew(names=[workers[n].id for n in usable], held=[held[n] for n in usable])
        assert match_layers([10], crew, [(0,), (0,)], proximity=Proximity(cluster, NETWORK)) == (0, usable.index(expected))


def test_a_holder_keeps_its_slot():
    held, wanted = [(3, 4, 5), (0, 1, 2), (0, 1, 2)], [(0, 1, 2), (3, 4, 5)]
    assert match_layers(LAYER_BYTES, crew_of(held), wanted) == (1, 0)


def test_costs_beyond_the_range_of_flows_are_matched_one_by_one(monkeypatch):
    costs, ones = np.array([[2**61, 0], [2**61, 1]]), np.array([1, 1])
    counts = transport(costs, ones, ones, np.ones((2, 2), dtype=bool))
    assert counts.tolist() == [[0, 1], [1, 0]]
    monkeypatch.setattr(restorer.transportation, "_one_by_one", None)
    assert transport(np.array([[5, 0], [5, 1]]), ones, ones, np.ones((2, 2), dtype=bool)).tolist() == [[0, 1], [1, 0]]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_tight_pairs_are_those_of_all_cheapest_answers(seed):
    draw = np.random.default_rng(seed)
    costs = draw.integers(0, 4, (4, 4))
    ones = np.ones(4, dtype=np.int64)
    allowed = np.ones((4, 4), dtype=bool)
    tight = tight_pairs(costs, transport(costs, ones, ones, allowed), allowed)
    prices = {rows: costs[list(rows), np.arange(4)].sum() for rows in itertools.permutations(range(4))}
    for rows, price in prices.items():
        assert (price == min(prices.values())) == bool(tight[list(rows), np.arange(4)].all())


def test_matching_of_single_workers_moves_the_fewest_bytes():
    cost = np.array([[4.0, 1.0], [2.0, 0.0], [3.0, 2.0]])
    assert match(cost) == (1, 0)


def test_of_equal_answers_that_is_taken_in_which_most_keep_what_they_have():
    for rows in itertools.permutations(range(3)):
        kept = np.zeros((3, 3), dtype=bool)
        kept[list(rows), np.arange(3)] = True
        assert match(np.ones((3, 3)), kept) == rows


def test_missing_bytes():
    assert missing_bytes(LAYER_BYTES, [(0, 2), (3,)], [(0, 1, 2), (2, 3)]).tolist() == [[2, 1], [20, 13]]
