"""The contract of a transport, kept by every implementation: tagged tensors between real processes."""

from collections.abc import Sequence

import pytest
import torch

from restorer.ordered import OrderedTransport
from restorer.transport import TensorSpec, Transport
from tests.restorer.crew import Crew, Member
from tests.runtime.runs import leaves_nothing

pytestmark = pytest.mark.processes

PEER = {"w0": "w1", "w1": "w0"}
SPECS = [
    TensorSpec(shape, dtype)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
    for shape in ((), (1,), (0,), (3, 4), (2, 1, 5))
]


@pytest.fixture(scope="module", name="crew")
def pair():
    with leaves_nothing(), Crew("w0", "w1") as crew:
        crew.build("g0", has_channels=True)
        yield crew


def tensor_of(spec: TensorSpec, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2 if spec.dtype is torch.bool else 100, spec.shape, generator=generator).to(spec.dtype)


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def transport_of(member: Member, kind: str, order: Sequence[int]) -> tuple[Transport, str]:
    """A transport of some kind for messages that both sides send in an order, and the other side."""
    peer = PEER[member.name]
    if kind == "tagged":
        return member.transport, peer
    carrier = member.transport if kind == "in order" else member.groups.channel_transport()
    return OrderedTransport(carrier, {peer: order}, {peer: order}, ahead=1), peer


def exchange_all(member: Member, kind: str) -> bool:
    """Both sides send every kind of tensor at once, receives first."""
    transport, peer = transport_of(member, kind, range(len(SPECS)))
    receivings = [transport.receive(spec, peer, tag) for tag, spec in enumerate(SPECS)]
    sendings = [transport.send(tensor_of(spec, tag), peer, tag) for tag, spec in enumerate(SPECS)]
    arrived = [receiving.wait() for receiving in receivings]
    for sending in sendings:
        sending.wait()
    return all(is_equal(tensor, tensor_of(spec, tag)) for tag, (spec, tensor) in enumerate(zip(SPECS, arrived, strict=True)))


def exchange_in_other_orders(member: Member, kind: str) -> bool:
    """Tags, not order, say what belongs together; some receives come after their message."""
    count = 20
    transport, peer = transport_of(member, kind, range(count - 1, -1, -1))
    spec = TensorSpec((100,), torch.float64)
    early = {tag: transport.receive(spec, peer, tag) for tag in range(0, count, 2)}
    sendings = [transport.send(tensor_of(spec, tag), peer, tag) for tag in reversed(range(count))]
    receivings = early | {tag: transport.receive(spec, peer, tag) for tag in range(1, count, 2)}
    is_right = all(
        is_equal(receivings[tag].wait(), tensor_of(spec, tag)) for tag in sorted(receivings, key=lambda tag: tag * 7 % count)
    )
    for sending in sendings:
        sending.wait()
    return is_right


def exchange_views(member: Member, kind: str) -> bool:
    """Tensors that are not contiguous, those with a history, conjugates and negatives arrive as they look."""
    matrix = torch.arange(12.0).reshape(3, 4)
    sent = [matrix.T, matrix[:, 1], torch.nn.Parameter(matrix) * 2, torch.complex(matrix, matrix).conj(), torch._neg_view(matrix)]
    transport, peer = transport_of(member, kind, range(len(sent)))
    receivings = [transport.receive(TensorSpec(tuple(t.shape), t.dtype), peer, tag) for tag, t in enumerate(sent)]
    sendings = [transport.send(tensor, peer, tag) for tag, tensor in enumerate(sent)]
    is_right = all(is_equal(receiving.wait(), tensor.detach()) for receiving, tensor in zip(receivings, sent, strict=True))
    for sending in sendings:
        sending.wait()
    return is_right


def exchange_much(member: Member, kind: str) -> bool:
    """Both ways at once, larger than any buffer on the way."""
    transport, peer = transport_of(member, kind, range(1))
    spec = TensorSpec((3_000_000,), torch.float64)
    receiving = transport.receive(spec, peer, 0)
    sending = transport.send(tensor_of(spec, 1), peer, 0)
    is_right = is_equal(receiving.wait(), tensor_of(spec, 1))
    sending.wait()
    return is_right


def wait_twice(member: Member, kind: str) -> bool:
    transport, peer = transport_of(member, kind, range(1))
    spec = TensorSpec((4,), torch.float32)
    receiving, sending = transport.receive(spec, peer, 0), transport.send(tensor_of(spec, 3), peer, 0)
    sending.wait()
    sending.wait()
    return is_equal(receiving.wait(), receiving.wait())


def receive_freely(member: Member, kind: str) -> bool:
    """What arrives belongs to the receiver: it may be written and may need a gradient."""
    transport, peer = transport_of(member, kind, range(1))
    spec = TensorSpec((4,), torch.float32, requires_grad=True)
    receiving, sending = transport.receive(spec, peer, 0), transport.send(torch.ones(4), peer, 0)
    sending.wait()
    arrived = receiving.wait().requires_grad_()
    arrived.sum().backward()
    return torch.equal(arrived.grad, torch.ones(4))


def settle(member: Member, kind: str) -> bool:
    """After it everything has come to its end, also what nobody waited for."""
    transport, peer = transport_of(member, kind, range(4))
    spec = TensorSpec((1000,), torch.float64)
    receivings = [transport.receive(spec, peer, tag) for tag in range(4)]
    sendings = [transport.send(tensor_of(spec, tag), peer, tag) for tag in range(4)]
    arrived = [receiving.wait() for receiving in reversed(receivings)]
    transport.settle()
    for sending in sendings:
        sending.wait()
    return all(is_equal(tensor, tensor_of(spec, 3 - index)) for index, tensor in enumerate(arrived))


def two_steps(member: Member, kind: str) -> bool:
    """The same messages again, with other contents."""
    transport, peer = transport_of(member, kind, (5, 3, 4))
    spec = TensorSpec((10,), torch.float64)
    is_right = []
    for step in range(2):
        receivings = {tag: transport.receive(spec, peer, tag) for tag in (3, 4, 5)}
        sendings = [transport.send(tensor_of(spec, 10 * step + tag), peer, tag) for tag in (5, 3, 4)]
        is_right += [is_equal(receivings[tag].wait(), tensor_of(spec, 10 * step + tag)) for tag in (4, 3, 5)]
        for sending in sendings:
            sending.wait()
        transport.settle()
    return all(is_right)


KINDS = ("tagged", "in order", "over channels")
EXCHANGES = (
    exchange_all,
    exchange_in_other_orders,
    exchange_views,
    exchange_much,
    wait_twice,
    receive_freely,
    settle,
    two_steps,
)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_contract(crew, exchange, kind):
    assert crew.call(exchange, kind) == {"w0": True, "w1": True}


def send_out_of_order(member: Member, kind: str) -> str:
    transport, peer = transport_of(member, kind, (1, 0))
    try:
        transport.send(torch.ones(1), peer, 0)
    except AssertionError as error:
        return str(error)
    return "sent"


def ask_out_of_order(member: Member, kind: str) -> str:
    """The message before it was never asked for, so it can never be told from this one."""
    transport, peer = transport_of(member, kind, (1, 0))
    try:
        transport.receive(TensorSpec((1,), torch.float32), peer, 0).wait()
    except AssertionError as error:
        return str(error)
    return "received"


def test_order_is_kept_by_both_ends(crew):
    assert crew.call(send_out_of_order, "in order")["w0"] == "message 0 to w1 is sent where 1 is due"
    expected = "of what w1 sends before it something was not asked for"
    assert crew.call(ask_out_of_order, "in order")["w0"] == expected
