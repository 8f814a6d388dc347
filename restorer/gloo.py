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


def connect(
    store: Store, prefix: str, *, rank: int, size: int, address: str, timeout_seconds: float, reduction_timeout_seconds: float
) -> GlooGroup:
    """Connect `size` ranks to each other, at once and fully. Blocks; raises RuntimeError when a rank is missing.

    Args:
        store: where the ranks find each other.
        prefix: of the group's keys.
        rank: of this process.
        size: number of ranks.
        address: of this host.
        timeout_seconds: for one connection. gloo tries five times where a rank died after it published its address.
        reduction_timeout_seconds: for each later reduction; messages are waited for with timeouts of their own.
    """
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    options._devices = [gloo.create_device(hostname=address)]
    connected: Any = gloo(PrefixStore(prefix, store), rank, size, options)
    connected._set_default_timeout(timedelta(seconds=reduction_timeout_seconds))
    group: GlooGroup = connected
    return group
