"""Reductions over trees and rings against the plain weighted mean: the same bits on all workers, whatever the shape."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.overlay import Shape, SynchronizationPolicy
from kintsugi.runtime.overlay.exchange import UnfitMessageError
from kintsugi.runtime.overlay.reduction import Header, TreeReduction, merged
from kintsugi.runtime.overlay.ring import RingReduction
from kintsugi.runtime.overlay.rounds import pause_seconds
from kintsugi.runtime.overlay.settlement import Standing, settle
from kintsugi.runtime.overlay.tree import needed_links, position
from tests.runtime.overlay.wires import together


@st.composite
def policies(draw, max_workers: int = 6) -> SynchronizationPolicy:
    """A tree or ring of some workers."""
    order = tuple(f"w{index}" for index in range(draw(st.integers(1, max_workers))))
    if len(order) > 2 and draw(st.booleans()):
        return SynchronizationPolicy(shape=Shape.RING, order=order)
    parents = {worker: order[draw(st.integers(0, index))] for index, worker in enumerate(order[1:])}
    return SynchronizationPolicy(shape=Shape.TREE, order=order, parents=parents)


def reduced(policy: SynchronizationPolicy, vectors, weights, documents, chunk_bytes: int):
    """What everybody gets."""
    length = len(next(iter(vectors.values())))

    def work(wire):
        result = np.full(length, np.nan)
        weight = weights[wire.worker]
        own = vectors[wire.worker] * weight if weight else None
        header = Header(weights={wire.worker: weight} if weight else {}, ready=documents[wire.worker])
        if policy.shape is Shape.RING:
            arguments = {"header": header, "own": own, "result": result, "chunk_bytes": chunk_bytes}
            return RingReduction(wire, wire.worker, policy.order, **arguments).run()
        place = position(policy, wire.worker)
        return TreeReduction(wire, place, header=header, own=own, result=result, chunk_bytes=chunk_bytes).run()

    return together(policy.order, work)


@settings(max_examples=60, deadline=None)
@given(policies(), st.data())
def test_everybody_gets_the_weighted_mean_bit_for_bit(policy, data):
    length = data.draw(st.integers(0, 9))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    vectors = {worker: generator.normal(size=length) for worker in policy.order}
    weights = {worker: data.draw(st.sampled_from([0.0, 1.0, 2.5])) for worker in policy.order}
    documents = {worker: data.draw(st.sampled_from([None, {"generation": 3}, {"generation": 4}])) for worker in policy.order}
    results = reduced(policy, vectors, weights, documents, data.draw(st.sampled_from([8, 24, 1024])))
    counted = {worker: weight for worker, weight in weights.items() if weight}
    first = results[policy.order[0]]
    for result in results.values():
        assert dict(result.header.weights) == counted
        assert result.header.ready == agreed(documents.values())
        assert (result.vector is None) == (not counted)
        if counted:
            assert result.vector.tobytes() == first.vector.tobytes()
    if counted:
        expected = sum(vectors[worker] * weight for worker, weight in counted.items()) / sum(counted.values())
        np.testing.assert_allclose(first.vector, expected, rtol=1e-12, atol=1e-12)


def agreed(documents):
    """What everybody could go over to: the oldest, and nothing where somebody has none."""
    documents = list(documents)
    return None if None in documents else min(documents, key=lambda document: document["generation"])


@settings(max_examples=30, deadline=None)
@given(policies(), st.data())
def test_a_mean_is_handed_on_as_it_is_to_those_that_missed_it(policy, data):
    holder = data.draw(st.sampled_from(policy.order))
    mean = np.random.default_rng(1).normal(size=5)
    told = Header(weights={"gone": 3.0}, ready={"generation": 9}, is_final=True, attempt=4)

    def work(wire):
        place, is_holder = position(policy, wire.worker), wire.worker == holder
        own, header = (mean, told) if is_holder else (None, None)
        return TreeReduction(wire, place, header=header, own=own, result=np.zeros(5), chunk_bytes=16).run()

    for result in together(policy.order, work).values():
        assert result.vector.tobytes() == mean.tobytes()
        assert result.header == told


@settings(max_examples=30, deadline=None)
@given(policies(), st.data())
def test_a_settlement_tells_everybody_what_everybody_has_committed(policy, data):
    workers = policy.order
    standings = [
        Standing(6, 1, 0),
        Standing(6, 2, 0),
        Standing(7, 1, 1),
        Standing(7, 1, None),
        Standing(7, 2, 1),
        Standing(0, 0, None),
    ]
    committed = {worker: data.draw(st.sampled_from(standings)) for worker in workers}

    def work(wire):
        place = position(policy, wire.worker)
        return settle(wire, place, committed[wire.worker], {"told_by": wire.worker})

    for settled in together(workers, work).values():
        assert dict(settled.committed) == committed
        assert settled.overlay == {"told_by": policy.order[0]}
        kept = {one for one in committed.values() if one.before is not None}
        assert settled.newest == max(kept or set(committed.values()), key=lambda one: (one.number, one.attempt))
        lacking = Standing(6, 1, 0) in kept and settled.newest.number == 7
        assert settled.holder == (min(worker for worker in workers if committed[worker] == settled.newest) if lacking else None)


def test_another_model_is_noticed():
    policy = SynchronizationPolicy(shape=Shape.TREE, order=("a", "b"), parents={"b": "a"})

    def work(wire):
        result = np.zeros(3 if wire.worker == "a" else 4)
        header = Header(weights={wire.worker: 1.0})
        return TreeReduction(
            wire, position(policy, wire.worker), header=header, own=result.copy(), result=result, chunk_bytes=1024
        ).run()

    with pytest.raises(UnfitMessageError, match="same model"):
        together(
            ("b", "a"), lambda wire: work(wire) if wire.worker == "a" else wire.send("a", "up", {"chunk": 0}, np.zeros(4).data)
        )


FOUR, HEADER = np.zeros(4).data, Header(weights={"b": 1.0}).as_fields()
"""Two pieces, and what comes with the first one."""


@pytest.mark.parametrize(
    ("teller", "said"),
    [
        ("b", [("up", {"chunk": 0, "header": HEADER}), ("up", {"chunk": 0, "header": HEADER})]),
        ("b", [("up", {"chunk": 1, "header": HEADER})]),
        ("b", [("up", {"chunk": 0, "header": HEADER}), ("up", {"chunk": -1})]),
        ("b", [("up", {"chunk": "0", "header": HEADER})]),
        ("b", [("up", {"chunk": [0, 0], "header": HEADER})]),
        ("b", [("up", {"header": HEADER})]),
        ("b", [("down", {"chunk": 0, "header": HEADER})]),
        ("b", [("up", {"chunk": 0, "header": 5})]),
        ("b", [("up", {"chunk": 0, "header": HEADER | {"more": 1}})]),
        ("b", [("up", {"chunk": 0, "header": HEADER | {"weights": {"b": "much"}}})]),
        ("b", [("up", {"chunk": 0, "header": HEADER | {"weights": {"b": float("nan")}}})]),
        ("b", [("up", {"chunk": 0, "header": HEADER | {"ready": {"term": 1}}})]),
        ("b", [("up", {"chunk": 0, "header": HEADER | {"states": {"b": [1, 2]}}})]),
        ("b", [("up", {"chunk": 0, "header": HEADER}), ("up", {"chunk": 1, "is_empty": True})]),
        ("c", [("up", {"chunk": 0, "header": HEADER})]),
        ("a", [("down", {"chunk": 0})]),
        ("a", [("down", {"chunk": 0, "header": HEADER}), ("down", {"chunk": 0, "header": HEADER})]),
    ],
)
def test_what_does_not_belong_to_a_pass_is_refused_with_its_teller(teller, said):
    policy = SynchronizationPolicy(shape=Shape.TREE, order=("a", "m", "b"), parents={"m": "a", "b": "m"})

    def work(wire):
        if wire.worker == "m":
            place, result = position(policy, "m"), np.zeros(8)
            return TreeReduction(wire, place, header=Header(), own=result.copy(), result=result, chunk_bytes=32).run()
        return [wire.send("m", kind, fields, FOUR) for kind, fields in said if wire.worker == teller]

    with pytest.raises(UnfitMessageError) as refused:
        together(("m", "a", "b", "c"), work)
    assert refused.value.worker == teller


@pytest.mark.parametrize(
    ("teller", "kind", "fields"),
    [
        ("c", "sum", {"chunk": [0, 0], "header": HEADER}),  # the first's own segment
        ("c", "mean", {"chunk": [1, 0], "header": HEADER}),  # which the first makes itself
        ("c", "sum", {"chunk": [3, 0], "header": HEADER}),
        ("c", "sum", {"chunk": [2, 1], "header": HEADER}),
        ("c", "sum", {"chunk": 2, "header": HEADER}),
        ("c", "sum", {"chunk": [2, 0]}),
        ("b", "sum", {"chunk": [2, 0], "header": HEADER}),
    ],
)
def test_what_does_not_belong_to_a_ring_is_refused_with_its_teller(teller, kind, fields):
    def work(wire):
        if wire.worker == "a":
            result = np.zeros(6)
            arguments = {"header": Header(), "own": result.copy(), "result": result, "chunk_bytes": 16}
            return RingReduction(wire, "a", ("a", "b", "c"), **arguments).run()
        return wire.send("a", kind, fields, np.zeros(2).data) if wire.worker == teller else None

    with pytest.raises(UnfitMessageError) as refused:
        together(("a", "b", "c"), work)
    assert refused.value.worker == teller


@pytest.mark.parametrize(
    ("teller", "kind", "fields"),
    [
        ("b", "verdict", {"committed": {"b": [1, 0, None]}}),
        ("b", "say", {}),
        ("b", "say", {"committed": [1]}),
        ("b", "say", {"committed": {"a": [1, 0, None]}}),
        ("b", "say", {"committed": {"b": [1, 0]}}),
        ("b", "say", {"committed": {"b": [1, "0", None]}}),
        ("c", "say", {"committed": {"c": [1, 0, None]}}),
    ],
)
def test_what_nobody_can_settle_on_is_refused_with_its_teller(teller, kind, fields):
    policy = SynchronizationPolicy(shape=Shape.TREE, order=("a", "b"), parents={"b": "a"})

    def work(wire):
        if wire.worker == "a":
            return settle(wire, position(policy, "a"), Standing(1, 0, None), {})
        return wire.send("a", kind, fields) if wire.worker == teller else None

    with pytest.raises(UnfitMessageError) as refused:
        together(("a", "b", "c"), work)
    assert refused.value.worker == teller


def test_the_total_weight_does_not_depend_on_the_order():
    parts = [Header(weights={f"w{index}": weight}) for index, weight in enumerate((0.1, 0.2, 0.3, 1e16, 3.0))]
    forwards, backwards = merged(parts), merged(reversed(parts))
    assert forwards is not None
    assert backwards is not None
    assert forwards.total_weight == backwards.total_weight


def test_the_links_that_a_worker_needs():
    parents = {"b": "a", "c": "a", "x": "c"}
    tree = SynchronizationPolicy(shape=Shape.TREE, order=("a", "b", "c"), parents=parents, listeners=("x",))
    assert needed_links(tree, "a") == ("b", "c")
    assert needed_links(tree, "c") == ("a",)
    assert needed_links(tree, "x") == ()
    assert needed_links(tree, "elsewhere") == ()
    ring = SynchronizationPolicy(shape=Shape.RING, order=("a", "b", "c", "d"))
    assert set(needed_links(ring, "a")) == {"b", "d"}
    assert set(needed_links(ring, "c")) == {"b", "d"}


def test_who_waits_for_a_link_for_hours_looks_for_it_every_second():
    assert [pause_seconds(num_lost) for num_lost in (1, 2, 3, 4, 8, 9, 5_000)] == [0.0, 0.0, 0.02, 0.04, 0.64, 1.0, 1.0]
