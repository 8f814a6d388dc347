"""Faults injected on purpose: a worker strikes itself at an exact point of its run."""

import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError, some, told_as
from kintsugi.core.logs import get_logger

_SLOW_SECONDS = 1.0


class FaultPoint(StrEnum):
    """Where in a worker's run a fault strikes."""

    START = "start"
    """Before the model is known."""
    STEP = "step"
    """At the boundary before a step."""
    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCE = "reduce"
    COMMIT = "commit"
    """Gradients are complete, the commit point is ahead."""
    APPLIED = "applied"
    """The step is applied, nobody was told."""
    QUIESCE = "quiesce"
    """Called off, nobody was told how far it came."""
    REGROUP = "regroup"
    """A reconfiguration begins."""
    TRANSFER = "transfer"
    """The groups are connected, state is about to move."""
    READY = "ready"
    """State has moved, the swap is ahead."""
    COLLECT = "collect"
    """Everything is trained, nobody was told what."""
    COLLECTED = "collected"
    """The agent was told what was trained."""
    CHECKPOINT = "checkpoint"
    """A part of the checkpoint of this step is on the disk, the next is ahead."""


class FaultKind(StrEnum):
    """How the worker is struck."""

    KILL = "kill"
    """SIGKILL: the process is gone at once."""
    FREEZE = "freeze"
    """SIGSTOP: the process stays and does nothing."""
    PREEMPT = "preempt"
    """SIGTERM, as before a spot machine is taken away: the worker leaves once others have its state."""
    FAIL = "fail"
    """At a checkpoint: the write ends as on a full disk."""
    SLOW = "slow"
    """At a checkpoint: the write takes a second longer."""
    TEAR = "tear"
    """At a checkpoint: the second half of a file that was written is zeros, as after a loss of power."""
    TRUNCATE = "truncate"
    """At a checkpoint: a file that was written loses its second half."""
    FLIP = "flip"
    """A bit is another: of a parameter in memory, before a step or once it is applied; at a checkpoint, in the middle of a file."""


