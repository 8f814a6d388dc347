"""Point-to-point tensors between the workers of one generation: the interface, and its gloo implementation.

What gloo asks for (measured): a send is a rendezvous even for a few bytes and reads its buffer late, so the handle keeps
the buffer until it is waited for; every handle must be waited for; tensors must be contiguous; size mismatches are
not noticed, so both sides derive sizes from the same specification. A message whose handle is dropped while it is under
way stops in the middle, and its other end waits for the rest for as long as it may.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from kintsugi.core.errors import CommunicationError
from restorer.gloo import GlooGroup
from restorer.packing import contiguous
from restorer.waiter import Operation, Waiter


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and type of a tensor that both sides of a message know."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool = False


class Sending(Protocol):
    """A send in progress."""

    def wait(self) -> None:
        """Block until the buffer may be reused. Raises CommunicationError when the peer is gone."""

    def acknowledged(self) -> None:
        """Let go of the buffer as soon as that is possible without waiting: the peer has told that it has what was sent.

        Raises CommunicationError when it is gone meanwhile. What a device may still work on is over once the transport is settled.
        """


class Receiving(Protocol):
    """A receive in progress."""

    def wait(self) -> torch.Tensor:
        """Block until the tensor is there. Raises CommunicationError when the peer is gone."""


@dataclass(slots=True)
class Fetched:
    """A tensor that is fetched when it is first waited for."""

    fetch: Callable[[], torch.Tensor]
    tensor: torch.Tensor | None = None

    def wait(self) -> torch.Tensor:
        """The tensor. Raises CommunicationError where it cannot be fetched."""
        if self.tensor is None:
            self.tensor = self.fetch()
        return self.tensor


class Transport(Protocol):
    """Tagged messages to and from workers by id."""

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Sending:
        """Start to send; the tensor must not be written until the handle was waited for."""

    def receive(self, spec: TensorSpec, peer: str, tag: int) -> Receiving:
        """Start to receive a tensor of known shape and type."""

    def settle(self) -> None:
        """Block until what was received, and waited for, is there for the host as well as for a device's next work.

        Raises:
            CommunicationError: a peer is gone, or the messages were given up: then nothing counts that was computed from them.
        """

    def close(self) -> None:
        """No more messages; what is under way comes to its end."""


class HostTransport(Transport, Protocol):
    """Messages between tensors in host memory."""

    def receive_into(self, buffer: torch.Tensor, peer: str, tag: int) -> Receiving:
        """Start to receive into a contiguous tensor, which must not be touched until the handle was waited for."""


@contextmanager
def communication() -> Iterator[None]:
    """Turn the collective library's plain RuntimeError into CommunicationError."""
    try:
        yield
    except RuntimeError as error:
        raise CommunicationError(str(error).partition("\n")[0]) from None


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it lies in host memory, contiguous; a copy in pinned memory otherwise."""
    if tensor.device.type == "cpu":
        return contiguous(tensor)
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return pinned.copy_(tensor.detach())


class Movement(Operation, Protocol):
    """A message under way."""

    @property
    def buffer(self) -> torch.Tensor:
        """What is sent or received."""

    def is_over(self) -> bool:
        """Whether it is known, without waiting, that it is over. Raises RuntimeError when it failed."""


@dataclass(slots=True, eq=False)
class Pending:
    """A gloo operation under way, with the buffer that must live as long."""

    work: dist.Work
    buffer: torch.Tensor
    timeout: timedelta
    was_waited_for: bool = False

    def wait(self) -> None:
        """Block until it is done. Raises RuntimeError when it fails or the time is over."""
        self.work.wait(self.timeout)
        self.was_waited_for = True

    def is_over(self) -> bool:
        """Whether somebody waited for its end: gloo tells nobody else."""
        return self.was_waited_for


UnderWay = set[Operation]
"""Messages that nobody has waited for to their end."""


@dataclass(slots=True)
class _Message:
    pending: Pending | None
    waiter: Waiter
    under_way: UnderWay

    def wait(self) -> None:
        if self.pending is not None:
            self.waiter.wait(self.pending)
            self.under_way.discard(self.pending)
            self.pending = None

    def acknowledged(self) -> None:
        """It is over already, but gloo tells only those who wait."""
        self.wait()


@dataclass(slots=True)
class _Received:
    message: _Message
    buffer: torch.Tensor
    device: torch.device

    def wait(self) -> torch.Tensor:
        self.message.wait()
        return self.buffer.to(self.device)


_Start = Callable[[list[torch.Tensor], int, int], dist.Work]


class GlooTransport:
    """Messages over one gloo group that spans the generation; tensors on other devices are staged through host memory."""

    def __init__(
        self,
        group: GlooGroup,
        rank_of: Mapping[str, int],
        device: torch.device,
        waiter: Waiter,
        timeout_seconds: float,
        *,
        under_way: UnderWay | None = None,
    ) -> None:
        """Messages over a group.

        Args:
            group: spans the generation.
            rank_of: by worker.
            device: of the tensors.
            waiter: waits for the messages.
            timeout_seconds: for one message, from when it is waited for; after it the group is dead.
            under_way: holds every message from its start to the end of its wait, for whoever gives the group up.
        """
        self._timeout = timedelta(seconds=timeout_seconds)
        self._group = group
        self._rank_of = rank_of
        self._device = device
        self._waiter = waiter
        self._under_way: UnderWay = set() if under_way is None else under_way

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Sending:
        """Start to send."""
        return self._message(to_host(tensor), self._group.send, peer, tag)

    def receive(self, spec: TensorSpec, peer: str, tag: int) -> Receiving:
        """Start to receive."""
        buffer = torch.empty(spec.shape, dtype=spec.dtype, pin_memory=self._device.type == "cuda")
        return self.receive_into(buffer, peer, tag)

    def receive_into(self, buffer: torch.Tensor, peer: str, tag: int) -> Receiving:
        """Start to receive into host memory; from there it goes to the device."""
        return _Received(self._message(buffer, self._group.recv, peer, tag), buffer, self._device)

    def _message(self, buffer: torch.Tensor, start: _Start, peer: str, tag: int) -> _Message:
        """Nothing is sent of a tensor without elements."""
        if buffer.numel() == 0:
            return _Message(None, self._waiter, self._under_way)
        with communication():
            work = start([buffer], self._rank_of[peer], tag)
        pending = Pending(work, buffer, self._timeout)
        self._under_way.add(pending)
        return _Message(pending, self._waiter, self._under_way)

    def settle(self) -> None:
        """Nothing is left to wait for: what arrives was in host memory first."""

    def close(self) -> None:
        """Let the waiting thread end."""
        self._waiter.close()
