"""Messages over a group for each direction of a pair of workers; nothing but their order tells those of one group apart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from restorer.gloo import GlooGroup
from restorer.library import Library
from restorer.transport import Fetched, Movement, Receiving, Sending, TensorSpec, UnderWay, communication
from restorer.waiter import Waiter

Channel = tuple[str, str]
"""Who sends, and who receives: their names, and in that order their ranks."""
SENDER, RECEIVER = 0, 1


class ChannelTransport:
    """Messages that only the order in which they are begun tells apart, each direction of a pair for itself."""

    def __init__(
        self, worker: str, channels: Mapping[Channel, GlooGroup], library: Library, waiter: Waiter, under_way: UnderWay
    ) -> None:
        self._worker = worker
        self._channels = channels
        self._library = library
        self._waiter = waiter
        self._under_way = under_way
        self._unsettled: set[Movement] = set()
        """Sent, or received and waited for, and perhaps not over."""

    def send(self, tensor: Tensor, peer: str, tag: int) -> Sending:  # noqa: ARG002  # the order says what belongs together
        """Start to send."""
        if tensor.numel() == 0:
            return _NothingSent()
        with communication():
            movement = self._library.send(self._channels[self._worker, peer], tensor, RECEIVER)
        self._under_way.add(movement)
        self._let_go_after(movement)
        return _Departure(movement, self)

    def receive(self, spec: TensorSpec, peer: str, tag: int) -> Receiving:  # noqa: ARG002
        """Start to receive."""
        if math.prod(spec.shape) == 0:
            return _NothingReceived(torch.empty(spec.shape, dtype=spec.dtype, device=self._library.device))
        with communication():
            movement = self._library.receive(self._channels[peer, self._worker], spec, SENDER)
        self._under_way.add(movement)
        return Fetched(partial(self._arrived, movement))

    def _let_go_after(self, movement: Movement) -> None:
        """Keep a message until it is over, and let go of those that are."""
        with communication():
            over = [other for other in self._unsettled if other.is_over()]
        for other in over:
            self._forget(other)
        self._unsettled.add(movement)

    def _forget(self, movement: Movement) -> None:
        self._unsettled.discard(movement)
        self._under_way.discard(movement)

    def _arrived(self, movement: Movement) -> Tensor:
        """What was received, there for what this thread computes next."""
        self._waiter.require_use()
        with communication():
            tensor = self._library.arrived(movement, self._waiter)
        self._let_go_after(movement)
        return tensor

    def finish(self, movement: Movement) -> None:
        """Block until the host knows that a message is over, and that nobody made it end before its time."""
        with communication():
            is_over = movement.is_over()
        if not is_over:
            self._waiter.wait(movement)
        self._waiter.require_use()
        self._forget(movement)

    def settle(self) -> None:
        """Block until the host knows that all messages are over that were sent, or received and waited for."""
        for movement in list(self._unsettled):
            self.finish(movement)

    def close(self) -> None:
        """Let the waiting thread end."""
        self._waiter.close()


@dataclass(slots=True)
class _Departure:
    movement: Movement
    transport: ChannelTransport

    def wait(self) -> None:
        self.transport.finish(self.movement)

    def acknowledged(self) -> None:
        """The transport lets go of it once it is over."""


class _NothingSent:
    """A tensor without elements."""

    def wait(self) -> None:
        return

    def acknowledged(self) -> None:
        return


@dataclass(slots=True)
class _NothingReceived:
    """The same at its other end."""

    tensor: Tensor

    def wait(self) -> Tensor:
        return self.tensor
