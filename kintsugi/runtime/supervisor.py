"""Starts a command again until it ends well, or a policy says that it is no use (ECRL, section 4.7).

    launching -> running -> completed
                 running -> waiting -> launching     it failed; the next attempt goes on from the latest checkpoint
                 running -> failed                   the policy says stop

The supervisor changes nothing that the command wrote; it looks at the pointer to the latest checkpoint to see whether the
command gets anywhere. Its states and attempts are in a file that is always whole, and that the next supervisor of the run goes
on in: attempts are numbered through, limits hold for one session.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from kintsugi.core import checks
from kintsugi.core.codec import dumps, loads
from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.disk import replace_whole
from kintsugi.runtime.layout import CHECKPOINTS, LATEST, SUPERVISOR

ATTEMPT_VARIABLE = "KINTSUGI_ATTEMPT"
"""Tells the command which attempt it is, counted from 0 over all sessions."""
USAGE = 2
"""Exit code of invalid input, which no repetition mends."""
_SHELL_SIGNAL = 128
_LOOK_SECONDS = 0.2


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
    """There is no such command."""
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


@dataclass(slots=True)
class Supervisor:
    """Supervises one command."""

    command: Sequence[str]
    run: Path
    """Folder of the run: its checkpoints, and the supervisor's file."""
    policy: SupervisorPolicy = field(default_factory=SupervisorPolicy)
    environment: Mapping[str, str] = field(default_factory=dict)
    _stop_signal: int | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def file(self) -> Path:
        """States and attempts, as JSON."""
        return self.run / SUPERVISOR

    def supervise(self) -> SupervisorRecord:
        """Run the command to its end, however often that takes; SIGINT and SIGTERM end it and the command.

        Raises:
            InvalidInputError: there is no command.
        """
        if not self.command:
            raise InvalidInputError("is missing; write it after --", field="command")
        self.run.mkdir(parents=True, exist_ok=True)
        record = self._session()
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while True:
                record = self._attempt(record)
                record = replace(record, **_verdict(record, self.policy))
                self._write(record)
                if record.state is not SupervisorState.WAITING:
                    return record
                self._pause(_idle_restarts(record.own_attempts))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _session(self) -> SupervisorRecord:
        """The next session of the run, with the attempts of the earlier ones; a damaged record of them is set aside."""
        record = SupervisorRecord(state=SupervisorState.LAUNCHING, command=tuple(self.command))
        if not self.file.exists():
            return record
        try:
            earlier = read_record(self.run)
        except InvalidInputError as error:
            aside = self.file.replace(self.file.with_suffix(".json.damaged"))
            structlog.get_logger("kintsugi.supervisor").warning(
                "the record of earlier attempts is damaged; it is set aside", reason=str(error), file=str(aside)
            )
            return record
        return replace(record, session=earlier.session + 1, attempts=earlier.attempts)

    def _attempt(self, record: SupervisorRecord) -> SupervisorRecord:
        """Run the command once, and note how it ended."""
        number = len(record.attempts)
        attempt = SupervisedAttempt(
            number=number, session=record.session, started_at=time.time(), step_before=latest_step(self.run)
        )
        self._write(replace(record, state=SupervisorState.LAUNCHING, attempts=(*record.attempts, attempt)))
        environment = {**os.environ, **self.environment, ATTEMPT_VARIABLE: str(number)}
        try:
            self._process = subprocess.Popen(self.command, env=environment, start_new_session=True)  # noqa: S603
        except OSError as error:
            structlog.get_logger("kintsugi.supervisor").warning("the command cannot be started", reason=str(error))
            attempt = replace(attempt, ended_at=time.time(), reason=EndReason.NOT_STARTED)
            return replace(record, attempts=(*record.attempts, attempt))
        attempt = replace(attempt, pid=self._process.pid)
        self._write(replace(record, state=SupervisorState.RUNNING, attempts=(*record.attempts, attempt)))
        code = self._wait(self._process)
        ended = replace(attempt, ended_at=time.time(), step_after=latest_step(self.run), **ending(code))
        if self._stop_signal is not None:
            ended = replace(ended, reason=EndReason.STOPPED)
        structlog.get_logger("kintsugi.supervisor").info("attempt ended", **_shown(ended))
        return replace(record, attempts=(*record.attempts, ended))

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code; no process of its group is left. It is waited for first and buried last, so that its id stays its own."""
        if self._stop_signal is not None:
            self._pass_on(self._stop_signal)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(process.pid)
        return process.wait()

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Pass the signal on; who asks twice means it."""
        is_second, self._stop_signal = self._stop_signal is not None, number
        self._pass_on(signal.SIGKILL if is_second else number)

    def _pass_on(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def _pause(self, num_idle: int) -> None:
        longest = self.policy.longest_pause_seconds
        deadline = time.monotonic() + min(self.policy.pause_seconds * 2.0 ** max(num_idle - 1, 0), longest)
        while self._stop_signal is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))

    def _write(self, record: SupervisorRecord) -> None:
        replace_whole(self.file, dumps(record))


