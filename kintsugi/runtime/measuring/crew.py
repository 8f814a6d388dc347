"""Processes that connect as workers do and answer what they are asked; the process that starts them is their control plane.

Every wait is bounded and every process ends on every path.
"""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from types import TracebackType
from typing import Any, NoReturn, Self

import torch

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.forking import start_process
from kintsugi.runtime.messages import Delivered, Published
from kintsugi.runtime.options import WorkerOptions
from restorer.groups import Groups
from restorer.rendezvous import Rendezvous, members_of

_ENDED = "a process ended in the middle of a measurement"


@dataclass(frozen=True, slots=True)
class Connect:
    """A request: build the groups of an attempt, one of all members and the subgroups; earlier ones are given up."""

    attempt: int
    members: tuple[str, ...]
    subgroups: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process answers to one request."""

    content: Any


class Crew(AbstractContextManager["Crew"]):
    """The processes, seen from the one that starts them: it asks them, and hands their rendezvous keys over."""

    def __init__(self, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._attempt = 0
        self._connections: dict[str, Connection] = {}
        self._processes: list[ForkServerProcess] = []

    def start(self, name: str, main: Callable[..., None], *arguments: Any) -> None:
        """Start a process whose entry point is called with `arguments` and its end of the pipe."""
        process, self._connections[name] = start_process(name, partial(main, *arguments))
        self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the processes, in the order in which they were started."""
        return tuple(self._connections)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, in the same order."""
        return tuple(process.pid for process in self._processes if process.pid is not None)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(self._timeout_seconds)
        for connection in self._connections.values():
            connection.close()

    def build(self, members: tuple[str, ...], subgroups: tuple[tuple[str, ...], ...]) -> None:
        """Build new groups among some members.

        Raises:
            UnavailableError: a process ended, or the time is over.
        """
        self._attempt += 1
        self.ask(dict.fromkeys(members, Connect(self._attempt, members, subgroups)))

    def ask(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Send requests, hand keys over until all have answered; the answers by name.

        Raises:
            UnavailableError: a process ended, or the time is over.
        """
        for name, request in requests.items():
            self._tell(name, request)
        names = {connection: name for name, connection in self._connections.items()}
        answers: dict[str, Any] = {}
        deadline = time.monotonic() + self._timeout_seconds
        while answers.keys() < requests.keys():
            ready = wait(list(names), max(deadline - time.monotonic(), 0.0))
            if not ready:
                silent = ", ".join(sorted(requests.keys() - answers.keys()))
                raise UnavailableError(f"no answer within {self._timeout_seconds:g} s", field="worker", value=silent)
            for connection in ready:
                assert isinstance(connection, Connection)
                self._take(names[connection], connection, answers)
        return answers

    def _take(self, name: str, connection: Connection, answers: dict[str, Any]) -> None:
        try:
            message: Published | Answer = connection.recv()
        except (EOFError, OSError) as error:
            raise UnavailableError(_ENDED, field="worker", value=name) from error
        if isinstance(message, Answer):
            answers[name] = message.content
            return
        for member in members_of(message.key):
            self._tell(member, Delivered(message.attempt, message.key, message.value))

    def _tell(self, name: str, message: Any) -> None:
        try:
            self._connections[name].send(message)
        except OSError as error:
            raise UnavailableError(_ENDED, field="worker", value=name) from error


class CrewMember:
    """One process, seen from within: a listener that hands keys over, and a main thread that answers."""

    def __init__(self, name: str, address: str, connection: Connection) -> None:
        self.name = name
        self.groups: Groups | None = None
        self._address = address
        self._connection = connection
        self._send_lock = threading.Lock()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._rendezvous: Rendezvous | None = None

    def run(self, answer: Callable[[Any], Any]) -> NoReturn:
        """Connect when asked to, have `answer` see to every other request; the process ends with its pipe."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        threading.Thread(target=self._listen, name="listener", daemon=True).start()
        while True:
            request = self._requests.get()
            if isinstance(request, Connect):
                self._connect(request)
                self._send(Answer(None))
            else:
                self._send(Answer(answer(request)))

    def _send(self, message: Published | Answer) -> None:
        with self._send_lock:
            self._connection.send(message)

    def _listen(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, Delivered):
                    assert self._rendezvous is not None
                    self._rendezvous.deliver(message.key, message.value)
                    continue
                if isinstance(message, Connect):
                    self._rendezvous = Rendezvous(self._publisher(message.attempt))
                self._requests.put(message)
        except (EOFError, OSError):
            os._exit(0)

    def _publisher(self, attempt: int) -> Callable[[str, bytes], None]:
        return lambda key, value: self._send(Published(attempt, key, value))

    def _connect(self, request: Connect) -> None:
        assert self._rendezvous is not None
        if self.groups is not None:
            self.groups.close()
        self.groups = Groups(self.name, request.members, request.subgroups, self._rendezvous, f"attempt{request.attempt}")
        options = WorkerOptions()
        self.groups.build(
            address=self._address,
            timeout_seconds=options.connect_timeout_seconds,
            operation_timeout_seconds=options.operation_timeout_seconds,
        )
