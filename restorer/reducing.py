"""Sums over the members of a group, carried out beside what their workers do next."""

from dataclasses import dataclass

import torch

from restorer.gloo import GlooGroup
from restorer.waiter import Waiting


@dataclass(slots=True)
class AllReduce:
    """A sum over a group, started when it is waited for; keeps its buffer for as long."""

    group: GlooGroup
    buffer: torch.Tensor

    def wait(self) -> None:
        """Block until the sum is in the buffer. Raises RuntimeError when it fails."""
        self.group.allreduce([self.buffer]).wait()


@dataclass(slots=True)
class Reducing:
    """A sum under way."""

    waiting: Waiting
    tensor: torch.Tensor
    buffer: torch.Tensor
    """In host memory; the tensor's own where that is."""

    def wait(self) -> None:
        """Block until the sum is in the tensor.

        Raises:
            CommunicationError: a member is gone or the groups were given up.
        """
        self.waiting.wait()
        if self.buffer.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(self.buffer)

    @property
    def span(self) -> tuple[float, float]:
        """When it was carried out, once it is over: from its turn to its end, on the monotonic clock in seconds."""
        return self.waiting.began_at, self.waiting.ended_at
