"""Processes that connect as workers do, each in its own network namespace, and call functions of a benchmark."""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, NoReturn, Self

import torch

from benchmarks.links import EmulatedLinks, enter
from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.processes import forkserver
from kintsugi.runtime.worker import WorkerOptions
from restorer.groups import Groups, Rendezvous, members_of


@dataclass(slots=True)
class Member:
    """A process as the functions that it calls see it."""

    name: str
    address: str
    connection: Connection
    calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=queue.SimpleQueue)
    send_lock: threading.Lock = field(default_factory=threading.Lock)
    rendezvous: Rendezvous | None = None
    groups: Groups | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    """Whatever a function leaves for later ones."""

    def connect(self, attempt: str, members: Sequence[str], subgroups: Sequence[tuple[str, ...]]) -> None:
        """Build the groups of an attempt; earlier ones are given up."""
        if self.groups is not None:
            self.groups.close()
        assert self.rendezvous is not None
        self.groups = Groups(self.name, members, subgroups, self.rendezvous, attempt)
        options = WorkerOptions()
        self.groups.build(
            address=self.address,
            timeout_seconds=options.connect_timeout_seconds,
            operation_timeout_seconds=options.operation_timeout_seconds,
        )

    def tell(self, *content: Any) -> None:
        """Send something to the benchmark."""
        with self.send_lock:
            self.connection.send(content)

    def listen(self) -> None:
        """Hand keys and calls over until the pipe ends, and the process with it."""
        try:
            while True:
                kind, *content = self.connection.recv()
                if kind == "key":
                    assert self.rendezvous is not None
                    self.rendezvous.deliver(*content)
                    continue
                if content[0] is connect:
                    self.rendezvous = Rendezvous(lambda key, value: self.tell("key", key, value))
                self.calls.put((content[0], content[1]))
        except (EOFError, OSError):
            os._exit(0)


def connect(member: Member, attempt: str, members: Sequence[str], subgroups: Sequence[tuple[str, ...]]) -> None:
    """A call: build groups."""
    member.connect(attempt, members, subgroups)


def _member_main(name: str, address: str, namespace: str, connection: Connection) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    enter(namespace)
    torch.set_num_threads(1)
    member = Member(name, address, connection)
    threading.Thread(target=member.listen, name="listener", daemon=True).start()
    while True:
        function, arguments = member.calls.get()
        member.tell("answer", function(member, *arguments))


class Members(AbstractContextManager["Members"]):
    """A process for every member of emulated links; this process hands their rendezvous keys over."""

    def __init__(self, links: EmulatedLinks, *, timeout_seconds: float = 120.0) -> None:
        self._names, self._links, self._timeout_seconds = tuple(links.addresses), links, timeout_seconds
        self._attempts = 0
        self._connections: dict[str, Connection] = {}
        self._processes: list[Any] = []

    def __enter__(self) -> Self:
        context = forkserver()
        try:
            for name in self._names:
                ours, theirs = context.Pipe()
                self._connections[name] = ours
                arguments = (name, self._links.addresses[name], self._links.namespace(name), theirs)
                process = context.Process(target=_member_main, args=arguments, daemon=True)
                process.start()
                self._processes.append(process)
                theirs.close()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(self._timeout_seconds)
        for connection in self._connections.values():
            connection.close()

    def connect(self, members: Sequence[str] = (), subgroups: Sequence[tuple[str, ...]] = ()) -> None:
        """Build new groups among some members (all by default)."""
        self._attempts += 1
        members = tuple(members or self._names)
        self.call(connect, f"attempt{self._attempts}", members, tuple(subgroups), on=members)

    def call(self, function: Callable[..., Any], *arguments: Any, on: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of some members (all by default) to a call of a module-level function with them first."""
        return self.calls(dict.fromkeys(on or self._names, (function, arguments)))

    def calls(self, requests: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]]) -> dict[str, Any]:
        """The members' answers, each to its own call."""
        for name, (function, arguments) in requests.items():
            self._connections[name].send(("call", function, arguments))
        names = {connection: name for name, connection in self._connections.items()}
        answers: dict[str, Any] = {}
        deadline = time.monotonic() + self._timeout_seconds
        while answers.keys() < requests.keys():
            ready = wait(list(names), max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise UnavailableError("no answer in time", field="members", value=sorted(requests.keys() - answers.keys()))
            for connection in ready:
                assert isinstance(connection, Connection)
                self._take(names[connection], connection, answers)
        return answers

    def _take(self, name: str, connection: Connection, answers: dict[str, Any]) -> None:
        try:
            kind, *content = connection.recv()
        except (EOFError, OSError) as error:
            raise UnavailableError("a process ended in the middle of a measurement", field="members", value=name) from error
        if kind == "answer":
            answers[name] = content[0]
            return
        for member in members_of(content[0]):
            self._connections[member].send(("key", *content))
