"""State between real processes: a source that is killed in the middle, and reductions that are called off."""

import os
import signal

import pytest
import torch

from kintsugi.core.decision import Migration, StateKind, Transfer
from kintsugi.core.errors import CommunicationError
from restorer import streams
from restorer.reconfigure import migrate
from restorer.staging import Staging
from restorer.transport import GlooTransport
from tests.restorer.crew import Crew, Member, close
from tests.runtime.runs import leaves_nothing

pytestmark = pytest.mark.processes

CHUNK_BYTES, NUM_CHUNKS = 4096, 32
VERSION = 5
KEY = (0, StateKind.PARAMETER)


def values() -> torch.Tensor:
    return torch.arange(CHUNK_BYTES * NUM_CHUNKS // 8, dtype=torch.float64)


class Dying:
    """A transport whose process is killed in the middle of a send."""

    def __init__(self, transport: GlooTransport, num_sends: int) -> None:
        self._transport, self._left = transport, num_sends

    def send(self, tensor, peer, tag):
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._transport.send(tensor, peer, tag)

    def receive_into(self, buffer, peer, tag):
        return self._transport.receive_into(buffer, peer, tag)

    def close(self):
        self._transport.close()


def take_part(member: Member, sources: tuple[str, ...], num_sends: int = 0) -> tuple[int, bool]:
    """Bytes that have arrived here in all, and whether they are right."""
    streams.CHUNK_BYTES = CHUNK_BYTES
    staging = member.kept.setdefault("staging", Staging())
    transfers = tuple(Transfer(source=name, target="t", layer=0, kind=KEY[1], num_bytes=1) for name in sources)

    def open_transport(on_abort):
        transport = member.groups.stream_transport(on_abort)
        return Dying(transport, num_sends) if num_sends else transport

    def export(_: int, kind: StateKind):
        return {("p", "parameter"): values()} if kind is StateKind.PARAMETER else {}

    arrived = migrate(
        Migration(transfers=transfers), member.name, staging, version=VERSION, export=export, open_transport=open_transport
    )
    return staging.num_arrived_bytes, not arrived or torch.equal(arrived[KEY]["p", "parameter"], values())


def num_arrived_bytes(member: Member) -> int:
    return member.kept["staging"].num_arrived_bytes


def test_a_source_that_is_killed_in_the_middle_is_replaced_without_starting_over():
    total = CHUNK_BYTES * NUM_CHUNKS
    with leaves_nothing(), Crew("s0", "s1", "s2", "t") as crew:
        crew.build("one")
        crew.begin(
            {
                "s0": (take_part, (("s0", "s1"), 2 + 2 * (NUM_CHUNKS // 4))),
                "s1": (take_part, (("s0", "s1"),)),
                "t": (take_part, (("s0", "s1"),)),
            }
        )
        crew.finish("s1")
        crew.await_end("s0")
        crew.abort("t")
        assert isinstance(crew.finish("t")["t"], CommunicationError)
        before = crew.call(num_arrived_bytes, on=("t",))["t"]
        assert total // 2 < before < total, "all of s1's half, and of s0's what it was through with when it died"
        crew.call(close, on=("s1", "s2", "t"))
        crew.build("two", ("s1", "s2", "t"))
        answers = crew.call(take_part, ("s2",), on=("s2", "t"))
        assert answers["t"] == (total, True), "nothing was fetched twice"


def begin_reductions(member: Member, groups: tuple[tuple[str, ...], ...]) -> str:
    """Begin a sum over each group that this member belongs to, and wait for them after all are begun."""
    tensors = [torch.full((1000,), float(len(group))) for group in groups if member.name in group]
    begun = [member.groups.begin_all_reduce(t, g) for t, g in zip(tensors, [g for g in groups if member.name in g], strict=True)]
    for reducing in begun:
        reducing.wait()
    return " ".join(f"{float(tensor[0]):g}" for tensor in tensors)


GROUPS = (("a", "b"), ("b", "c"), ("a", "c"))


def test_overlapping_reductions_begun_in_one_order_end():
    with leaves_nothing(), Crew("a", "b", "c") as crew:
        crew.build("one", subgroups=GROUPS)
        assert set(crew.call(begin_reductions, GROUPS * 20).values()) == {" ".join(["4"] * 40)}


def test_calling_off_frees_all_who_are_in_the_middle_of_overlapped_reductions():
    with leaves_nothing(), Crew("a", "b", "c") as crew:
        crew.build("one", subgroups=GROUPS)
        crew.begin(dict.fromkeys(("a", "b"), (begin_reductions, (GROUPS,))))
        crew.strike("c", signal.SIGSTOP)
        crew.abort("a", "b")
        for answer in crew.finish("a", "b").values():
            assert isinstance(answer, CommunicationError)
        crew.call(close, on=("a", "b"))
        crew.strike("c", signal.SIGKILL)
        crew.build("two", ("a", "b"))
        assert set(crew.call(begin_reductions, (("a", "b"),), on=("a", "b")).values()) == {"4"}
