"""State arrives bit for bit, however it was cut and whoever is lost on the way; what is damaged is refused."""

from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.decision import Migration, StateKind
from kintsugi.core.errors import CommunicationError, ReconfigurationError
from restorer import streams
from restorer.reconfigure import migrate
from restorer.staging import Staging
from tests.restorer.memory_wire import Wire, carry_out, one_attempt, state_of
from tests.restorer.states import ENTRIES, NUM_BYTES, VALUES, assert_same_bits, transfer


@given(ENTRIES, st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
@settings(deadline=None)
def test_state_cut_over_several_sources_is_whole_again(entries, sizes):
    migration = Migration(transfers=tuple(transfer(f"s{n}", size) for n, size in enumerate(sizes)))
    exports = {f"s{n}": state_of(entries) for n in range(len(sizes))}
    arrived = carry_out(migration, exports)
    assert arrived["t"].keys() == {(0, StateKind.PARAMETER)}
    assert_same_bits(entries, arrived["t"][0, StateKind.PARAMETER])


def test_several_layers_and_kinds_go_to_several_targets():
    kinds = (StateKind.PARAMETER, StateKind.OPTIMIZER)
    state = {(layer, kind): {("p", str(layer)): torch.full((4,), float(layer))} for layer in range(3) for kind in kinds}
    migration = Migration(
        transfers=tuple(
            transfer(f"s{layer % 2}", 10, target, layer, kind) for target in ("t0", "t1") for layer in range(3) for kind in kinds
        )
    )
    arrived = carry_out(migration, {"s0": state, "s1": state})
    for target in ("t0", "t1"):
        assert arrived[target].keys() == state.keys()
        for key, entries in state.items():
            assert_same_bits(entries, arrived[target][key])
    assert arrived["s0"] == {}


def test_who_has_no_part_does_nothing():
    def never(*_):
        pytest.fail("nothing is asked of c")

    migration = Migration(transfers=(transfer("a", 1, "b"),))
    assert migrate(migration, "c", Staging(), version=0, export=never, open_transport=never) == {}


FIRST_CHUNK_TAG = 7
"""After the two messages with the headers; those of a source have odd tags, and every chunk's seal follows it."""


@pytest.fixture(name="small_chunks")
def of_sixteen_bytes(monkeypatch):
    monkeypatch.setattr(streams, "CHUNK_BYTES", 16)


@pytest.mark.parametrize("tag", [FIRST_CHUNK_TAG, FIRST_CHUNK_TAG + 2, FIRST_CHUNK_TAG + 8])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.usefixtures("small_chunks")
def test_a_damaged_chunk_alone_is_sent_again(tag, place):
    def damage(key, tensor):
        if key[2] == tag and key[0] == "s0":
            tensor[place] ^= 1
        return tensor

    wire, stagings = Wire(damage=damage), defaultdict(Staging)
    outcomes = one_attempt(Migration(transfers=(transfer("s0", 1),)), {"s0": state_of(VALUES)}, wire, stagings)
    assert_same_bits(VALUES, outcomes["t"][0, StateKind.PARAMETER])
    sizes = [size for (source, _, number), size in wire.sent if source == "s0" and number >= FIRST_CHUNK_TAG]
    assert sizes == [16, 1] * (NUM_BYTES // 16 + 1)
    assert stagings["t"].num_arrived_bytes == NUM_BYTES


def test_what_stays_damaged_is_refused():
    def damage(key, tensor):
        if key[0] == "s0" and key[2] >= FIRST_CHUNK_TAG:
            tensor[0] ^= 1
        return tensor

    with pytest.raises(CommunicationError, match="parameter state of layer 0 from s0 arrived damaged"):
        carry_out(Migration(transfers=(transfer("s0", 1),)), {"s0": state_of(VALUES)}, damage)


def test_damaged_headers_are_refused():
    def damage(key, tensor):
        if key[0] == "s0" and key[2] == FIRST_CHUNK_TAG - 2:
            tensor[3] ^= 1
        return tensor

    with pytest.raises(CommunicationError, match="a message from s0 arrived damaged"):
        carry_out(Migration(transfers=(transfer("s0", 1),)), {"s0": state_of(VALUES)}, damage)


@pytest.mark.usefixtures("small_chunks")
def test_few_chunks_are_in_flight(monkeypatch):
    monkeypatch.setattr(streams, "MOST_IN_FLIGHT", 3)
    wire = Wire()
    one_attempt(
        Migration(transfers=(transfer("s0", 1), transfer("s1", 1))),
        dict.fromkeys(("s0", "s1"), state_of(VALUES)),
        wire,
        defaultdict(Staging),
    )
    assert wire.most_waiting["s0", "t"] == wire.most_waiting["s1", "t"] == 2 * 3, "chunks, and their seals"


@given(st.lists(st.integers(1, 26), min_size=1, max_size=3), st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_what_arrived_before_a_source_died_is_not_fetched_again(deaths, num_sources):
    """Every attempt loses a source after some messages; the last one, from other holders, brings what is missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK_BYTES", 16)
        stagings = defaultdict(Staging)
        exports = {f"s{n}": state_of(VALUES) for n in range(10)}
        for attempt, death in enumerate(deaths):
            dying = f"s{attempt}"
            wire = Wire(breaks_at=lambda key, dying=dying, death=death: key[0] == dying and key[2] == 2 * death + 1)
            one_attempt(Migration(transfers=(transfer(dying, 1), transfer("s9", 2))), exports, wire, stagings)
            assert stagings["t"].num_arrived_bytes <= NUM_BYTES
        sources = [f"s{n}" for n in range(5, 5 + num_sources)]
        last = one_attempt(Migration(transfers=tuple(transfer(name, 1) for name in sources)), exports, Wire(), stagings)
        assert_same_bits(VALUES, last["t"][0, StateKind.PARAMETER])
        assert stagings["t"].num_arrived_bytes == NUM_BYTES


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("version", "fetched"), [(7, NUM_BYTES), (8, NUM_BYTES + 48)])
def test_only_bytes_of_the_same_version_are_kept(version, fetched):
    stagings = defaultdict(Staging)
    old = {("p", "k"): torch.zeros(40)} if version != 7 else VALUES
    wire = Wire(breaks_at=lambda key: key[0] == "s0" and key[2] == FIRST_CHUNK_TAG + 3 * 4)
    one_attempt(Migration(transfers=(transfer("s0", 1),)), {"s0": state_of(old)}, wire, stagings, version=7)
    assert stagings["t"].num_arrived_bytes == 48
    outcomes = one_attempt(Migration(transfers=(transfer("s1", 1),)), {"s1": state_of(VALUES)}, Wire(), stagings, version=version)
    assert_same_bits(VALUES, outcomes["t"][0, StateKind.PARAMETER])
    assert stagings["t"].num_arrived_bytes == fetched


def test_sources_that_disagree_are_refused():
    exports = {
        "s0": {(0, StateKind.OPTIMIZER): {("p", "k"): torch.arange(9.0)}},
        "s1": {(0, StateKind.OPTIMIZER): {}},
    }
    transfers = tuple(transfer(source, 1, kind=StateKind.OPTIMIZER) for source in ("s0", "s1"))
    with pytest.raises(ReconfigurationError, match="optimizer state of layer 0"):
        carry_out(Migration(transfers=transfers), exports)


def test_optimizer_state_that_no_transfer_takes_along_is_not_left_behind():
    exports = {"s0": state_of({("p", "k"): torch.arange(9.0)}, {("p", "step"): 3})}
    with pytest.raises(ReconfigurationError, match="optimizer_bytes: is 0 for layer 0 in the profile"):
        carry_out(Migration(transfers=(transfer("s0", 1),)), exports)
