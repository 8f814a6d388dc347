"""Several receivers, and sources that hold different parts: legality, the bound, and brute force on small ones."""

import itertools
from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.errors import InfeasibleError
from planner.sharding.distribution import distribute
from planner.sharding.exact import assign_shards
from planner.sharding.exchange import Exchange, Link, Part, Receiver, Source
from planner.sharding.relaxation import ExchangeTimes, lower_bound
from tests.core.refusals import refuses
from tests.planner.sharding.samples import exchanges, problems


def makespan(exchange, sent):
    """Least makespan of shards per (source, receiver): every order of receivers is tried at every source."""
    links = {(link.source, link.receiver): link for link in exchange.links}
    ready = {source.id: Fraction(source.ready_seconds) for source in exchange.sources}
    jobs = defaultdict(list)
    for (source, receiver), count in sent.items():
        link = links[source, receiver]
        busy = count * exchange.shard_bytes * Fraction(link.beta_seconds_per_byte)
        jobs[source].append((busy, Fraction(link.propagation_seconds)))
    return max(min(_last(ready[source], order) for order in itertools.permutations(work)) for source, work in jobs.items())


def _last(now, order):
    end = now
    for busy, propagation in order:
        now += busy
        end = max(end, now + propagation)
    return end


def brute_force(exchange):
    """Least makespan over every way to send every shard."""
    choices = []
    for demand in exchange.demands:
        holders = [exchange.links[link].source for link in demand.links]
        ways = itertools.combinations_with_replacement(holders, demand.num_shards)
        choices.append([[(source, demand.receiver) for source in way] for way in ways])
    return min(makespan(exchange, Counter(itertools.chain(*ways))) for ways in itertools.product(*choices))


def sent_by(answer):
    sent = Counter()
    for shipment in answer.shipments:
        sent[shipment.source, shipment.receiver] += shipment.num_shards
    return sent


@settings(max_examples=60, deadline=None)
@given(exchanges())
def test_bound_optimum_and_answer_stand_in_order(exchange):
    answer, best = distribute(exchange), brute_force(exchange)
    assert answer.lower_bound_seconds <= float(best) <= answer.makespan_seconds
    assert answer.makespan_seconds == float(makespan(exchange, sent_by(answer)))


def test_what_was_dealt_out_first_is_dealt_anew_once_the_others_are_known():
    """One shard for each of two receivers: the faster source is of more use to the one whose other way is slower."""
    betas = {("s0", "r0"): 3.75, ("s0", "r1"): 2.0, ("s1", "r0"): 2.0, ("s1", "r1"): 1.0}
    exchange = Exchange(
        shard_bytes=1,
        parts=(Part(id="p0", num_shards=1),),
        sources=tuple(Source(id=source, ready_seconds=1.0, parts=("p0",)) for source in ("s0", "s1")),
        receivers=tuple(Receiver(id=receiver, parts=("p0",)) for receiver in ("r0", "r1")),
        links=tuple(
            Link(source=s, receiver=r, propagation_seconds=0.5 if s == "s1" else 0.0, beta_seconds_per_byte=beta)
            for (s, r), beta in betas.items()
        ),
    )
    answer = distribute(exchange)
    assert sent_by(answer) == {("s1", "r0"): 1, ("s0", "r1"): 1}
    assert answer.makespan_seconds == 3.5


@settings(max_examples=60, deadline=None)
@given(exchanges(max_shards=10**6))
def test_everybody_gets_what_they_need_from_who_has_it(exchange):
    answer = distribute(exchange)
    held = {source.id: source.parts for source in exchange.sources}
    got = Counter()
    for shipment in answer.shipments:
        assert shipment.num_shards > 0
        assert shipment.part in held[shipment.source]
        got[shipment.receiver, shipment.part] += shipment.num_shards
    assert got == {(demand.receiver, demand.part): demand.num_shards for demand in exchange.demands}
    assert answer.lower_bound_seconds <= answer.makespan_seconds


@settings(max_examples=60, deadline=None)
@given(exchanges(), st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(1, 3))
def test_no_weights_give_a_wrong_bound(exchange, weights, known):
    """The bound is proven whatever the solver proposes: for sources left out, too."""
    times = ExchangeTimes.of(exchange)
    proposed = {source: weights[source] for source in range(min(known, len(exchange.sources)))}
    assert Fraction(lower_bound(exchange.demands, times, proposed), 1 << times.shift) <= brute_force(exchange)


@settings(max_examples=60, deadline=None)
@given(problems(max_neighbors=5, max_free=10**6, max_minimum=0))
def test_one_receiver_of_one_part_is_served_optimally(problem):
    exchange = Exchange(
        shard_bytes=problem.shard_bytes,
        parts=(Part(id="all", num_shards=problem.num_shards),),
        sources=tuple(Source(id=n.id, ready_seconds=n.ready_seconds, parts=("all",)) for n in problem.neighbors),
        receivers=(Receiver(id="new", parts=("all",)),),
        links=tuple(
            Link(
                source=n.id,
                receiver="new",
                propagation_seconds=n.propagation_seconds,
                beta_seconds_per_byte=n.beta_seconds_per_byte,
            )
            for n in problem.neighbors
        ),
    )
    answer = distribute(exchange)
    assert answer.makespan_seconds == answer.lower_bound_seconds == assign_shards(problem).makespan_seconds


