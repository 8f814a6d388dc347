"""NCCL between CUDA devices, one worker to each: the one place that names torch's private class for it.

What its host side asks of its callers, by the sources of torch and NCCL (docs/assumptions.md says what no device has run):

- A group's kernels run in the order in which they were begun, on a stream of its own, beside everything else. The host does not
  wait for them; `Work.synchronize` makes the current stream wait.
- The first message of a group, and the first sum under each algorithm, make the host wait until all its members have begun
  theirs. So groups are connected at once and entirely, sums by `NCCL_RUNTIME_CONNECT=0` and messages by a first one.
- Whoever waits for a member that is gone waits for ever, host and device alike, until `abort` ends the group's kernels.
  What these had then received is anything: nothing counts that is known to be over only after the groups were given up.
- With blocking waits (of which there are none here) torch starts no thread that watches the group: that would end the process
  some time after an error.
- torch has 32 streams for groups. Two that shared one would wait for each other, and for ever if in another order elsewhere.
- A kernel that waits for its peer keeps its multiprocessors. Where such kernels had all of them, what the peers wait for could not
  be computed: so all groups of a worker together take no more than part of a device.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from kintsugi.core.errors import InvalidInputError
from restorer.gloo import GlooGroup, Store
from restorer.nccl_requirements import may_share_devices, numbered, require_nccl, require_own_device
from restorer.packing import contiguous
from restorer.transport import Movement, TensorSpec
from restorer.waiter import Operation, Waiter

MOST_GROUPS = 32
"""Of one worker: torch's streams of one priority."""
CHANNEL_BLOCKS = 2
"""Of a message's kernel; each leaves little of a multiprocessor to others. The same at both ends, whatever their devices.

NCCL would take up to 32; an A100 has 108 multiprocessors, an H100 132. `NCCL_MAX_CTAS` overrules this and the next.
"""
SUM_BLOCKS = 16
"""Of a sum's kernel; a worker has one under way at a time."""

POLL_SECONDS = 0.0005
"""Between two looks at whether something is over."""
WATCH_SECONDS = 0.05
"""The same for messages that the host does not wait for."""
ABORT_SECONDS = 10.0
"""That new groups wait for the end of those before them."""
SUCCESS = 0
"""Of torch's `WorkResult`."""


class _End:
    """Whether groups were given up, and why.

    It is said before they are aborted, while nobody asks torch about them: who did so during an abort would keep the interpreter
    until that is done, and with it the aborts of other groups, for whose kernels it waits.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._asking = threading.Lock()

    def say(self, reason: str) -> None:
        """Give them up; the first reason stays."""
        with self._asking:
            self._reason = self._reason or reason

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Nobody gives them up meanwhile. Raises RuntimeError with the reason where they were given up already."""
        with self._asking:
            self.require_none()
            yield

    def require_none(self) -> None:
        """Require that they were not. Raises RuntimeError with the reason."""
        if self._reason is not None:
            raise RuntimeError(self._reason)


@dataclass(slots=True, eq=False)
class NcclMovement:
    """Something on its way between devices. What it holds is let go of once it is known to be over."""

    work: dist.Work | None
    content: Tensor | None
    timeout_seconds: float
    end: _End = field(default_factory=_End)
    """Of its group."""

    @property
    def buffer(self) -> Tensor:
        """What is sent or received, while that is not known to be over."""
        assert self.content is not None
        return self.content

    def is_over(self) -> bool:
        """Whether the device is through with it. Raises RuntimeError when it failed."""
        with self.end.put_off():
            if self.work is not None and self.work.is_completed():
                _require_success(self.work)
                self.work = self.content = None
            return self.work is None

    def wait(self, pause_seconds: float = POLL_SECONDS) -> None:
        """Block until the device is through with it. Raises RuntimeError when it fails or the time is over."""
        deadline = time.monotonic() + self.timeout_seconds
        while not self.is_over():
            if time.monotonic() > deadline:
                raise RuntimeError(f"a message or a sum was not over within {self.timeout_seconds:g} s")
            time.sleep(pause_seconds)


def _require_success(work: Any) -> None:
    """Require that what is over did not fail.

    Whoever waits for it learns that from torch too, but only once its group is aborted, and so not before all groups are.

    Raises:
        RuntimeError: it failed.
    """
    result = work.get_future_result()
    if result.done() and result.value() != SUCCESS:
        raise RuntimeError(_failure_of(work))


def _failure_of(work: Any) -> str:
    """What NCCL told, as far as torch hands it over: 2.11 cannot."""
    failure = None
    with suppress(TypeError):
        failure = work.exception()
    return str(failure or "NCCL told an error")


@dataclass(frozen=True, slots=True)
class _Watched:
    """A message that passes on the device wait for, and the host for them, without a limit of its own."""

    movement: NcclMovement
    give_up: Callable[[str], None]

    def wait(self) -> None:
        """Give all up where it fails or its time is over."""
        try:
            self.movement.wait(WATCH_SECONDS)
        except RuntimeError as error:
            self.give_up(str(error))


_aborts: list[threading.Thread] = []
"""Of this process, under way or over."""