def read_record(run: Path) -> SupervisorRecord:
    """What a run's supervisor wrote.

    Raises:
        InvalidInputError: it wrote nothing.
    """
    path = run / SUPERVISOR
    if not path.exists():
        raise InvalidInputError("was not supervised: it holds no supervisor.json", field="run", value=str(run))
    return loads(SupervisorRecord, path.read_bytes())


def ending(code: int) -> dict[str, Any]:
    """Exit code, signal and reason of an attempt, from what waiting for it gave."""
    number = -code if code < 0 else code - _SHELL_SIGNAL if code > _SHELL_SIGNAL else 0
    name = signal.Signals(number).name if number in set(signal.Signals) else None
    if code < 0 or name is not None:
        return {"exit_code": None if code < 0 else code, "signal": name or str(number), "reason": EndReason.KILLED}
    reasons = {0: EndReason.COMPLETED, USAGE: EndReason.REFUSED}
    return {"exit_code": code, "signal": None, "reason": reasons.get(code, EndReason.EXITED)}


def latest_step(run: Path) -> int | None:
    """The step that the run's latest checkpoint goes on at, as its pointer says; None where there is none."""
    try:
        match = re.search(r"step-(\d+)", (run / CHECKPOINTS / LATEST).read_text())
    except OSError:
        return None
    return int(match[1]) if match else None


def _verdict(record: SupervisorRecord, policy: SupervisorPolicy) -> dict[str, Any]:
    """The state after an attempt, and why it is the last."""
    last = record.attempts[-1]
    if last.reason is EndReason.COMPLETED:
        return {"state": SupervisorState.COMPLETED}
    why = {
        EndReason.REFUSED: "its input is invalid, and would be again",
        EndReason.NOT_STARTED: "there is no such command",
        EndReason.STOPPED: "the supervisor was told to end",
    }.get(last.reason or EndReason.EXITED, "")
    if not why and record.num_restarts >= policy.max_restarts:
        why = f"{policy.max_restarts} restarts were allowed"
    if not why and (idle := _idle_restarts(record.own_attempts)) > policy.max_idle_restarts:
        why = f"{idle} attempts in a row brought no newer checkpoint"
    return {"state": SupervisorState.FAILED if why else SupervisorState.WAITING, "stopped_because": why}


def _idle_restarts(attempts: Sequence[SupervisedAttempt]) -> int:
    """Attempts at the end of the list that brought no newer checkpoint."""
    moved = [_moved(attempt) for attempt in reversed(attempts)]
    return moved.index(True) if True in moved else len(moved)


def _moved(attempt: SupervisedAttempt) -> bool:
    return attempt.step_after is not None and (attempt.step_before is None or attempt.step_after > attempt.step_before)


def _shown(attempt: SupervisedAttempt) -> dict[str, Any]:
    names = ("number", "reason", "exit_code", "signal", "step_before", "step_after")
    return {name: value for name in names if (value := getattr(attempt, name)) is not None}


def _kill_group(leader: int) -> None:
    """End what is left of a command's process group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
