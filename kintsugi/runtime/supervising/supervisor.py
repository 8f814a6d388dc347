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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from kintsugi.core.codec import dumps
from kintsugi.core.errors import ConflictError, InvalidInputError, UnavailableError
from kintsugi.core.logs import get_logger
from kintsugi.core.parent import end_with_parent
from kintsugi.runtime.clerk import Clerk, HungError
from kintsugi.runtime.disk import answer_of, make_folder, replace_whole
from kintsugi.runtime.layout import CHECKPOINTS, LATEST, LIFE_LOCK, SUPERVISOR, SUPERVISOR_LOCK
from kintsugi.runtime.run_lock import RunLock
from kintsugi.runtime.supervising.supervision import (
    TOLD_TO_END,
    EndReason,
    SupervisedAttempt,
    SupervisorPolicy,
    SupervisorRecord,
    SupervisorState,
    ending,
    idle_restarts,
    not_begun,
    pause_seconds,
    read_record,
    verdict,
)

ATTEMPT_VARIABLE = "KINTSUGI_ATTEMPT"
"""Tells the command which attempt it is, counted from 0 over all sessions."""
_LOOK_SECONDS = 0.2
_DISK_SECONDS = 5.0
"""For the run's disk to answer, after which the command is gone on with."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


@dataclass(slots=True)
class Supervisor:
    """Supervises one command."""

    command: Sequence[str]
    run: Path
    """Folder of the run: its checkpoints, and the supervisor's file."""
    policy: SupervisorPolicy = field(default_factory=SupervisorPolicy)
    environment: Mapping[str, str] = field(default_factory=dict)
    ends_process: bool = False
    """Whether this process ends with it: once it was told to, further signals change nothing."""
    _stop_signal: int | None = None
    _untold: int | None = None
    """A signal that came while there was no command to pass it on to."""
    _process: subprocess.Popen[bytes] | None = None
    """The command until it is buried."""
    _disk: Clerk = field(default_factory=partial(Clerk, "supervisor"))

    @property
    def file(self) -> Path:
        """States and attempts, as JSON."""
        return self.run / SUPERVISOR

    def supervise(self) -> SupervisorRecord:
        """Run the command to its end, however often that takes; SIGINT, SIGTERM and SIGHUP end it and the command.

        A signal that is ignored, as SIGHUP is under `nohup`, stays so.

        Raises:
            InvalidInputError: there is no command, or the folder of the run cannot be written to.
            ConflictError: another supervisor is at work there.
            UnavailableError: its disk hangs.
        """
        if not self.command:
            raise InvalidInputError("is missing; write it after --", field="command")
        answer_of(self.run, partial(make_folder, self.run, "run"))
        with RunLock(self.run, SUPERVISOR_LOCK):
            return self._supervise(answer_of(self.run, self._session))

    def _supervise(self, record: SupervisorRecord) -> SupervisorRecord:
        heeded = [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._stop) for number in heeded}
        try:
            self._await_earlier(record)
            while True:
                if self._stop_signal is not None:
                    record = replace(record, state=SupervisorState.FAILED, stopped_because=TOLD_TO_END)
                    self._write(record)
                    return record
                record = self._attempt(record)
                record = replace(record, **verdict(record, self.policy))
                self._write(record)
                if record.state is not SupervisorState.WAITING:
                    return record
                self._pause(idle_restarts(record.own_attempts))
        finally:
            self._disk.close(0.0)  # one that hangs has been waited for
            is_told = self.ends_process and self._stop_signal is not None
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if is_told else handler)

    def _session(self) -> SupervisorRecord:
        """The next session of the run, with the attempts of the earlier ones; a damaged record of them is set aside."""
        record = SupervisorRecord(state=SupervisorState.LAUNCHING, command=tuple(self.command))
        if not os.path.lexists(self.file):
            return record
        try:
            earlier = read_record(self.run)
        except InvalidInputError as error:
            aside = self.file.with_suffix(".json.damaged")
            with suppress(OSError):  # else every attempt is told of that cannot be written
                self.file.replace(aside)
            get_logger("kintsugi.supervisor").warning(
                "the record of earlier attempts is damaged; it is set aside", reason=str(error), file=str(aside)
            )
            return record
        return replace(record, session=earlier.session + 1, attempts=earlier.attempts)

    def _await_earlier(self, record: SupervisorRecord) -> None:
        """Wait for a command whose supervisor was killed: it is told to end then, and may still write its last checkpoint.

        What is begun meanwhile would only be refused the folder.
        """
        if not record.attempts or record.attempts[-1].ended_at is not None:
            return
        is_told = False
        while self._stop_signal is None and (why := self._in_use()) is not None:
            if not is_told:
                log = get_logger("kintsugi.supervisor")
                log.info("the command of an earlier supervisor is waited for; a signal ends this one", reason=why)
            is_told = True
            time.sleep(_LOOK_SECONDS)

    def _in_use(self) -> str | None:
        """Whose the run's folder is, or why that is not known; null where it is nobody's."""
        try:
            self._asked(self._take_life)
        except (ConflictError, UnavailableError) as error:
            return str(error)
        except HungError as error:
            return f"{self.run} {error}"
        return None

    def _take_life(self) -> None:
        """Hold the run's folder for a moment, where anybody did before."""
        if os.path.lexists(self.run / LIFE_LOCK):
            with RunLock(self.run):
                return

    def _attempt(self, record: SupervisorRecord) -> SupervisorRecord:
        """Run the command once, and note how it ended."""
        number = len(record.attempts)
        attempt = SupervisedAttempt(number=number, session=record.session, started_at=time.time(), step_before=self._latest_step())
        self._write(replace(record, state=SupervisorState.LAUNCHING, attempts=(*record.attempts, attempt)))
        environment = {**os.environ, **self.environment, ATTEMPT_VARIABLE: str(number)}
        try:
            self._process = self._started(environment)
        except OSError as error:
            get_logger("kintsugi.supervisor").warning("the command cannot be started", reason=str(error))
            attempt = replace(attempt, ended_at=time.time(), **not_begun(error))
            return replace(record, attempts=(*record.attempts, attempt))
        if self._untold is not None:
            self._pass_on(self._untold)
        attempt = replace(attempt, pid=self._process.pid)
        self._write(replace(record, state=SupervisorState.RUNNING, attempts=(*record.attempts, attempt)))
        code = self._wait(self._process)
        ended = replace(attempt, ended_at=time.time(), step_after=self._latest_step(), **ending(code))
        if self._stop_signal is not None:
            ended = replace(ended, reason=EndReason.STOPPED)
        get_logger("kintsugi.supervisor").info("attempt ended", **_shown(ended))
        return replace(record, attempts=(*record.attempts, ended))

    def _started(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The command, in a session of its own, which is told to end (SIGTERM) should this supervisor be killed.

        As launchers such as torchrun pass that on to what they started. This is the main thread, which handles signals: the
        kernel goes by the end of the thread that forks.
        """
        last_words = partial(_end_with, os.getpid())
        return subprocess.Popen(self.command, env=environment, start_new_session=True, preexec_fn=last_words)  # noqa: S603, PLW1509

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code; no process of its group is left. It is waited for first and buried last, so that its id stays its own."""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(process.pid)
        self._process = None
        return process.wait()

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Pass the signal on; who asks twice means it."""
        is_second, self._stop_signal = self._stop_signal is not None, number
        self._pass_on(signal.SIGKILL if is_second else number)
        if not is_second and self._process is not None:  # by a thread: what the signal interrupted may be about to log
            threading.Thread(target=_tell_of_stop, args=(number, self._process.pid), daemon=True).start()

    def _pass_on(self, number: int) -> None:
        """To the command, once for each time that it came; one that is about to be started is told as soon as it is there."""
        if self._process is None:
            self._untold = number
        else:
            os.kill(self._process.pid, number)  # `send_signal` would bury it, were it over

    def _pause(self, num_idle: int) -> None:
        deadline = time.monotonic() + pause_seconds(num_idle, self.policy)
        while self._stop_signal is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))

    def _write(self, record: SupervisorRecord) -> None:
        """Bring the record to the disk. One that is full or hangs costs what it says until the next time, not the command."""
        try:
            self._asked(partial(replace_whole, self.file, dumps(record)))
        except (OSError, HungError) as error:
            log = get_logger("kintsugi.supervisor")
            log.warning("the record of attempts could not be written", file=str(self.file), reason=str(error))

    def _latest_step(self) -> int | None:
        """As `latest_step` says; None, too, where the disk does not."""
        with suppress(HungError):
            return self._asked(partial(latest_step, self.run))
        return None

    def _asked(self, call: Callable[[], T]) -> T:
        """What the disk says; signals are heeded meanwhile.

        Raises:
            HungError: it says nothing.
        """
        return self._disk.asked_alone(call, _DISK_SECONDS)


def latest_step(run: Path) -> int | None:
    """The step that the run's latest checkpoint goes on at, as its pointer says; None where there is none."""
    try:
        match = re.search(rb"step-(\d{1,20})", (run / CHECKPOINTS / LATEST).read_bytes())
    except OSError:
        return None
    return int(match[1]) if match else None


def _end_with(supervisor: int) -> None:
    """Before the command begins: it ends with its supervisor, also where that one was killed just now.

    What is forked would hear of that by the supervisor's own handler, which ends nobody.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(signal.SIGTERM, supervisor)


def _tell_of_stop(number: int, pid: int) -> None:
    log = get_logger("kintsugi.supervisor")
    log.info("the command is told to end, and waited for; a second signal kills it", signal=signal.Signals(number).name, pid=pid)


def _shown(attempt: SupervisedAttempt) -> dict[str, Any]:
    names = ("number", "reason", "exit_code", "signal", "step_before", "step_after")
    return {name: value for name in names if (value := getattr(attempt, name)) is not None}


def _kill_group(leader: int) -> None:
    """End what is left of a command's process group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
