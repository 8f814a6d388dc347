"""What carries the tensors of a step where the generation's own gloo groups do not: the interface, and gloo behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
from torch import Tensor

from restorer.gloo import GlooGroup, Store, connect
from restorer.reducing import AllReduce
from restorer.transport import Movement, Pending, TensorSpec, to_host
from restorer.waiter import Operation, Waiter


class Library(Protocol):
    """Moves tensors within groups. Between two members, those of one direction arrive in the order in which both begin them."""

    @property
    def device(self) -> torch.device:
        """Of the tensors."""

    @property
    def ends_with_sockets(self) -> bool:
        """Whether it needs its sockets shut down so that nobody waits in its groups any more."""

    def meet(self, store: Store, prefix: str, worker: str, members: Sequence[str]) -> None:
        """Make sure, before any group is connected, that all members can be in one. Raises InvalidInputError where not."""

    def connect(self, store: Store, prefix: str, *, rank: int, size: int, has_sums: bool) -> GlooGroup:
        """Connect the ranks of a group, for sums or messages, to each other. Blocks; raises RuntimeError when a rank is missing."""

    def send(self, group: GlooGroup, tensor: Tensor, rank: int) -> Movement:
        """Start to send to a rank."""

    def receive(self, group: GlooGroup, spec: TensorSpec, rank: int) -> Movement:
        """Start to receive from a rank."""

    def arrived(self, movement: Movement, waiter: Waiter) -> Tensor:
        """What was received, there for what this thread computes next. Raises CommunicationError."""

    def sum(self, group: GlooGroup, tensor: Tensor) -> tuple[Operation, Tensor]:
        """A sum over all ranks, after all sums that were begun before it, and the buffer in which it will be."""

    def give_up(self, groups: Sequence[GlooGroup]) -> None:
        """Free whoever waits in some groups, as far as the end of their sockets does not; returns at once, and is final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlooLibrary:
    """Gloo with one tag for all messages; tensors on devices are staged through host memory."""

    address: str
    """Of this host."""
    device: torch.device
    """Of the tensors."""
    connect_timeout_seconds: float
    operation_timeout_seconds: float
    ends_with_sockets: bool = True

    def meet(self, store: Store, prefix: str, worker: str, members: Sequence[str]) -> None:
        """All can."""

    def connect(self, store: Store, prefix: str, *, rank: int, size: int, has_sums: bool) -> GlooGroup:  # noqa: ARG002  # it has both
        """Connect the ranks of a group to each other."""
        return connect(
            store,
            prefix,
            rank=rank,
            size=size,
            address=self.address,
            timeout_seconds=self.connect_timeout_seconds,
            reduction_timeout_seconds=self.operation_timeout_seconds,
        )

    def send(self, group: GlooGroup, tensor: Tensor, rank: int) -> Movement:
        """Start to send to a rank."""
        buffer = to_host(tensor)
        return Pending(group.send([buffer], rank, 0), buffer, self._timeout)

    def receive(self, group: GlooGroup, spec: TensorSpec, rank: int) -> Movement:
        """Start to receive from a rank."""
        buffer = torch.empty(spec.shape, dtype=spec.dtype, pin_memory=self.device.type == "cuda")
        return Pending(group.recv([buffer], rank, 0), buffer, self._timeout)

    def arrived(self, movement: Movement, waiter: Waiter) -> Tensor:
        """Wait for it."""
        waiter.wait(movement)
        return movement.buffer.to(self.device)

    def sum(self, group: GlooGroup, tensor: Tensor) -> tuple[Operation, Tensor]:
        """It is begun by who waits for it, and sums are waited for one after the other."""
        buffer = to_host(tensor)
        return AllReduce(group, buffer), buffer

    def give_up(self, groups: Sequence[GlooGroup]) -> None:
        """Their sockets' end does all."""

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self.operation_timeout_seconds)