class NcclLibrary:
    """NCCL for one worker during one attempt at a generation."""

    ends_with_sockets = False

    def __init__(self, device: torch.device, *, timeout_seconds: float) -> None:
        """Take streams of the device.

        Args:
            device: of this worker's tensors.
            timeout_seconds: for one message or sum, from when it is waited for.

        Raises:
            InvalidInputError: there is no NCCL for it.
        """
        require_nccl(device)
        self.device = numbered(device)
        self._timeout_seconds = timeout_seconds
        self._receiving = torch.cuda.Stream(self.device)
        """From which receives are begun: nothing that is computed holds them up. Their buffers are its own."""
        self._summing = torch.cuda.Stream(self.device)
        """From which sums are begun, one after the other."""
        self._groups: list[GlooGroup] = []
        self._end = _End()
        self._watcher = Waiter("nccl-watch")

    def meet(self, store: Store, prefix: str, worker: str, members: Sequence[str]) -> None:
        """Require that no other member is on this worker's device, and wait until that is free of earlier groups.

        To free their memory is to wait for the device, and may keep other threads from it: not beside messages that wait for these.

        Raises:
            InvalidInputError: another member is.
        """
        _await_aborts()
        if not may_share_devices():
            require_own_device(store, prefix, worker, members, str(torch.cuda.get_device_properties(self.device).uuid))

    def connect(self, store: Store, prefix: str, *, rank: int, size: int, has_sums: bool) -> GlooGroup:
        """Connect the ranks of a group to each other. Blocks; nothing frees who waits for a rank that is missing.

        Raises:
            InvalidInputError: a worker would be in more groups than can be told apart.
        """
        if len(self._groups) == MOST_GROUPS:
            raise InvalidInputError(
                f"has streams for {MOST_GROUPS} groups of one worker, and this one's plan has more: it talks to too many others; "
                f"take transport='gloo', or fewer replicas",
                field="transport",
                value="nccl",
            )
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options(is_high_priority_stream=True)
        options._timeout = timedelta(seconds=self._timeout_seconds)
        options.config.max_ctas = SUM_BLOCKS if has_sums else CHANNEL_BLOCKS
        connected: Any = nccl(PrefixStore(prefix, store), rank, size, options)
        connected.eager_connect_single_device(self.device)
        group: GlooGroup = connected
        self._groups.append(group)
        return group

    def send(self, group: GlooGroup, tensor: Tensor, rank: int) -> Movement:
        """Start to send to a rank, once what this thread's stream was given is done."""
        self._end.require_none()
        content = contiguous(tensor)
        return self._movement(group.send([_bytes_of(content)], rank, 0), content)

    def receive(self, group: GlooGroup, spec: TensorSpec, rank: int) -> Movement:
        """Start to receive from a rank, beside what this thread's stream was given.

        When groups are given up, passes that wait for a message go on with anything; indices among that would end CUDA for
        this process, so what is no floating-point number is zero until it arrives.
        """
        self._end.require_none()
        make = torch.empty if spec.dtype.is_floating_point else torch.zeros
        with torch.cuda.stream(self._receiving):
            content = make(spec.shape, dtype=spec.dtype, device=self.device)
            return self._movement(group.recv([_bytes_of(content)], rank, 0), content)

    def _movement(self, work: dist.Work, content: Tensor) -> NcclMovement:
        return NcclMovement(work, content, self._timeout_seconds, self._end)

    def arrived(self, movement: Movement, waiter: Waiter) -> Tensor:
        """Make this thread's stream wait for it; the host goes on."""
        waiter.require_use()
        assert isinstance(movement, NcclMovement)
        content, work = movement.buffer, movement.work
        assert work is not None
        self._watcher.begin(_Watched(movement, self._fail))
        work.synchronize()
        content.record_stream(torch.cuda.current_stream(self.device))
        return content

    def sum(self, group: GlooGroup, tensor: Tensor) -> tuple[Operation, Tensor]:
        """Begun at once: after what this thread's stream was given, and after the sum before it."""
        self._end.require_none()
        self._summing.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._summing):
            work = group.allreduce([tensor])
            work.synchronize()
        tensor.record_stream(self._summing)
        return self._movement(work, tensor), tensor

    def give_up(self, groups: Sequence[GlooGroup]) -> None:
        """End the groups' kernels. All at once: each abort waits for the device, on which other groups' kernels may wait."""
        self._end.say("the groups were given up")
        self._watcher.abort()
        self._watcher.close()
        for group in groups:
            thread = threading.Thread(target=_abort, args=(group,), name="nccl-abort", daemon=True)
            thread.start()
            _aborts.append(thread)

    def _fail(self, reason: str) -> None:
        self._end.say(reason)
        self.give_up(list(self._groups))


def _bytes_of(content: Tensor) -> Tensor:
    """The same memory, in a type that NCCL knows; of torch's it does not know all."""
    return content.reshape(-1).view(torch.uint8)


def _await_aborts() -> None:
    """Block until they are over, or have taken long enough: then nothing is known of them."""
    deadline = time.monotonic() + ABORT_SECONDS
    while _aborts:
        _aborts.pop().join(max(0.0, deadline - time.monotonic()))


def _abort(group: Any) -> None:
    """Free who waits in one group; the error is that it took too long, and nobody is left to be told."""
    with suppress(RuntimeError):
        group.abort()
