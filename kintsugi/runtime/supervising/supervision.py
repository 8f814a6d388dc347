"""What a supervisor writes down of its attempts, and when it gives up."""

import errno
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kintsugi.core import checks
from kintsugi.core.codec import loads
from kintsugi.core.errors import InvalidInputError, cause_of
from kintsugi.core.pauses import doubled_seconds
from kintsugi.runtime.layout import SUPERVISOR

USAGE = 2
"""Exit code of invalid input, which no repetition mends."""
TOLD_TO_END = "the supervisor was told to end"
_SHELL_SIGNAL = 128
_PASSES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.EIO, errno.ESTALE)
"""Why a command cannot be started now, and may be later."""


class SupervisorState(StrEnum):
    """What the supervisor is doing."""

    LAUNCHING = "launching"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"


class EndReason(StrEnum):
    """Why an attempt ended."""

    COMPLETED = "completed"
    EXITED = "exited"
    """With an exit code of its own."""
    KILLED = "killed"
    """By a signal, to it or to a process whose end it passed on (exit code 128 + signal, as shells and torchrun do)."""
    REFUSED = "refused"
    """Invalid input: it would be refused again."""
    NOT_STARTED = "not_started"
    """There is no such command, or it cannot be run."""
    NO_ROOM = "no_room"
    """The system had no process, memory or descriptor left for it, or its file is being written: that passes."""
    STOPPED = "stopped"
    """The supervisor was told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedAttempt:
    """One start of the command."""

    number: int
    """From 0 over all sessions of the run."""
    session: int = 1
    started_at: float
    """Seconds since the epoch."""
    ended_at: float | None = None
    pid: int | None = None
    exit_code: int | None = None
    """Its own; null where a signal ended it."""
    signal: str | None = None
    reason: EndReason | None = None
    """Null while it runs."""
    step_before: int | None = None
    """Of the latest checkpoint at its start; null where there was none."""
    step_after: int | None = None
    not_started_because: str = ""
    """What the system said; empty where it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorRecord:
    """What is in the supervisor's file."""

    state: SupervisorState
    command: tuple[str, ...]
    session: int = 1
    """Of this supervisor, counted over those of the run."""
    attempts: tuple[SupervisedAttempt, ...] = ()
    """Of all sessions, the earliest first; one whose supervisor was killed has no end."""
    stopped_because: str = ""
    """Why no further attempt is made; empty where the command completed or still may."""

    @property
    def own_attempts(self) -> tuple[SupervisedAttempt, ...]:
        """Those of this session."""
        return tuple(attempt for attempt in self.attempts if attempt.session == self.session)

    @property
    def num_restarts(self) -> int:
        """Attempts of this session after its first."""
        return max(len(self.own_attempts) - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorPolicy:
    """When it is no use to go on; counted from the beginning of the session."""

    max_restarts: int = 10
    max_idle_restarts: int = 3
    """In a row without a newer checkpoint."""
    pause_seconds: float = 1.0
    """Before the second attempt; doubled with every further one that brought no newer checkpoint."""
    longest_pause_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("max_restarts", "max_idle_restarts", "pause_seconds", "longest_pause_seconds"):
            checks.non_negative(name, getattr(self, name))


def read_record(run: Path) -> SupervisorRecord:
    """What a run's supervisor wrote.

    Raises:
        InvalidInputError: it wrote nothing, or what lies there is no such record or cannot be read.
    """
    path = run / SUPERVISOR
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidInputError("was not supervised: it holds no supervisor.json", field="run", value=str(run)) from error
    except OSError as error:
        raise InvalidInputError(f"{SUPERVISOR} cannot be read: {cause_of(error)}", field="run", value=str(run)) from error
    return loads(SupervisorRecord, text)


def ending(code: int) -> dict[str, Any]:
    """Exit code, signal and reason of an attempt, from what waiting for it gave."""
    number = -code if code < 0 else code - _SHELL_SIGNAL if code > _SHELL_SIGNAL else 0
    name = signal.Signals(number).name if number in set(signal.Signals) else None
    if code < 0 or name is not None:
        return {"exit_code": None if code < 0 else code, "signal": name or str(number), "reason": EndReason.KILLED}
    reasons = {0: EndReason.COMPLETED, USAGE: EndReason.REFUSED}
    return {"exit_code": code, "signal": None, "reason": reasons.get(code, EndReason.EXITED)}


def not_begun(error: OSError) -> dict[str, Any]:
    """Reason of an attempt whose command the system did not start, and what it said."""
    reason = EndReason.NO_ROOM if error.errno in _PASSES else EndReason.NOT_STARTED
    return {"reason": reason, "not_started_because": cause_of(error)}


def verdict(record: SupervisorRecord, policy: SupervisorPolicy) -> dict[str, Any]:
    """The state after an attempt, and why it is the last."""
    last = record.attempts[-1]
    if last.reason is EndReason.COMPLETED:
        return {"state": SupervisorState.COMPLETED}
    why = {
        EndReason.REFUSED: "its input is invalid, and would be again",
        EndReason.NOT_STARTED: f"{record.command[0]} cannot be started: {last.not_started_because}",
        EndReason.STOPPED: TOLD_TO_END,
    }.get(last.reason or EndReason.EXITED, "")
    if not why and record.num_restarts >= policy.max_restarts:
        why = f"{policy.max_restarts} restarts were allowed"
    if not why and (idle := idle_restarts(record.own_attempts)) > policy.max_idle_restarts:
        why = f"{idle} attempts in a row brought no newer checkpoint"
    return {"state": SupervisorState.FAILED if why else SupervisorState.WAITING, "stopped_because": why}


def pause_seconds(num_idle: int, policy: SupervisorPolicy) -> float:
    """Before the next attempt, after so many in a row that brought no newer checkpoint."""
    return doubled_seconds(policy.pause_seconds, num_idle - 1, policy.longest_pause_seconds)


def idle_restarts(attempts: Sequence[SupervisedAttempt]) -> int:
    """Attempts at the end of the list that brought no newer checkpoint."""
    moved = [_moved(attempt) for attempt in reversed(attempts)]
    return moved.index(True) if True in moved else len(moved)


def _moved(attempt: SupervisedAttempt) -> bool:
    return attempt.step_after is not None and (attempt.step_before is None or attempt.step_after > attempt.step_before)
