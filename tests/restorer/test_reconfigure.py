"""State arrives bit for bit, whatever its types and however it was cut; what is damaged is refused."""

import itertools
import threading
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.decision import Migration, StateKind, Transfer
from kintsugi.core.errors import CommunicationError, KintsugiError, ReconfigurationError
from restorer import streams
from restorer.packing import HOST, HUGE_BYTES, PackedState, pack, unpack
from restorer.parts import parts_of
from restorer.reconfigure import migrate
from restorer.sealing import Sealer, verified
from restorer.staging import Staging
from restorer.transport import TensorSpec

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
SHAPES = [(), (1,), (0,), (3, 0), (5,), (2, 3), (3, 1, 2)]


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Random bits, so that signalling values and negative zeros are among them."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    limit = 2 if dtype is torch.bool else 256
    bits = torch.randint(0, limit, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return bits.view(dtype).reshape(shape)


def bits_of(value: torch.Tensor) -> bytes:
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same_bits(one, other):
    assert list(one) == list(other)
    for key, value in one.items():
        if not isinstance(value, torch.Tensor):
            assert (other[key], type(other[key])) == (value, type(value))
            continue
        assert other[key].dtype == value.dtype
        assert other[key].shape == value.shape
        assert bits_of(other[key]) == bits_of(value)


TENSORS = st.builds(tensor_of, st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.integers(0, 99))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
ENTRIES = st.dictionaries(st.tuples(st.text(max_size=5), st.text(max_size=5)), TENSORS | PLAIN, max_size=6)


@given(ENTRIES)
@settings(deadline=None)
def test_pack_and_unpack_keep_every_bit(entries):
    assert_same_bits(entries, unpack(*pack(entries)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_shape(dtype):
    entries = {("p", str(n)): tensor_of(dtype, shape, n) for n, shape in enumerate(SHAPES)}
    assert_same_bits(entries, unpack(*pack(entries)))


def test_views_and_tensors_with_history_are_packed_as_they_look():
    matrix = torch.arange(6.0).reshape(2, 3)
    entries = {("t", "a"): matrix.T, ("t", "b"): matrix[:, 1], ("t", "c"): torch.nn.Parameter(matrix) * 2}
    assert_same_bits({key: value.detach().contiguous() for key, value in entries.items()}, unpack(*pack(entries)))


def test_what_was_unpacked_is_its_own():
    source = torch.zeros(3)
    header, payload = pack({("p", "k"): source})
    arrived = unpack(header, payload)["p", "k"]
    payload.fill_(255)
    source.fill_(7)
    assert torch.equal(arrived, torch.zeros(3))


def transfer(source: str, num_bytes: int, target: str = "t", layer: int = 0, kind: StateKind = StateKind.PARAMETER) -> Transfer:
    return Transfer(source=source, target=target, layer=layer, kind=kind, num_bytes=num_bytes)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(StateKind), st.integers(0, 10**12)), max_size=12), st.integers(0, 10**6)
)
def test_parts_meet_exactly_and_cover_everything(pieces, actual_bytes):
    transfers = tuple(transfer(f"s{n}", size, layer=layer, kind=kind) for n, (layer, kind, size) in enumerate(pieces))
    parts = defaultdict(list)
    for part in parts_of(Migration(transfers=transfers)):
        parts[part.transfer.layer, part.transfer.kind].append(part)
    for own in parts.values():
        slices = [part.slice_of(actual_bytes) for part in own]
        if any(part.transfer.num_bytes for part in own):
            assert all(one.stop == following.start for one, following in itertools.pairwise(slices))
        assert slices[0].start == 0
        assert slices[-1].stop == actual_bytes


@dataclass
class Handle:
    """An end of a message in memory."""

    take: object

    def wait(self):
        return self.take()


@dataclass
class Wire:
    """Messages between threads, by (source, target, tag); may damage one, or break for good."""

    messages: dict = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    damage: object = None
    breaks_at: object = None
    is_broken: bool = False
    sent: list = field(default_factory=list)
    most_waiting: Counter = field(default_factory=Counter)
    waiting: Counter = field(default_factory=Counter)

    def put(self, key, tensor):
        with self.changed:
            self.sent.append((key, len(tensor)))
            if self.is_broken or (self.breaks_at and self.breaks_at(key)):
                self.break_down()
                raise CommunicationError("a peer is gone")
            self.messages[key] = self.damage(key, tensor.clone()) if self.damage else tensor.clone()
            self.changed.notify_all()

    def get(self, key, spec):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.messages or self.is_broken, timeout=10), key
            self.waiting[key[:2]] -= 1
            if key not in self.messages:
                raise CommunicationError("a peer is gone")
            tensor = self.messages.pop(key)
        assert tensor.shape == torch.Size(spec.shape)
        assert tensor.dtype == spec.dtype
        return tensor

    def break_down(self):
        with self.changed:
            self.is_broken = True
            self.changed.notify_all()


@dataclass
class MemoryTransport:
    """A transport between threads of one process."""

    worker: str
    wire: Wire

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Handle:
        self.wire.put((self.worker, peer, tag), tensor)
        return Handle(lambda: None)

    def receive(self, spec: TensorSpec, peer: str, tag: int) -> Handle:
        pair = (peer, self.worker)
        self.wire.waiting[pair] += 1
        self.wire.most_waiting[pair] = max(self.wire.most_waiting[pair], self.wire.waiting[pair])
        return Handle(lambda: self.wire.get((*pair, tag), spec))

    def close(self) -> None:
        """Nothing waits here."""


def state_of(parameters, optimizer=None):
    """The state of layer 0, by default without any of the optimizer's."""
    return {(0, StateKind.PARAMETER): parameters, (0, StateKind.OPTIMIZER): optimizer or {}}


