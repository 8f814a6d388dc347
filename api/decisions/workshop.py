"""Processes that work for the service, so that the interpreter that answers requests never waits for a search."""

import os
import pickle
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

import structlog

from api.decisions.forkserver import CLOSING_SECONDS, ForkServer, socket_of
from kintsugi.core.errors import KintsugiError, UnavailableError, error_from

LONGEST_SECONDS = 600.0
"""For one piece of work."""
BEGINNING_SECONDS = 600.0
"""For a process to begin."""

P = ParamSpec("P")
T = TypeVar("T")


class NobodyThereError(UnavailableError):
    """No process could be begun, or those that were ended before they were ready."""


class WorkLostError(UnavailableError):
    """The process that was to do the work ended over it, by nobody's wish, or gave no answer in time."""


class TakesTooLongError(WorkLostError):
    """It gave no answer in time: another process would take as long."""


class Workshop:
    """Up to `size` processes, begun when they are wanted; ready once the server that forks them is."""

    def __init__(self, size: int, server: ForkServer, *, niceness: int = 0) -> None:
        """Nothing begins yet.

        Args:
            size: processes; with 0 there are none, and nothing can be done.
            server: that they are forks of; others may use it, too.
            niceness: how far other processes go before them.
        """
        self._most = size
        self._server = server
        self._niceness = niceness
        self._helpers: set[_Helper] = set()
        self._idle: list[_Helper] = []
        self._num_ready = 0
        self._changed = threading.Condition()
        self._closed = False
        self._log = structlog.get_logger("kintsugi.api")

    @property
    def size(self) -> int:
        """Processes that there are, or begin: fewer than were asked for where the system does not let them begin."""
        return len(self._helpers)

    @property
    def is_ready(self) -> bool:
        """Whether there is a process that can take work, or works."""
        return self._num_ready > 0

    def start(self) -> None:
        """Begin the processes that are missing, as far as the system lets them begin, without waiting for them."""
        with self._changed:
            while len(self._helpers) < self._most and not self._closed:
                try:
                    self._begin()
                except (OSError, RuntimeError) as error:  # no descriptors, memory, or threads: who asked can still search by itself
                    self._log.warning("cannot begin a process that plans", reason=str(error))
                    return

    def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns in one of the processes, once one is free.

        Raises:
            KintsugiError: that `work` raised.
            WorkLostError: the process ended (it may have been killed for memory), or is silent; another takes its place.
            NobodyThereError: there is no process.
            UnavailableError: somebody ended it, or all were busy for too long.
        """
        self.start()
        helper = self._free()
        try:
            result = helper.ask(work, args, kwargs)
        except (EOFError, OSError, TimeoutError, pickle.UnpicklingError) as error:
            loss = self._loss(helper, error)
            self._dismiss(helper, was_ready=True)
            raise loss from error
        except BaseException:  # what cannot be sent, or read here: nobody else would ever let go of the process
            self._dismiss(helper, was_ready=True)
            raise
        self._shelve(helper)
        if isinstance(result, _Problem):
            raise error_from(result.document)
        if isinstance(result, _Fault):
            raise RuntimeError(result.trace)
        done: T = result
        return done

    def close(self) -> None:
        """End all processes; what they do is lost, and who waits for it is told."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._helpers.difference(idle)
            self._changed.notify_all()
        for helper in busy:
            helper.fork.end()
        for helper in idle:
            self._dismiss(helper, was_ready=True)
        with self._changed:
            self._changed.wait_for(lambda: not self._helpers, CLOSING_SECONDS)

    def _begin(self) -> None:
        with ExitStack() as failed:
            helper = _Helper(self._server, self._niceness)
            failed.callback(helper.fork.close)
            threading.Thread(target=self._welcome, args=(helper,), name="workshop", daemon=True).start()
            failed.pop_all()
        self._helpers.add(helper)

    def _loss(self, helper: "_Helper", error: Exception) -> UnavailableError:
        """What it means that a process gave no answer: the work is not to blame where the process was asked to end."""
        if isinstance(error, TimeoutError):
            return TakesTooLongError(f"the process that plans gave no answer within {LONGEST_SECONDS:g} s; try again")
        if isinstance(error, pickle.UnpicklingError):
            return WorkLostError("the process that plans gave no answer that can be read; try again")
        status = helper.fork.exit_status()
        if self._closed or status == -signal.SIGTERM:
            return UnavailableError("the process that plans was ended; try again")
        how = "killed, as where memory runs out" if status in (-signal.SIGKILL, None) else f"exit status {status}"
        return WorkLostError(f"the process that plans ended ({how}); try again")

    def _free(self) -> "_Helper":
        """One that is idle; those that ended meanwhile are let go of."""
        while (helper := self._idle_one()).has_ended:
            self._dismiss(helper, was_ready=True)
        return helper

    def _idle_one(self) -> "_Helper":
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._closed or not self._helpers, LONGEST_SECONDS)
            if self._closed:
                raise UnavailableError("the processes that plan were ended; try again")
            if not self._helpers:
                raise NobodyThereError("no process is there that plans; try again")
            if not self._idle:
                raise UnavailableError(f"all processes that plan were busy for {LONGEST_SECONDS:g} s; try again")
            return self._idle.pop()

    def _welcome(self, helper: "_Helper") -> None:
        try:
            helper.pid = helper.answer(BEGINNING_SECONDS)
        except (EOFError, OSError, TimeoutError):
            self._dismiss(helper, was_ready=False)
            return
        self._shelve(helper, is_new=True)

    def _shelve(self, helper: "_Helper", *, is_new: bool = False) -> None:
        """Have the next one who asks find it."""
        with self._changed:
            self._num_ready += is_new
            if not self._closed:
                self._idle.append(helper)
                self._changed.notify()
                return
        self._dismiss(helper, was_ready=True)

    def _dismiss(self, helper: "_Helper", *, was_ready: bool) -> None:
        """Let go of one that nobody else waits for; another takes its place at once if it was ready, for there may be who waits."""
        helper.fork.close()
        with self._changed:
            self._helpers.discard(helper)
            self._num_ready -= was_ready
            if was_ready:
                self.start()
            self._changed.notify_all()


