"""Shards from several sources: every byte once, each stretch proven, and lost sources replaced."""

import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.errors import CommunicationError, InvalidInputError
from kintsugi.core.overlay import Replication, ReplicationShare
from kintsugi.runtime.overlay.arrival import Arrival
from kintsugi.runtime.overlay.committed import Sum
from kintsugi.runtime.overlay.flat_state import FlatState, atomic_shard_bytes
from kintsugi.runtime.overlay.following import FORGOTTEN
from kintsugi.runtime.overlay.messages import Channel, Message
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.ranges import Ranges, length, stretches, tail, united, within, without
from kintsugi.runtime.overlay.shares import share_ranges
from kintsugi.runtime.overlay.snapshot import Snapshot
from kintsugi.runtime.overlay.sources import GONE, SEAL, SHARD, Sources, keys
from planner.overlay.topology import empty_overlay
from restorer.packing import PackedState
from tests.planner.overlay.world import mesh

ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: tuple(sorted(pair))), max_size=4)


def members(several) -> set[int]:
    return {byte for begin, end in several for byte in range(begin, end)}


@given(ranges, ranges)
def test_ranges_are_sets_of_bytes(one, other):
    assert members(united(one, other)) == members(one) | members(other)
    assert members(without(one, other)) == members(one) - members(other)
    assert members(within(one, other)) == members(one) & members(other)
    assert length(one) == len(members(one))
    assert members(stretches(united(one), 3)) == members(one)
    assert all(end - begin <= 3 for begin, end in stretches(united(one), 3))


@given(ranges, st.integers(0, 40))
def test_a_tail_is_the_last_bytes(one, num_bytes):
    assert members(tail(one, num_bytes)) == set(sorted(members(one))[max(len(members(one)) - num_bytes, 0) :])


def replication(state_bytes: int, shard_bytes: int, *counts: int, generation: int = 7) -> Replication:
    """Consecutive shares of sources `s0`, `s1`, ..."""
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    shares = tuple(
        ReplicationShare(source=f"s{index}", first_shard=first, num_shards=count)
        for index, (first, count) in enumerate(zip(firsts, counts, strict=True))
        if count
    )
    return Replication(
        joiner="x",
        generation=generation,
        state_bytes=state_bytes,
        shard_bytes=shard_bytes,
        shares=shares,
        makespan_seconds=1.0,
        lower_bound_seconds=1.0,
    )


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any), st.integers(1, 9), st.integers(0, 200))
def test_shares_cover_whatever_the_state_really_has(counts, shard_bytes, num_bytes):
    shares = share_ranges(replication(sum(counts) * shard_bytes, shard_bytes, *counts), num_bytes)
    assert members(part for several in shares.values() for part in several) == set(range(num_bytes))
    assert sum(length(several) for several in shares.values()) == num_bytes


@pytest.mark.parametrize("sizes", [[1024], [1024, 1536]])
def test_all_neighbors_send_of_a_model_without_any_bias(sizes):
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, size, bias=False) for size in sizes))
    state_bytes = FlatState(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1)).expected_bytes()
    names = ["w00", "w01", "w02"]
    world = mesh(*names)
    world.join("w03", *names, state_bytes=state_bytes, shard_bytes=atomic_shard_bytes(model, state_bytes))
    for name in names:
        world.measure(name, "w03", beta=8e-8)
    (plan,) = world.overlay.replications
    assert set(share_ranges(plan, state_bytes)) == set(names)
    assert plan.makespan_seconds < 1.01 * plan.lower_bound_seconds


def state(*, is_trained: bool = True) -> PackedState:
    weight = torch.nn.Parameter(torch.arange(50.0), requires_grad=is_trained)
    return PackedState({("buffer", "buffer"): torch.ones(3), ("weight", "parameter"): weight})


