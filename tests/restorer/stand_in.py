"""Stands in for torch's NCCL and its streams where there is no device, so that all that is built on them runs.

A group's operations are carried out in the order in which they were begun, by a thread over gloo that plays its stream; host and
device are one, so what makes a stream wait makes the host wait. Giving a group up ends its operations at once and leaves
anything in their buffers, as the kernels that are aborted do; its memory is free a little later. A process whose kernels wait on
all of its device's multiprocessors would stand still, and fails here.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.workers import wiring
from restorer import nccl
from restorer.gloo import connect
from restorer.packing import type_name

CONNECT_SECONDS = 20.0
NUM_MULTIPROCESSORS = 108
"""Of an A100."""
MOST_BLOCKS = 32
"""Of a kernel where nothing else is asked for."""
FREE_SECONDS = 0.3
"""From the end of a group's operations until its memory is free."""
TYPES = {"int8", "uint8", "bool", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
"""That NCCL knows."""


class Kernel:
    """One operation of a group."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.over = threading.Event()

    def is_completed(self) -> bool:
        return self.over.is_set()

    def synchronize(self) -> None:
        self.over.wait()

    def get_future_result(self) -> SimpleNamespace:
        return SimpleNamespace(done=lambda: False)


class Group:
    """What `torch.distributed.ProcessGroupNCCL` is asked for."""

    class Options:
        def __init__(self, *, is_high_priority_stream: bool) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self._timeout = timedelta(0)
            self.config = SimpleNamespace(max_ctas=MOST_BLOCKS)

    _all: ClassVar[list["Group"]] = []
    """Of this process, but for those that were given up."""
    _freeing: ClassVar[list["Group"]] = []

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        assert options._timeout.total_seconds() > 0
        self._num_blocks = options.config.max_ctas
        self._connect = lambda: connect(
            store,
            "stand-in",
            rank=rank,
            size=size,
            address="127.0.0.1",
            timeout_seconds=CONNECT_SECONDS,
            reduction_timeout_seconds=CONNECT_SECONDS,
        )
        self._begun: queue.SimpleQueue[tuple[Kernel, Callable[[], dist.Work]]] = queue.SimpleQueue()
        self._kernels: list[Kernel] = []
        self._is_aborted = False

    def eager_connect_single_device(self, device: torch.device) -> None:
        assert not Group._freeing, "groups are connected while others are still being aborted"
        self._group = self._connect()
        threading.Thread(target=self._run, name="stand-in", daemon=True).start()
        Group._all.append(self)

    def _run(self) -> None:
        while not self._is_aborted:
            kernel, start = self._begun.get()
            try:
                start().wait()
            except RuntimeError:
                return  # as a kernel does whose peer is gone: it is never over
            if not self._is_aborted:
                kernel.over.set()

    def _launch(self, buffer: Tensor, start: Callable[[], dist.Work]) -> Kernel:
        if self._is_aborted:
            raise RuntimeError("NCCL communicator was aborted")
        assert type_name(buffer.dtype) in TYPES
        kernel = Kernel(buffer)
        self._kernels = [*(other for other in self._kernels if not other.is_completed()), kernel]
        waiting = sum(group._num_blocks for group in Group._all if not all(other.is_completed() for other in group._kernels))
        assert waiting < NUM_MULTIPROCESSORS, "nothing is left of the device for what the kernels on it wait for"
        self._begun.put((kernel, start))
        return kernel

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Kernel:
        return self._launch(tensors[0], lambda: self._group.send(tensors, rank, 0))

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Kernel:
        tensors[0].fill_(1)  # until it is there it is anything
        return self._launch(tensors[0], lambda: self._group.recv(tensors, rank, 0))

    def allreduce(self, tensors: list[Tensor]) -> Kernel:
        return self._launch(tensors[0], lambda: self._group.allreduce(tensors))

    def abort(self) -> None:
        if self._is_aborted:
            return
        self._is_aborted = True
        Group._freeing.append(self)
        Group._all.remove(self)
        for kernel in self._kernels:
            kernel.over.set()
        time.sleep(FREE_SECONDS)
        Group._freeing.remove(self)


class Stream:
    """All that is computed is over when the host goes on."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    def wait_stream(self, stream: "Stream") -> None:
        pass


def install(device: str) -> None:
    """From here on this process has NCCL between processors; what stands for its device is known by a name."""
    dist.ProcessGroupNCCL = Group
    torch.cuda.Stream = Stream
    torch.cuda.current_stream = Stream
    torch.cuda.stream = lambda _: nullcontext()
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(uuid=device)
    torch.Tensor.record_stream = lambda *_: None
    nccl.require_nccl = wiring.require_nccl = lambda _: None
    nccl.numbered = lambda given: given


def job_with_stand_in(make_job: Callable[[], TrainingJob]) -> TrainingJob:
    """A job for processors whose workers take them for devices, each its own."""
    install(f"device of process {os.getpid()}")
    return make_job()