def grid(num_sources=6, num_receivers=3, num_shards=10**6):
    """Sources of different speed that hold every second or third part."""
    parts = tuple(Part(id=f"p{n}", num_shards=num_shards + n) for n in range(4))
    sources = tuple(
        Source(
            id=f"s{n}", ready_seconds=0.01 * n, parts=tuple(p.id for i, p in enumerate(parts) if i % 2 == n % 2 or i % 3 == n % 3)
        )
        for n in range(num_sources)
    )
    receivers = tuple(Receiver(id=f"r{n}", parts=tuple(part.id for part in parts)) for n in range(num_receivers))
    links = tuple(
        Link(source=f"s{n}", receiver=f"r{m}", propagation_seconds=0.01, beta_seconds_per_byte=8 / (1e8 + 5e7 * ((n * m) % 5)))
        for n in range(num_sources)
        for m in range(num_receivers)
    )
    return Exchange(shard_bytes=2048, parts=parts, sources=sources, receivers=receivers, links=links)


def test_many_shards_come_close_to_the_bound():
    answer = distribute(grid())
    assert answer.makespan_seconds <= answer.lower_bound_seconds * 1.0001


def test_sources_that_start_too_late_are_left_out():
    """Their offsets bound nothing, whichever of them are late."""
    exchange = grid()
    late = tuple(replace(s, ready_seconds=1e4 * n) if n > 1 else s for n, s in enumerate(exchange.sources))
    answer = distribute(replace(exchange, sources=late))
    assert answer.makespan_seconds <= answer.lower_bound_seconds * 1.0001
    assert {shipment.source for shipment in answer.shipments} <= {"s0", "s1"}


@settings(max_examples=60, deadline=None)
@given(exchanges(max_shards=2**63 - 1, times=st.floats(0, 1e200)))
def test_numbers_of_any_size_are_computed_with(exchange):
    """The linear program may give up on them; the bound holds and everything is sent all the same."""
    answer = distribute(exchange)
    assert sum(s.num_shards for s in answer.shipments) == sum(demand.num_shards for demand in exchange.demands)
    assert answer.lower_bound_seconds <= answer.makespan_seconds


def test_equal_exchanges_give_equal_answers():
    assert distribute(grid()) == distribute(grid())


def test_a_part_that_nobody_can_send_is_named():
    exchange = grid()
    reachable = replace(exchange, links=tuple(link for link in exchange.links if link.receiver != "r1" or link.source == "s1"))
    with pytest.raises(InfeasibleError) as caught:
        distribute(reachable)
    assert caught.value.value == "p0"  # s1 holds p1 and p3
    assert "r1" in caught.value.message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"shard_bytes": 0}, "shard_bytes"),
        ({"parts": ()}, "parts"),
        ({"sources": ()}, "sources"),
        ({"receivers": ()}, "receivers"),
        ({"parts": (Part(id="p0", num_shards=1), Part(id="p0", num_shards=2))}, "parts[1].id"),
        ({"sources": (Source(id="s0", ready_seconds=0.0, parts=("p9",)),)}, "sources[0].parts[0]"),
        ({"receivers": (Receiver(id="r0", parts=("p0", "p9")),)}, "receivers[0].parts[1]"),
        ({"links": (Link(source="s9", receiver="r0", propagation_seconds=0.0, beta_seconds_per_byte=1.0),)}, "links[0].source"),
        ({"links": (Link(source="s0", receiver="r9", propagation_seconds=0.0, beta_seconds_per_byte=1.0),)}, "links[0].receiver"),
        ({"links": (Link(source="s0", receiver="r0", propagation_seconds=0.0, beta_seconds_per_byte=1.0),) * 2}, "links[1]"),
    ],
)
def test_exchange_refuses(changes, field):
    with refuses(field):
        replace(grid(), **changes)


def test_parts_sources_receivers_and_links_refuse():
    with refuses("num_shards"):
        Part(id="p", num_shards=0)
    with refuses("id"):
        Part(id="", num_shards=1)
    with refuses("ready_seconds"):
        Source(id="s", ready_seconds=-1.0, parts=())
    with refuses("ready_seconds"):
        Source(id="s", ready_seconds=1e201, parts=())
    with refuses("id"):
        Source(id="", ready_seconds=0.0, parts=())
    with refuses("parts"):
        Receiver(id="r", parts=())
    with refuses("parts[1]"):
        Receiver(id="r", parts=("p", "p"))
    with refuses("id"):
        Receiver(id="", parts=("p",))
    for wrong in ({"propagation_seconds": -1.0}, {"propagation_seconds": 1e201}, {"beta_seconds_per_byte": 1e201}):
        with refuses(next(iter(wrong))):
            Link(**{"source": "s", "receiver": "r", "propagation_seconds": 0.0, "beta_seconds_per_byte": 0.0} | wrong)
    with refuses("beta_seconds_per_byte"):
        Link(source="s", receiver="r", propagation_seconds=0.0, beta_seconds_per_byte=float("nan"))
