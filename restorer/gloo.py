"""The one place that names torch's private classes: gloo process groups built directly, without a global default group."""

from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

__all__ = ["GlooGroup", "Store", "connect"]


class GlooGroup(Protocol):
    """What Kintsugi uses of a gloo group; every call starts an operation on a list of one tensor."""

    def allreduce(self, tensors: list[Tensor]) -> dist.Work:
        """Sum in place over all ranks."""

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> dist.Work:
        """Send to a rank."""

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> dist.Work:
        """Receive from a rank."""


def connect(store: Store, prefix: str, *, rank: int, size: int, address: str, timeout_seconds: float) -> GlooGroup:
    """Connect `size` ranks to each other, at once and fully. Blocks; raises RuntimeError when a rank is missing."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    options._devices = [gloo.create_device(hostname=address)]
    group: GlooGroup = gloo(PrefixStore(prefix, store), rank, size, options)
    return group