def one_attempt(migration: Migration, exports, wire: Wire, stagings, version: int = 0):
    """Every worker in a thread of its own; what arrived at each, or the error it met."""
    workers = sorted({name for t in migration.transfers for name in (t.source, t.target)})
    outcomes = {}

    def work(worker: str) -> None:
        own = exports.get(worker)
        try:
            outcomes[worker] = migrate(
                migration,
                worker,
                stagings[worker],
                version=version,
                export=lambda layer, kind: own[layer, kind],
                open_transport=lambda _: MemoryTransport(worker, wire),
            )
        except KintsugiError as error:
            outcomes[worker] = error
            wire.break_down()

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert outcomes.keys() == set(workers)
    return outcomes


def carry_out(migration: Migration, exports, damage=None):
    """One attempt; raises the first error that anybody meets."""
    wire = Wire(damage=damage)
    outcomes = one_attempt(migration, exports, wire, defaultdict(Staging))
    for outcome in outcomes.values():
        if isinstance(outcome, KintsugiError):
            raise outcome
    assert not wire.messages, "every message was taken"
    return outcomes


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
"""After the two messages with the headers; those of a source have odd tags."""


@pytest.fixture(name="small_chunks")
def of_sixteen_bytes(monkeypatch):
    monkeypatch.setattr(streams, "CHUNK_BYTES", 16)


VALUES = {("p", "k"): torch.arange(40.0)}
NUM_BYTES = 160


@pytest.mark.parametrize("tag", [FIRST_CHUNK_TAG, FIRST_CHUNK_TAG + 8])
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
    chunks = [size for (source, _, number), size in wire.sent if source == "s0" and number >= FIRST_CHUNK_TAG]
    assert chunks == [16 + 8] * (NUM_BYTES // 16 + 1)
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


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 3))
@settings(deadline=None)
def test_sealed_chunks_last_as_long_as_they_are_held(sizes, num_held):
    """Buffers come round again, and none before its message was given up."""
    packed = PackedState({("p", "k"): torch.arange(40, dtype=torch.uint8)})
    held = deque(maxlen=num_held)
    for size, message in zip(sizes, Sealer(HOST, num_held).messages((packed, 0, size) for size in sizes), strict=True):
        held.append((size, message))
        for expected, earlier in held:
            assert verified(earlier).tolist() == list(range(expected))


def test_damage_is_found_wherever_it_is():
    packed = PackedState({("p", "k"): torch.arange(40, dtype=torch.uint8)})
    (message,) = Sealer(HOST, 1).messages([(packed, 3, 33)])
    for place in range(len(message)):
        damaged = message.clone()
        damaged[place] ^= 64
        assert verified(damaged) is None


def test_large_tensors_are_written_as_small_ones_are():
    """Their memory is another's."""
    values = torch.arange(HUGE_BYTES // 8 + 3, dtype=torch.float64)
    assert_same_bits({("p", "k"): values}, unpack(*pack({("p", "k"): values})))


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
    assert wire.most_waiting["s0", "t"] == wire.most_waiting["s1", "t"] == 3


@given(st.lists(st.integers(1, 14), min_size=1, max_size=3), st.integers(1, 3))
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
    wire = Wire(breaks_at=lambda key: key[0] == "s0" and key[2] == FIRST_CHUNK_TAG + 6)
    one_attempt(Migration(transfers=(transfer("s0", 1),)), {"s0": state_of(old)}, wire, stagings, version=7)
    assert stagings["t"].num_arrived_bytes == 48
    outcomes = one_attempt(Migration(transfers=(transfer("s1", 1),)), {"s1": state_of(VALUES)}, Wire(), stagings, version=version)
    assert_same_bits(VALUES, outcomes["t"][0, StateKind.PARAMETER])
    assert stagings["t"].num_arrived_bytes == fetched


def test_streams_that_were_left_behind_change_nothing():
    staging, key = Staging(), (0, StateKind.PARAMETER)
    first = staging.begin(3, {key})
    staging.describe(first, key, PackedState(VALUES).header, "s0")
    staging.take(first, key, 0, torch.full((NUM_BYTES,), 1, dtype=torch.uint8))
    arrived = staging.arrived()[key]["p", "k"]
    bits = bits_of(arrived)
    for over in (lambda: staging.begin(3, {key}), staging.clear):
        over()
        with pytest.raises(CommunicationError, match="called off"):
            staging.take(first, key, 0, torch.zeros(NUM_BYTES, dtype=torch.uint8))
        assert bits_of(arrived) == bits


def test_nothing_is_handed_out_before_all_of_it_arrived():
    staging, key = Staging(), (0, StateKind.PARAMETER)
    turn = staging.begin(3, {key})
    staging.describe(turn, key, PackedState(VALUES).header, "s0")
    staging.take(turn, key, 16, torch.zeros(NUM_BYTES - 16, dtype=torch.uint8))
    with pytest.raises(CommunicationError, match="parameter state of layer 0 lacks bytes 0 to 16"):
        staging.arrived()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8), st.integers(0, 30), st.integers(0, 30))
def test_gaps_are_what_is_not_covered(ranges, begin, end):
    staging, key = Staging(), (0, StateKind.PARAMETER)
    header = PackedState({("p", "k"): torch.zeros(30, dtype=torch.uint8)}).header
    turn = staging.begin(0, {key})
    staging.describe(turn, key, header, "s0")
    covered = set()
    for low, high in ((min(pair), max(pair)) for pair in ranges):
        staging.take(turn, key, low, torch.zeros(high - low, dtype=torch.uint8))
        covered |= set(range(low, high))
    gaps = staging.missing(key, begin, end)
    assert [place for low, high in gaps for place in range(low, high)] == [p for p in range(begin, end) if p not in covered]
    assert all(low < high for low, high in gaps)


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
