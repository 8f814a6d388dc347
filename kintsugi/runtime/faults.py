"""Faults injected on purpose: a worker strikes itself at an exact point of its run."""

import os
import signal
from dataclasses import dataclass
from enum import StrEnum


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
    REGROUP = "regroup"
    """A reconfiguration begins."""
    TRANSFER = "transfer"
    """The groups are connected, state is about to move."""
    READY = "ready"
    """State has moved, the swap is ahead."""


class FaultKind(StrEnum):
    """How the worker is struck."""

    KILL = "kill"
    """SIGKILL: the process is gone at once."""
    FREEZE = "freeze"
    """SIGSTOP: the process stays and does nothing."""


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

    def strike(self) -> None:
        """Strike this process."""
        os.kill(os.getpid(), signal.SIGKILL if self.how is FaultKind.KILL else signal.SIGSTOP)


def fail_at(step: int, worker: str, at: str = "forward", how: str = "kill", *, microbatch: int | None = None) -> Fault:
    """A fault as a line of a script: `fail_at(3, "w02", "backward")`."""
    return Fault(worker=worker, at=FaultPoint(at), step=step, how=FaultKind(how), microbatch=microbatch)
