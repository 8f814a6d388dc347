"""Instants in the work of a device, and the times between them."""

import time
from itertools import pairwise

import torch

LEAD_CYCLES = 10_000_000
"""Of a device's clock, some 5 ms: the host is as far ahead of the device as in the middle of a step, where it is fast enough."""


class Marks:
    """Instants on a device, and on the host that tells it what to do. One thread's at a time.

    On CUDA devices they are events among the kernels: nobody waits at one, so that what follows is given to the device as early
    as it is in training, and a time has no more of the host's in it than there.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._is_cuda = self._device.type == "cuda"
        self.clear()

    def clear(self) -> None:
        """Forget all instants; what is under way comes to its end first."""
        self.wait()
        self._instants: list[tuple[float, float]] = []
        """On the host: before each mark and after it."""
        self._events: list[torch.cuda.Event] = []

    def wait(self) -> None:
        """Block until everything that was given to the device is done."""
        if self._is_cuda:
            torch.cuda.synchronize(self._device)

    def let_host_lead(self) -> None:
        """Keep a CUDA device busy for a while: what follows is given to it before it can begin with it."""
        if self._is_cuda:
            with torch.cuda.device(self._device):
                torch.cuda._sleep(LEAD_CYCLES)  # there is no public way; torch's own tests take this one

    def add(self) -> int:
        """Now; on CUDA devices when everything before is done. Returns its number, from 0."""
        before = after = time.perf_counter()
        if self._is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._events.append(event)
            after = time.perf_counter()
        self._instants.append((before, after))
        return len(self._instants) - 1

    @property
    def seconds(self) -> list[float]:
        """From each instant to the next, as the device has it. Shape [instants - 1]."""
        self.wait()
        if self._is_cuda:
            return [one.elapsed_time(other) / 1e3 for one, other in pairwise(self._events)]
        return self.host_seconds

    @property
    def host_seconds(self) -> list[float]:
        """The same as the host has it, which gives a CUDA device what to do and goes on. Shape [instants - 1]."""
        return [other - one for (_, one), (other, _) in pairwise(self._instants)]
