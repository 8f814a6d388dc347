"""Worker processes as their agent sees them: forked by a server, struck down when they must not act any more."""

import multiprocessing.process
import os
import select
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from kintsugi.core.errors import ReconfigurationError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.forking import start_process
from kintsugi.runtime.messages import FromWorker, ToWorker
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import WorkerOptions
from kintsugi.runtime.reach import Address
from kintsugi.runtime.workers.entry import worker_main

WorkerMain = Callable[[str, Callable[[], TrainingJob], WorkerOptions, Connection], None]
"""Entry point of a worker process."""

_DIRECT_BYTES = 65_536
"""A pipe that select calls writable takes this much without blocking (three quarters of 208 kB are free)."""


_STOPPED_STATES = ("T", "t")
"""By a signal, or by a debugger (proc(5))."""

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
"""What native code ends by."""

_ENDING_SECONDS = 0.1
"""For a process to end once it has closed its pipe."""

_SENTENCE_SECONDS = 5
"""A message that has begun to arrive is complete within this."""


FENCE_SECONDS = 10.0
"""For a process to end after SIGKILL."""

_HELD_STATES = ("D", "Z", "X")
"""Of a thread that waits in the kernel and cannot be interrupted, and of those that have ended (proc(5))."""


def _is_held(pid: int) -> bool:
    """Whether all threads of a process have ended, but for those that wait in the kernel and cannot be interrupted."""
    try:
        return all(_state(task / "stat") in _HELD_STATES for task in Path(f"/proc/{pid}/task").iterdir())
    except (OSError, IndexError):
        return False


def _state(stat: Path) -> str:
    return stat.read_bytes().rpartition(b")")[2].split()[0].decode()


def _limit_reading(connection: Connection, seconds: int) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


def _signal_described(signal_number: int) -> str:
    """By what a process was ended."""
    try:
        name = signal.Signals(signal_number).name
    except ValueError:
        name = f"signal {signal_number}"
    if signal_number == signal.SIGKILL:
        return f"{name}: the kernel sends it where memory runs out; so does `kill -9`"
    return f"{name}: its own code crashed" if signal_number in _CRASHES else name


class WorkerHandle:
    """One worker process and the pipe to it. The agent alone holds the pipe's other end."""

    def __init__(
        self,
        worker: str,
        make_job: Callable[[], TrainingJob],
        options: WorkerOptions,
        main: WorkerMain = worker_main,
    ) -> None:
        self.worker = worker
        self.created_at = self.last_heard_at = time.monotonic()
        self.started_at: float | None = None
        """When the worker knew its model, on the monotonic clock."""
        self.address: Address | None = None
        """Where others can try to reach it."""
        self._outbox: deque[bytes] = deque()
        self._outbox_lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self.struck_at: float | None = None
        """When the worker said that it strikes itself, or when it was killed from here."""
        self.is_leaving = False
        """Whether it was asked to leave: it goes as soon as a plan without it runs."""
        self.reason = ""
        """Why it ends, where it or others said so."""
        self.exit_code: int | None = None
        """Of a process that was fenced; below 0 it is the signal that ended it."""
        self._has_ended = False
        """Whether it had ended before it was fenced."""
        self.is_broken = False
        """Whether the pipe is at its end or in the middle of a message that does not go on."""
        self.process, self.connection = start_process(worker, partial(main, worker, make_job, options))
        _limit_reading(self.connection, _SENTENCE_SECONDS)

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process.pid is not None
        return self.process.pid

    def send(self, message: ToWorker) -> None:
        """Tell the worker something, without ever waiting for it: a frozen worker does not empty its pipe.

        A dead worker is told nothing; its end is noticed elsewhere.
        """
        data = bytes(ForkingPickler.dumps(message))
        with self._outbox_lock:
            if not self._outbox and len(data) <= _DIRECT_BYTES and self._has_room():
                self._write(data)
                return
            self._outbox.append(data)
            if len(self._outbox) == 1:
                self._writer = threading.Thread(target=self._empty_outbox, name=f"outbox-{self.worker}", daemon=True)
                self._writer.start()

    def _has_room(self) -> bool:
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLOUT)
        return bool(poll.poll(0))

    def _empty_outbox(self) -> None:
        """In a thread of its own; ends with the outbox, or with the worker."""
        while self._write(self._outbox[0]):
            with self._outbox_lock:
                self._outbox.popleft()
                if not self._outbox:
                    return

    def _write(self, data: bytes) -> bool:
        try:
            self.connection.send_bytes(data)
        except OSError:
            return False
        return True

    def receive(self) -> FromWorker | None:
        """The next message, or None at the end of the pipe or when the worker froze in the middle of its sentence."""
        try:
            message: FromWorker = self.connection.recv()
        except (EOFError, OSError):
            self.is_broken = True
            return None
        self.last_heard_at = time.monotonic()
        return message

    def is_stopped(self) -> bool:
        """Whether the operating system has the process stopped."""
        try:
            return _state(Path(f"/proc/{self.pid}/stat")) in _STOPPED_STATES
        except (OSError, IndexError):
            return False

    def strike(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal, and note when."""
        self.struck_at = time.monotonic()
        self._signal(signal_number)

    def _signal(self, signal_number: int) -> None:
        if self.process.is_alive():  # else the id may be another process's by now
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)

    def fence(self, timeout_seconds: float = FENCE_SECONDS) -> None:
        """Make sure that the process will never act again: SIGKILL, and wait for its end.

        One that the kernel holds, as for a disk that hangs, cannot end before the kernel lets it go; it does nothing more either.

        Raises:
            ReconfigurationError: it is still there after `timeout_seconds`.
        """
        if self.is_broken:  # most likely by its end, which follows
            self.process.join(_ENDING_SECONDS)
        self._has_ended = not self.process.is_alive()
        self._signal(signal.SIGKILL)
        self.process.join(timeout_seconds)
        if self._writer is not None:  # the end of the process frees it; the pipe must not be closed under it
            self._writer.join(timeout_seconds)
        self.connection.close()
        if self.process.is_alive():
            self._leave(timeout_seconds)
            return
        self.exit_code = self.process.exitcode
        self.process.close()

    @property
    def ending(self) -> str:
        """Why or how a process that is fenced ended by itself; nothing where it did so in good order, or was struck on purpose."""
        if self.reason:
            return self.reason
        is_ours = self.struck_at is not None or (self.exit_code == -signal.SIGKILL and not self._has_ended)
        if is_ours or not self.exit_code:
            return ""
        return f"exit code {self.exit_code}" if self.exit_code > 0 else _signal_described(-self.exit_code)

    def _leave(self, timeout_seconds: float) -> None:
        """Wait for a process no more, not even when this one ends, that can do nothing between here and its end."""
        if not _is_held(self.pid):
            raise ReconfigurationError(f"did not end {timeout_seconds:g} s after SIGKILL", field=self.worker, value=self.pid)
        children: Any = multiprocessing.process
        children._children.discard(self.process)
        log = get_logger("kintsugi.runtime")
        log.warning(
            "a worker was killed, and its process ends once the kernel lets it go: is a disk hung?",
            worker=self.worker,
            process=self.pid,
        )