class Mailbox:
    """Takes what a source sends; what `fetch` would answer can be looked at."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sealed = threading.Condition()

    def send(self, worker: str, message: Message) -> None:
        with self.sealed:
            self.messages.append(message)
            self.sealed.notify_all()

    def tell(self, worker: str, kind: str, fields) -> bool:
        self.send(worker, Message(Channel.CONTROL, kind, fields))
        return True

    def until(self, num_bytes: int) -> list[Message]:
        """What was sent, once stretches of so many bytes are complete."""
        with self.sealed:
            assert self.sealed.wait_for(lambda: self._sealed_bytes() >= num_bytes, 60.0)
            return list(self.messages)

    def _sealed_bytes(self) -> int:
        return sum(one.fields["end"] - one.fields["begin"] for one in self.messages if one.kind == SEAL)


OPTIONS = OverlayOptions(chunk_bytes=32)


def sent_by(
    source: str, plan: Replication, packed: PackedState, options: OverlayOptions = OPTIONS, box: Mailbox | None = None
) -> tuple[Sources, Mailbox]:
    box = box or Mailbox()
    sources = Sources(source, box, options)
    overlay = replace(empty_overlay("job"), replications=(plan,))
    sources.begin(overlay, keys(overlay), Sum(4, 1), lambda: packed)
    return sources, box


def never(source: str, ranges: Ranges) -> None:
    raise AssertionError(f"{source} was told about {ranges}")


def test_several_sources_send_every_byte_once():
    original, plan = state(), replication(212, 4, 20, 0, 33)
    arrival = Arrival(7, lambda: None)
    for source in ("s0", "s2"):
        sources, box = sent_by(source, plan, state())
        messages = box.until(length(share_ranges(plan, original.num_bytes)[source]))
        assert sources.joiners == ("x",)
        for message in messages:
            arrival.take(source, message)
        sources.retain(())
        assert sources.joiners == ()
    arrived = arrival.finish()
    assert not arrival.failure
    assert (arrival.at, arrival.received_bytes) == ((4, 1), 212)
    assert all(torch.equal(arrived.entries[key], value) for key, value in original.entries.items())


def test_what_a_lost_source_did_not_send_is_asked_of_the_others():
    plan, asked = replication(212, 4, 20, 33), {}
    arrival = Arrival(7, lambda: None)
    sources, box = sent_by("s0", plan, state())
    for message in box.until(80):
        arrival.take("s0", message)
    arrival.reconcile(plan, asked.__setitem__, never)
    assert not asked
    arrival.reconcile(replication(212, 4, 53), asked.__setitem__, never)
    assert asked == {"s0": ((80, 212),)}
    arrival.reconcile(replication(212, 4, 53), asked.__setitem__, never)
    assert asked == {"s0": ((80, 212),)}
    sources.fetch("x", {"replication": 7, "ranges": [[80, 212]]})
    for message in box.until(212)[len(box.messages) - 6 :]:
        arrival.take("s0", message)
    sources.close()


def test_a_source_keeps_its_copy_while_training_goes_on():
    packed = state()
    sources, box = sent_by("s0", replication(212, 4, 53), packed)
    sources.finish_copies()
    box.until(212)
    with torch.no_grad():
        packed.entries["weight", "parameter"].fill_(-1.0)
    sources.fetch("x", {"replication": 7, "ranges": [[12, 52]]})
    last = [message for message in box.until(252) if message.kind == SHARD][-2:]
    content = b"".join(bytes(message.payload) for message in last)
    assert torch.equal(torch.frombuffer(bytearray(content), dtype=torch.float32), torch.arange(10.0))
    sources.close()


@pytest.mark.parametrize("is_over", [False, True])
def test_a_step_waits_for_every_copy_that_is_being_made(monkeypatch, is_over):
    """Of several workers that join at once with a copy each, and where none of them is there any more."""
    monkeypatch.setattr("kintsugi.runtime.overlay.flat_state._PIECE_BYTES", 4)
    may_copy, has_stepped, read = threading.Event(), threading.Event(), PackedState.read

    def slow(packed: PackedState, begin: int, into: torch.Tensor) -> None:
        if threading.current_thread().name == "overlay-copies" and begin < 80:
            assert may_copy.wait(120.0)
        read(packed, begin, into)

    def step() -> None:
        sources.finish_copies()
        with torch.no_grad():
            packed.entries["weight", "parameter"].fill_(-1.0)
        has_stepped.set()

    monkeypatch.setattr(PackedState, "read", slow)
    packed, box = state(), Mailbox()
    sources = Sources("s0", box, replace(OPTIONS, copies_whole_state=False))
    first = replication(212, 4, 20)
    other = replace(first, joiner="y", shares=(ReplicationShare(source="s0", first_shard=20, num_shards=33),))
    overlay = replace(empty_overlay("job"), replications=(first, other))
    sources.begin(overlay, keys(overlay), Sum(4, 1), lambda: packed)
    if is_over:
        sources.retain(())
    stepping = threading.Thread(target=step)
    stepping.start()
    assert not has_stepped.wait(0.2)
    may_copy.set()
    stepping.join(120.0)
    assert has_stepped.is_set()
    if not is_over:
        shards = [message for message in box.until(212) if message.kind == SHARD]
        content = b"".join(bytes(one.payload) for one in sorted(shards, key=lambda one: one.fields["at"]))
        assert torch.equal(torch.frombuffer(bytearray(content), dtype=torch.float32)[3:], torch.arange(50.0))
    sources.close()


def test_a_source_that_copied_its_own_shares_alone_says_that_it_has_no_others(monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.overlay.flat_state._PIECE_BYTES", 4)
    snapshot = Snapshot(state(), Sum(1, 0), ((0, 40),), is_whole=False)
    assert snapshot.holds(((8, 40),))
    assert not snapshot.holds(((8, 60),))
    assert bytes(snapshot.read(12, 16, 30.0)) == torch.zeros(1).numpy().tobytes()
    box = Mailbox()
    Sources("s0", box, OPTIONS).fetch("x", {"replication": 3, "ranges": [[0, 4]]})
    assert box.messages[0].kind == GONE


@pytest.mark.parametrize("first", [((20, 40),), ((0, 4),), ((8, 212),)])
def test_a_source_holds_all_of_what_it_says_that_it_holds(first):
    packed = state()
    snapshot = Snapshot(packed, Sum(1, 0), first, is_whole=False)
    assert snapshot.holds(((0, 212),)), "which lies in one piece"
    content = torch.empty(212, dtype=torch.uint8)
    packed.read(0, content)
    assert bytes(snapshot.read(0, 212, 30.0)) == content.numpy().tobytes()


def test_a_state_that_cannot_be_sent_is_the_joiner_s_trouble_alone():
    def packed() -> PackedState:
        raise InvalidInputError("holds a set", field="optimizer.seen")

    box, plan = Mailbox(), replication(212, 4, 53)
    sources = Sources("s0", box, OPTIONS)
    overlay = replace(empty_overlay("job"), replications=(plan,))
    sources.begin(overlay, keys(overlay), Sum(4, 1), packed)
    assert sources.joiners == ()
    sources.follow("x", {"replication": 7, "after": [4, 1], "up_to": 9})
    refused, forgotten = box.messages
    assert (refused.kind, forgotten.kind) == (GONE, FORGOTTEN)
    arrival = Arrival(7, lambda: None)
    arrival.take("s0", refused)
    assert arrival.refusal == "s0 cannot send its state: optimizer.seen: holds a set"


def test_frozen_parameters_are_read_where_they_are_and_must_not_change():
    packed = state(is_trained=False)
    snapshot = Snapshot(packed, Sum(1, 0), ((0, 212),), is_whole=True)
    snapshot.finish()
    assert bytes(snapshot.read(8, 20, 30.0)) == torch.tensor([1.0, 0.0, 1.0]).numpy().tobytes()
    packed.entries["buffer", "buffer"].fill_(7.0)
    assert bytes(snapshot.read(8, 12, 30.0)) == torch.ones(1).numpy().tobytes()
    packed.entries["weight", "parameter"].data = packed.entries["weight", "parameter"].data.clone()
    packed.entries["weight", "parameter"].zero_()
    with pytest.raises(CommunicationError, match="not trained was changed"):
        snapshot.read(12, 20, 30.0)


class Clock:
    """A monotonic clock that goes on when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_source_that_is_through_early_takes_over_from_one_that_is_slow(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("kintsugi.runtime.overlay.arrival.time", clock)
    packed = PackedState({("weight", "parameter"): torch.nn.Parameter(torch.arange(1_000_000.0))})
    half, chunk = packed.num_bytes // 2, 100_000
    plan = replication(packed.num_bytes, half, 1, 1)
    arrival, boxes, all_sources = Arrival(7, lambda: None), {}, {}
    for source in ("s0", "s1"):
        all_sources[source], boxes[source] = sent_by(source, plan, packed, OverlayOptions(chunk_bytes=chunk))
    slow_messages = boxes["s1"].until(half)
    arrival.take("s1", slow_messages[0])
    for message in boxes["s0"].until(half):
        arrival.take("s0", message)
        clock.now += 0.001
    for message in slow_messages[1:4]:
        arrival.take("s1", message)
        clock.now += 0.05

    asked, released = {}, {}
    arrival.reconcile(plan, asked.__setitem__, released.__setitem__)
    assert asked.keys() == {"s0"}
    assert released == {"s1": asked["s0"]}
    ((begin, end),) = asked["s0"]
    assert end == packed.num_bytes
    assert begin > half + 3 * chunk
    all_sources["s0"].fetch("x", {"replication": 7, "ranges": asked["s0"]})
    for message in boxes["s0"].until(half + end - begin)[len(boxes["s1"].messages) :]:
        arrival.take("s0", message)
    assert arrival.finish() is None
    for message in slow_messages[4:]:  # the word came too late: it sent all
        arrival.take("s1", message)
    arrived = arrival.finish()
    assert not arrival.failure
    assert torch.equal(arrived.entries["weight", "parameter"], torch.arange(1_000_000.0))
    for one in all_sources.values():
        one.close()


class Gate(Mailbox):
    """Takes no shard before it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.is_open = threading.Event(), threading.Event()

    def send(self, worker: str, message: Message) -> None:
        if message.kind == SHARD:
            self.is_asked.set()
            assert self.is_open.wait(120.0)
        super().send(worker, message)


def test_a_source_does_not_send_what_another_one_sends_instead():
    gate = Gate()
    sources, _ = sent_by("s0", replication(212, 4, 53), state(), box=gate)
    assert gate.is_asked.wait(120.0)
    sources.release("x", {"replication": 7, "ranges": [[100, 212]]})
    gate.is_open.set()
    stretches_sent = [message.fields for message in gate.until(100) if message.kind == SEAL]
    assert [(one["begin"], one["end"]) for one in stretches_sent] == [(0, 100)]
    sources.fetch("x", {"replication": 7, "ranges": [[140, 150]]})
    assert (gate.until(110)[-1].fields["begin"], gate.messages[-1].fields["end"]) == (140, 150)
    sources.close()
