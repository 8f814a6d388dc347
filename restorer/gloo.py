"""The one place that names torch's private classes: gloo process groups built directly, without a global default group."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    with _threads_preempt_nobody():
        options._devices = [gloo.create_device(hostname=address)]
        connected: Any = gloo(PrefixStore(prefix, store), rank, size, options)
    connected._set_default_timeout(timedelta(seconds=reduction_timeout_seconds))
    group: GlooGroup = connected
    return group


@contextmanager
def _threads_preempt_nobody() -> Iterator[None]:
    """What threads begin meanwhile waits, when it wakes up, until who has its processor lets go of it (SCHED_BATCH).

    gloo's loop only tries to take a connection's lock and comes back at once where it is held: whoever holds it and was
    preempted by the loop cannot let go of it before the loop has spun its time away.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
