"""State arrives bit for bit, whatever its types and however it was cut; what is damaged is refused."""

import itertools
import threading
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.decision import Migration, StateKind, Transfer
from kintsugi.core.errors import CommunicationError, ReconfigurationError
from restorer.reconfigure import migrate, pack, parts_of, unpack
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
    """Messages between threads, by (source, target, tag); may damage one."""

    messages: dict = field(default_factory=dict)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    damage: object = None

    def put(self, key, tensor):
        with self.arrived:
            self.messages[key] = self.damage(key, tensor.clone()) if self.damage else tensor.clone()
            self.arrived.notify_all()

    def get(self, key, spec):
        with self.arrived:
            assert self.arrived.wait_for(lambda: key in self.messages, timeout=10), key
            tensor = self.messages.pop(key)
        assert tensor.shape == torch.Size(spec.shape)
        assert tensor.dtype == spec.dtype
        return tensor


@dataclass
class MemoryTransport:
    """A transport between threads of one process."""

    worker: str
    wire: Wire

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Handle:
        self.wire.put((self.worker, peer, tag), tensor)
        return Handle(lambda: None)

    def receive(self, spec: TensorSpec, peer: str, tag: int) -> Handle:
        return Handle(lambda: self.wire.get((peer, self.worker, tag), spec))


def state_of(parameters, optimizer=None):
    """The state of layer 0, by default without any of the optimizer's."""
    return {(0, StateKind.PARAMETER): parameters, (0, StateKind.OPTIMIZER): optimizer or {}}


def carry_out(migration: Migration, exports, damage=None):
    """Senders first, which never wait here, then the targets, in this one thread."""
    wire = Wire(damage=damage)
    senders = {t.source for t in migration.transfers}
    targets = {t.target for t in migration.transfers} - senders
    arrived = {}
    for worker in [*sorted(senders), *sorted(targets)]:
        own = exports.get(worker)
        arrived[worker] = migrate(migration, worker, MemoryTransport(worker, wire), lambda layer, kind, own=own: own[layer, kind])
    assert not wire.messages, "every message was taken"
    return arrived


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
    migration = Migration(transfers=(transfer("a", 1, "b"),))
    assert migrate(migration, "c", MemoryTransport("c", Wire()), lambda *_: pytest.fail("nothing is asked of c")) == {}


@pytest.mark.parametrize("place", [0, -1])
def test_a_damaged_message_is_refused(place):
    def damage(key, tensor):
        if key[2] == 1:
            tensor[place] ^= 1
        return tensor

    exports = {"s0": state_of({("p", "k"): torch.arange(9.0)})}
    with pytest.raises(CommunicationError, match="parameter state of layer 0 from s0 arrived damaged"):
        carry_out(Migration(transfers=(transfer("s0", 1),)), exports, damage)


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
