"""The receiving side of a replication: what comes late, damaged or twice, and when a state may be trained."""

import threading

import pytest
import torch
import xxhash

from kintsugi.runtime.overlay.arrival import Arrival
from kintsugi.runtime.overlay.messages import NO_BYTES, Channel, Message
from kintsugi.runtime.overlay.sources import GONE, OPEN, SEAL, SHARD
from restorer.packing import PackedState
from tests.runtime.overlay.test_replication import never, replication, state


def of_bytes(ranges: list[list[int]]) -> Message:
    """Begins to send a state of 16 bytes."""
    opened = {"replication": 7, "header": '[["w", "parameter", "uint8", [16]]]', "round": 1, "attempt": 0, "ranges": ranges}
    return Message(Channel.SHARDS, OPEN, opened)


def stretch(begin: int, content: bytes) -> tuple[Message, Message]:
    """One shard, sealed."""
    fields, seal = {"replication": 7, "at": begin}, xxhash.xxh3_128_hexdigest(content)
    sealed = {"replication": 7, "begin": begin, "end": begin + len(content), "xxh3": seal}
    return Message(Channel.SHARDS, SHARD, fields, memoryview(bytearray(content))), Message(Channel.SHARDS, SEAL, sealed)


def test_what_comes_twice_and_too_late_changes_nothing_of_a_state_that_is_trained_already():
    arrival = Arrival(7, lambda: None)
    for source, ranges in (("s0", [[0, 8]]), ("s1", [[8, 16]])):
        arrival.take(source, of_bytes(ranges))
    for begin in (0, 8):  # the second half was asked of both
        for message in stretch(begin, bytes(range(begin, begin + 8))):
            arrival.take("s0", message)
    trained = arrival.finish().entries["w", "parameter"].fill_(99)
    proof = arrival.proof()
    for message in stretch(8, bytes(range(8, 16))):
        arrival.take("s1", message)
    assert bool((trained == 99).all())
    assert (arrival.proof(), arrival.failure) == (proof, "")


def test_a_state_is_not_trained_while_a_lost_source_s_last_shard_is_still_being_written(monkeypatch):
    begun, may_go_on, changed = threading.Event(), threading.Event(), threading.Event()
    write = PackedState.write

    def slow(packed: PackedState, begin: int, chunk: torch.Tensor) -> None:
        if threading.current_thread() is late:
            begun.set()
            assert may_go_on.wait(120.0)
        write(packed, begin, chunk)

    monkeypatch.setattr(PackedState, "write", slow)
    arrival = Arrival(7, changed.set)
    for source, ranges in (("s0", [[0, 8]]), ("s1", [[8, 16]])):
        arrival.take(source, of_bytes(ranges))
    late = threading.Thread(target=arrival.take, args=("s1", stretch(8, bytes(8))[0]))
    late.start()
    assert begun.wait(120.0)
    arrival.reconcile(replication(16, 4, 4), {}.__setitem__, never)  # s0 sends all of it
    for message in stretch(0, bytes(16)):
        arrival.take("s0", message)
    assert arrival.finish() is None
    changed.clear()
    may_go_on.set()
    late.join(120.0)
    assert changed.is_set()
    assert arrival.finish() is not None


HEADER = state().header.decode()


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([("s0", SHARD, {"at": 0}, b"1234"), ("s0", SEAL, {"begin": 0, "end": 4, "xxh3": "0" * 32}, b"")], "not what it sent"),
        ([("s0", SHARD, {"at": 208}, b"12345678")], "does not belong"),
        ([("s0", SHARD, {"at": -4}, b"1234")], "does not belong"),
        ([("s0", SHARD, {"at": 0}, b"1234"), ("s0", SHARD, {"at": 8}, b"1234")], "from 8 on behind those to 4"),
        ([("s1", OPEN, {"header": "[]", "round": 4, "attempt": 0, "ranges": []}, b"")], "another state"),
        ([("s1", OPEN, {"header": HEADER, "round": 4, "attempt": 1, "ranges": []}, b"")], "another state"),
        ([("s1", GONE, {}, b"")], "has let go"),
    ],
)
def test_what_cannot_be_right_is_a_failure(messages, why):
    changes = []
    arrival = Arrival(7, lambda: changes.append(1))
    opened = {"header": HEADER, "round": 4, "attempt": 0, "ranges": [[0, 212]]}
    for source, kind, fields, payload in [("s0", OPEN, opened, b""), *messages]:
        told = memoryview(bytearray(payload)) if payload else NO_BYTES
        arrival.take(source, Message(Channel.SHARDS, kind, {"replication": 7, **fields}, told))
    assert why in arrival.failure
    assert changes


def test_the_proof_is_the_same_whoever_sent_what():
    proofs = set()
    for order in (("s0", "s1"), ("s1", "s0")):
        arrival = Arrival(7, lambda: None)
        for source in order:
            begin, content = (0, b"\1" * 8) if source == "s0" else (8, b"\2" * 8)
            for message in (of_bytes([[begin, begin + 8]]), *stretch(begin, content)):
                arrival.take(source, message)
        assert arrival.finish() is not None
        proofs.add(arrival.proof())
    assert len(proofs) == 1
