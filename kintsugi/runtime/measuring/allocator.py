"""What torch's allocator holds, and the most that it held at once in a section of a program.

CUDA devices count it themselves; on CPUs torch's profiler writes every allocation down. Either way what was there before a meter
was entered counts as nothing; on CPUs so does letting go of it, and on CUDA devices nobody may do so meanwhile. Memory that did
not come from the allocator (a library's own) is in neither.
"""

import gc
import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from types import TracebackType
from typing import Any, Self

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

_SECTION = "[section]"
_QUIET = {"KINETO_LOG_LEVEL": "6"}
"""The profiler would write two lines of its own to standard error."""


@dataclass(frozen=True, slots=True)
class Section:
    """Bytes that the allocator held: when a section began, at most within it, and when it ended."""

    before_bytes: int
    most_bytes: int
    after_bytes: int

    @property
    def kept_bytes(self) -> int:
        """That came in the section and stayed."""
        return self.after_bytes - self.before_bytes

    @property
    def rise_bytes(self) -> int:
        """The most above what was there before."""
        return self.most_bytes - self.before_bytes


class MemoryMeter:
    """A context; sections are marked within it, and known once it is left."""

    def __init__(self, device: str) -> None:
        """Of a device's allocator: `cpu`, `cuda` or `cuda:1`."""
        self.sections: dict[str, Section] = {}
        self._device = torch.device(device)
        self._profile: profile | None = None
        self._base_bytes = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            gc.collect()
            self._base_bytes = torch.cuda.memory_allocated(self._device)
        else:
            self._stack.enter_context(_environment(_QUIET))
            self._profile = self._stack.enter_context(profile(activities=[ProfilerActivity.CPU], profile_memory=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
        if self._profile is not None and error is None:
            self.sections |= _sections(self._profile)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """A part of what is done within the meter; sections do not overlap, and their names are their own."""
        if self._device.type != "cuda":
            with record_function(f"{_SECTION}{name}"):
                yield
            return
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        yield
        torch.cuda.synchronize(self._device)
        most, after = torch.cuda.max_memory_allocated(self._device), torch.cuda.memory_allocated(self._device)
        self.sections[name] = Section(*(found - self._base_bytes for found in (before, most, after)))


def _sections(done: profile) -> dict[str, Section]:
    """Sections by the instants at which allocations were written down."""
    assert done.profiler is not None
    assert done.profiler.kineto_results is not None
    events = sorted(_flat(done.profiler.kineto_results.experimental_event_tree()), key=attrgetter("start_time_ns"))
    changes = list(_changes(events))
    instants = [at for at, _ in changes]
    held = [0, *accumulate(num_bytes for _, num_bytes in changes)]
    result = {}
    for event in events:
        name = event.name.removeprefix(_SECTION)
        if name != event.name:
            first = bisect_left(instants, event.start_time_ns)
            last = bisect_right(instants, event.end_time_ns)
            result[name] = Section(held[first], max(held[first : last + 1]), held[last])
    return result


def _flat(events: Iterable[Any]) -> Iterator[Any]:
    """Events and all that came within them."""
    waiting = deque(events)
    while waiting:
        event = waiting.popleft()
        yield event
        waiting.extend(event.children)


def _changes(events: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """When how many bytes came, or went if below 0.

    Torch goes on to write down that what an earlier profile saw come goes, whenever that is: it may be garbage, found at any time.
    """
    held = set()
    for event in events:
        if event.tag != _EventType.Allocation:
            continue
        allocation = event.extra_fields
        if allocation.alloc_size > 0:
            held.add(allocation.ptr)
        elif allocation.ptr not in held:
            continue
        else:
            held.remove(allocation.ptr)
        yield event.start_time_ns, allocation.alloc_size


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a while, as far as nobody has set them."""
    own = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