_SIGNALS = {FaultKind.KILL: signal.SIGKILL, FaultKind.FREEZE: signal.SIGSTOP, FaultKind.PREEMPT: signal.SIGTERM}
_BETWEEN_STEPS = (FaultPoint.STEP, FaultPoint.APPLIED)
_WITHOUT_STEP = (
    FaultPoint.START,
    FaultPoint.REGROUP,
    FaultPoint.TRANSFER,
    FaultPoint.READY,
    FaultPoint.COLLECT,
    FaultPoint.COLLECTED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault; it strikes the first time that its worker comes by."""

    worker: str
    at: FaultPoint
    step: int | None = None
    """Null: at any step."""
    microbatch: int | None = None
    """FORWARD and BACKWARD: before this micro-batch; null is before the first."""
    generation: int | None = None
    """Null: in any generation."""
    how: FaultKind = FaultKind.KILL

    def __post_init__(self) -> None:
        if self.how in _SIGNALS or self.at is FaultPoint.CHECKPOINT:
            return
        if self.how is not FaultKind.FLIP:
            raise InvalidInputError("strikes the write of a checkpoint; say at='checkpoint'", field="how", value=self.how.value)
        if self.at not in _BETWEEN_STEPS:
            message = "strikes memory between steps, or a file; say at='step', 'applied' or 'checkpoint'"
            raise InvalidInputError(message, field="how", value=self.how.value)


class FaultScript:
    """The faults of one worker, each of which strikes once."""

    def __init__(self, worker: str, faults: Iterable[Fault], announce: Callable[[float], None]) -> None:
        """`announce` is told the instant, on the monotonic clock, right before each strike."""
        self._worker = worker
        self._announce = announce
        self.arm(faults)
        self.generation = 0
        """Of the plan that the worker is in or moves to."""

    def arm(self, faults: Iterable[Fault]) -> None:
        """Replace what is left to strike; from any thread."""
        self._left = [fault for fault in faults if fault.worker == self._worker]

    def strike_if(
        self,
        point: FaultPoint | None,
        step: int | None = None,
        microbatch: int | None = None,
        *,
        written: Iterable[Path] = (),
        held: Iterable[Tensor] = (),
    ) -> None:
        """Strike this process, a file that it has `written` or a tensor that is `held`, if a fault is due here.

        Raises:
            OSError: the fault is a write that fails.
        """
        left = self._left
        for fault in left:
            here = (point, step, microbatch, self.generation)
            wanted = (fault.at, fault.step, fault.microbatch, fault.generation)
            if all(asked in (None, given) for asked, given in zip(wanted, here, strict=True)):
                left.remove(fault)
                if fault.how is FaultKind.FLIP and fault.at in _BETWEEN_STEPS:
                    self._flip_one_of(held, step)
                    return
                if fault.how in _DAMAGES:
                    self._damage_one_of(written, fault.how, step)
                    return
                self._announce(time.monotonic())
                _strike(fault.how)
                return

    def _damage_one_of(self, written: Iterable[Path], how: FaultKind, step: int | None) -> None:
        if (path := min(written, default=None)) is None:
            self._strikes_nothing("no file was written here", step)
        else:
            self._announce(time.monotonic())
            damage(path, how)

    def _flip_one_of(self, held: Iterable[Tensor], step: int | None) -> None:
        tensor = next((tensor for tensor in held if tensor.numel()), None)
        if tensor is None:  # which layers are here is the plan's affair, so nobody could refuse that before
            self._strikes_nothing("no parameter is held here", step)
            return
        self._announce(time.monotonic())
        flip(tensor)

    def _strikes_nothing(self, why: str, step: int | None) -> None:
        get_logger("kintsugi.runtime").warning(f"a fault strikes nothing: {why}", worker=self._worker, step=step)


def _strike(how: FaultKind) -> None:
    if how is FaultKind.FAIL:
        raise OSError(errno.ENOSPC, "No space left on device (injected)")
    if how is FaultKind.SLOW:
        time.sleep(_SLOW_SECONDS)
    elif how is FaultKind.FREEZE:
        signal.raise_signal(signal.SIGSTOP)  # sent to the process, another thread takes it, and this one runs on until then
    else:
        os.kill(os.getpid(), _SIGNALS[how])


_DAMAGES = (FaultKind.TEAR, FaultKind.TRUNCATE, FaultKind.FLIP)


def damage(path: Path, how: FaultKind) -> None:
    """Leave a file as a fault leaves it that nobody notices while it happens."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    if how is FaultKind.FLIP:
        content[middle] ^= 1
    else:
        content[middle:] = bytes(len(content) - middle) if how is FaultKind.TEAR else b""
    path.write_bytes(content)


def flip(tensor: Tensor) -> None:
    """Change the lowest bit of a tensor's first number, as memory does that nobody checks."""
    first = tensor.detach().as_strided((1,), (1,)).view(torch.uint8)
    first[0] ^= 1


def fail_at(step: int | None, worker: str, at: str = "forward", how: str = "kill", *, microbatch: int | None = None) -> Fault:
    """A fault as a line of a script: `fail_at(3, "w02", "backward")`.

    Args:
        step: in which it strikes; null for any, and for points that belong to none.
        worker: that is struck.
        at: where in its run: one of `FaultPoint`, which says what each of them is.
        how: one of `FaultKind`; what strikes files asks for `at="checkpoint"`.
        microbatch: of "forward" and "backward", before which it strikes; null is the first.

    Raises:
        InvalidInputError: there is no such point or kind of fault.
    """
    point = checks.choice(FaultPoint, "at", at, noun="point where a fault strikes")
    kind = checks.choice(FaultKind, "how", how, noun="kind of fault")
    return Fault(worker=worker, at=point, step=step, how=kind, microbatch=microbatch)


def require_struck(
    faults: Sequence[Fault], workers: Collection[str], *, num_steps: int, num_microbatches: int, has_folder: bool
) -> None:
    """Refuse faults that would never strike.

    Args:
        faults: as they were given.
        workers: that there are.
        num_steps: of the job.
        num_microbatches: of a step.
        has_folder: whether checkpoints are written.

    Raises:
        InvalidInputError: one is of a worker, step, micro-batch or checkpoint that there is not.
    """
    for index, fault in enumerate(faults):
        if not isinstance(fault, Fault):
            message = 'is no fault: say kintsugi.fail_at(3, "w01")'
            raise InvalidInputError(message, field=f"faults[{index}]", value=repr(fault)[:200])
        with told_as({name: f"faults[{index}].{name}" for name in ("worker", "step", "microbatch", "generation", "at")}):
            _require_numbers(fault)
            _require_place(fault, workers, num_steps=num_steps, has_folder=has_folder)
            _require_microbatch(fault, num_microbatches)


def _require_numbers(fault: Fault) -> None:
    for name in ("step", "microbatch", "generation"):
        number: int | None = getattr(fault, name)
        if number is not None:
            checks.whole(name, number)
    if fault.at in _WITHOUT_STEP and fault.step is not None:
        message = f"{fault.at.value!r} belongs to no step, so that this never strikes: say step None"
        raise InvalidInputError(message, field="step", value=fault.step)


def _require_place(fault: Fault, workers: Collection[str], *, num_steps: int, has_folder: bool) -> None:
    if fault.worker not in workers:
        raise InvalidInputError(f"is no worker of the cluster; it has {some(workers)}", field="worker", value=fault.worker)
    if fault.step is not None and not 0 <= fault.step < num_steps:
        raise InvalidInputError(f"is no step of the job; they are 0 to {num_steps - 1}", field="step", value=fault.step)
    if fault.at is FaultPoint.CHECKPOINT and not has_folder:
        raise InvalidInputError("never strikes, for no checkpoints are written: say run=...", field="at", value=fault.at.value)


def _require_microbatch(fault: Fault, num_microbatches: int) -> None:
    number = fault.microbatch
    if number is None:
        return
    if fault.at not in (FaultPoint.FORWARD, FaultPoint.BACKWARD):
        raise InvalidInputError(
            f"only 'forward' and 'backward' have micro-batches, {fault.at.value!r} has none: leave it out",
            field="microbatch",
            value=number,
        )
    if not 0 <= number < num_microbatches:
        raise InvalidInputError(
            f"is no micro-batch of a step; they are 0 to {num_microbatches - 1}", field="microbatch", value=number
        )
