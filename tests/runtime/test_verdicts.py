"""Who of the holders of a layer is wrong, where most others say so."""

from hypothesis import given
from hypothesis import strategies as st

from kintsugi.runtime.verdicts import Verdict, Vote, judged


def votes(**digests: float) -> dict[str, Vote]:
    """Of holders on devices of one kind."""
    return {worker: Vote(1.0, digest) for worker, digest in digests.items()}


def test_who_holds_something_else_than_most_is_wrong():
    assert judged({0: votes(a=1, b=1, c=1), 1: votes(a=2, b=2)}) == Verdict()
    assert judged({0: votes(a=1, b=2, c=1)}) == Verdict((0,), ("b",))
    assert judged({0: votes(a=1, b=2, c=1, d=3)}) == Verdict((0,), ("b", "d"))


def test_one_against_one_is_nobody():
    assert judged({3: votes(a=1, b=2)}) == Verdict((3,), (), (3,))
    assert judged({3: votes(a=1, b=2, c=3)}) == Verdict((3,), (), (3,))
    assert judged({3: votes(a=1, b=2, c=2, d=1)}) == Verdict((3,), (), (3,))


def test_who_is_wrong_about_one_layer_is_no_witness_for_another():
    assert judged({0: votes(a=1, b=2, c=1), 1: votes(b=5, c=6)}) == Verdict((0, 1), ("b",))
    assert judged({0: votes(a=1, b=2, c=1), 1: votes(b=5, c=6, d=7)}) == Verdict((0, 1), ("b",), (1,))
    assert judged({0: votes(a=1, b=2, c=1), 1: votes(b=5, d=6, e=5)}) == Verdict((0, 1), ("b", "d"))
    assert judged({0: votes(a=1, b=2, c=1), 1: votes(b=5, d=6), 2: votes(d=7, e=8)}) == Verdict((0, 1, 2), ("b",), (2,))
    chain = {0: votes(a=1, b=2, c=1), 1: votes(b=5, d=5, e=6, f=6), 2: votes(d=1, g=2)}
    assert judged(chain) == Verdict((0, 1, 2), ("b", "d"))


def test_devices_of_other_kinds_are_not_compared():
    mixed = {"a": Vote(1.0, 7.0), "b": Vote(1.0, 7.0), "c": Vote(2.0, 8.0)}
    assert judged({0: mixed}) == Verdict()
    assert judged({0: mixed | {"d": Vote(2.0, 9.0)}}) == Verdict((0,), (), (0,))
    assert judged({0: mixed | {"d": Vote(1.0, 9.0)}}) == Verdict((0,), ("d",))


def test_who_copied_a_layer_is_no_witness_for_its_source():
    told = {0: votes(a=1, b=2, copy=2)}
    assert judged(told) == Verdict((0,), ("a",))
    assert judged(told, {(0, "copy")}) == Verdict((0,), (), (0,))
    assert judged({0: votes(a=1, b=2, c=1, copy=2)}, {(0, "copy")}) == Verdict((0,), ("b", "copy"))
    assert judged({0: votes(a=1, b=2, c=2)}, {(0, "a"), (0, "b"), (0, "c")}) == Verdict((0,), ("a",))


def test_a_source_does_not_stand_against_copies_of_it_that_agree_with_each_other():
    """It may have erred since it sent what they hold."""
    copies = {(0, "b"), (0, "c"), (0, "d")}
    assert judged({0: votes(a=2, b=1, c=1, d=1)}, copies) == Verdict((0,), (), (0,))
    assert judged({0: votes(a=2, b=2, c=1, d=1)}, copies) == Verdict((0,), (), (0,))
    assert judged({0: votes(a=2, b=2, c=2, d=1)}, copies) == Verdict((0,), ("d",))
    assert judged({0: votes(a=2, b=1)}, {(0, "b")}) == Verdict((0,), (), (0,))
    assert judged({0: votes(a=2, b=1, c=3)}, copies) == Verdict((0,), (), (0,))


def test_a_source_may_be_preferred_to_copies_that_agree_with_nobody():
    copies = {(0, "b"), (0, "c"), (0, "d")}
    for told, wrong in (
        (votes(a=2, b=1), ("b",)),
        (votes(a=2, b=1, c=3), ("b", "c")),
        (votes(a=2, b=2, c=1), ("c",)),
        (votes(a=2, b=1, c=1, d=1), ()),
        (votes(a=2, b=2, c=1, d=1), ()),
    ):
        found = judged({0: told}, copies, prefers_sources=True)
        assert found == Verdict((0,), wrong, () if wrong else (0,))


@given(st.data())
def test_all_who_err_are_found_and_nobody_else(data):
    """Any workers err, in any layers of theirs, each in a way of its own, as long as two holders of each layer are right."""
    workers = [f"w{number}" for number in range(data.draw(st.integers(3, 7)))]
    holders = data.draw(st.lists(st.sets(st.sampled_from(workers), min_size=1), min_size=1, max_size=5))
    erring = {(layer, worker) for layer, own in enumerate(holders) for worker in sorted(own) if data.draw(st.integers(0, 4)) == 0}
    for layer, own in enumerate(holders):
        while (gone := [worker for worker in sorted(own) if (layer, worker) in erring]) and len(own) - len(gone) < 2:
            erring.remove((layer, gone[0]))
    told = {
        layer: votes(**{worker: 1.0 + (2 + workers.index(worker)) * ((layer, worker) in erring) for worker in own})
        for layer, own in enumerate(holders)
    }
    expected = Verdict(tuple(sorted({layer for layer, _ in erring})), tuple(sorted({worker for _, worker in erring})))
    assert judged(told) == expected