class _Helper:
    """One process, which does one thing at a time."""

    def __init__(self, server: ForkServer, niceness: int) -> None:
        self.pid: int | None = None
        """Once it is ready."""
        self.fork = server.fork(_help, niceness)
        _bound_sending(self.fork.connection, LONGEST_SECONDS)

    @property
    def has_ended(self) -> bool:
        """Of one that does nothing, of which nothing but its end is heard."""
        return self.fork.connection.poll()

    def ask(self, *task: Any) -> Any:
        """What the process returns for a task; raises as `answer` does, also where the task is not taken in."""
        try:
            self.fork.connection.send(task)
        except BlockingIOError as error:
            raise TimeoutError from error
        return self.answer(LONGEST_SECONDS)

    def answer(self, seconds: float) -> Any:
        """What the process sends within so many seconds.

        Raises:
            EOFError: it ended.
            TimeoutError: it sends nothing.
        """
        if not self.fork.connection.poll(seconds):
            raise TimeoutError
        return self.fork.connection.recv()


@dataclass(frozen=True, slots=True)
class _Problem:
    """An error as JSON: errors themselves do not travel between processes."""

    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Fault:
    """What an error that nobody expected looked like."""

    trace: str


def _bound_sending(connection: Connection, seconds: float) -> None:
    """Have sending end with `BlockingIOError` once nothing was taken in for so many seconds, as by a process that is stopped."""
    with socket_of(connection) as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6)))


def _help(connection: Connection, niceness: int) -> None:
    """The life of a process: it is ready once it has told its id, and ends with the service."""
    os.nice(niceness)
    connection.send(os.getpid())
    while True:
        try:
            work, args, kwargs = connection.recv()
        except EOFError:
            return
        connection.send(_result(partial(work, *args, **kwargs)))


def _result(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except KintsugiError as error:
        return _Problem(error.as_dict())
    except Exception:  # one task's misfortune is not the next one's
        return _Fault(traceback.format_exc())
