"""Processes that connect and talk as workers do, each obeying calls of module-level functions; the test is their control plane."""

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import torch

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.forking import forkserver
from restorer.channels import ChannelGroups
from restorer.groups import Groups
from restorer.library import GlooLibrary
from restorer.nccl import NcclLibrary
from restorer.nccl_requirements import prepare_environment
from restorer.rendezvous import Rendezvous, members_of
from restorer.transport import GlooTransport
from tests.restorer import stand_in

PATIENCE_SECONDS = 120.0
CONNECT_SECONDS = 25.0


@dataclass
class Member:
    """One process, as the functions that it is asked to call see it."""

    name: str
    connection: Connection
    calls: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    rendezvous: Rendezvous | None = None
    groups: Groups | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def transport(self) -> GlooTransport:
        return self.groups.transport(torch.device("cpu"))

    def build(
        self, attempt: str, members: Sequence[str], subgroups: Sequence[tuple[str, ...]], seconds: float, *, has_channels: bool
    ) -> None:
        channels = self.channels(attempt, members, subgroups, seconds) if has_channels else None
        self.groups = Groups(self.name, members, () if channels else subgroups, self.rendezvous, attempt, channels=channels)
        self.groups.build(address="127.0.0.1", timeout_seconds=seconds, operation_timeout_seconds=600.0)

    def channels(self, attempt: str, members: Sequence[str], sums: Sequence[tuple[str, ...]], seconds: float) -> ChannelGroups:
        """Between all members, over gloo."""
        library = GlooLibrary(
            address="127.0.0.1",
            device=torch.device("cpu"),
            connect_timeout_seconds=seconds,
            operation_timeout_seconds=600.0,
        )
        return ChannelGroups(self.name, members, itertools.permutations(members, 2), sums, library=library, name=attempt)

    def listen(self) -> None:
        try:
            while True:
                kind, *content = self.connection.recv()
                if kind == "deliver":
                    self.rendezvous.deliver(*content)
                elif kind == "abort":
                    self.groups.abort()
                else:
                    if content[0].__name__.startswith("build"):
                        self.rendezvous = Rendezvous(lambda key, value: self.connection.send(("publish", key, value)))
                    self.calls.put(content)
        except (EOFError, OSError):
            os._exit(0)


def member_main(name: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    member = Member(name, connection)
    threading.Thread(target=member.listen, daemon=True).start()
    while True:
        function, arguments = member.calls.get()
        try:
            answer = ("answer", function(member, *arguments))
        except CommunicationError as error:
            answer = ("answer", error)
        connection.send(answer)


def build(
    member: Member,
    attempt: str,
    members: Sequence[str],
    subgroups: Sequence[tuple[str, ...]] = (),
    seconds: float = CONNECT_SECONDS,
    *,
    has_channels: bool = False,
) -> str:
    member.build(attempt, members, subgroups, seconds, has_channels=has_channels)
    return "built"


def build_nccl(member: Member, attempt: str, members: Sequence[str], sums: Sequence[tuple[str, ...]] = ()) -> str:
    """With what stands in for NCCL."""
    stand_in.install(member.name)
    prepare_environment()
    library = NcclLibrary(torch.device("cpu"), timeout_seconds=CONNECT_SECONDS)
    channels = ChannelGroups(member.name, members, itertools.permutations(members, 2), sums, library=library, name=attempt)
    member.groups = Groups(member.name, members, (), member.rendezvous, attempt, channels=channels)
    member.groups.build(address="127.0.0.1", timeout_seconds=CONNECT_SECONDS, operation_timeout_seconds=600.0)
    return "built"


def build_channels(member: Member, attempt: str, members: Sequence[str], subgroups: Sequence[tuple[str, ...]] = ()) -> str:
    return build(member, attempt, members, subgroups, has_channels=True)


def close(member: Member) -> None:
    groups, member.groups = member.groups, None
    groups.close()


class Crew(AbstractContextManager["Crew"]):
    """Named processes; `on_publish` sees every key first and may strike someone."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.on_publish: Callable[[str, str], None] = lambda *_: None
        self._connections: dict[str, Connection] = {}
        self._processes = {}
        self.answers: dict[str, Any] = {}

    def __enter__(self) -> Self:
        context = forkserver()
        for name in self.names:
            self._connections[name], theirs = context.Pipe()
            self._processes[name] = context.Process(target=member_main, args=(name, theirs), daemon=True)
            self._processes[name].start()
            theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.join(PATIENCE_SECONDS)
            assert not process.is_alive()
            process.close()
        for connection in self._connections.values():
            connection.close()

    def begin(self, calls: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
        """Ask members to call functions; the answers come with `finish`."""
        for name, (function, arguments) in calls.items():
            self.answers.pop(name, None)
            self._connections[name].send(("call", function, arguments))

    def finish(self, *names: str) -> dict[str, Any]:
        """Hand keys over until all of `names` have answered."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.answers.keys() >= set(names):
            left = deadline - time.monotonic()
            assert left > 0, f"no answer from {set(names) - self.answers.keys()}"
            self.relay(left)
        return {name: self.answers[name] for name in names}

    def relay(self, seconds: float) -> None:
        """Take what members say, waiting at most `seconds` for something."""
        names = {connection: name for name, connection in self._connections.items()}
        for connection in wait(list(names), seconds):
            try:
                kind, *content = connection.recv()
            except (EOFError, OSError):
                self._connections.pop(names[connection]).close()
                continue
            if kind == "answer":
                self.answers[names[connection]] = content[0]
            else:
                self._hand_over(names[connection], *content)

    def _hand_over(self, name: str, key: str, value: bytes) -> None:
        self.on_publish(name, key)
        for member in members_of(key):
            if member in self._connections:
                with suppress(BrokenPipeError, ConnectionResetError):  # killed meanwhile
                    self._connections[member].send(("deliver", key, value))

    def call(self, function: Callable[..., Any], *arguments: Any, on: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of some (by default all) members to one call."""
        names = on or self.names
        self.begin(dict.fromkeys(names, (function, arguments)))
        return self.finish(*names)

    def build(
        self,
        attempt: str,
        members: Sequence[str] = (),
        subgroups: Sequence[tuple[str, ...]] = (),
        *,
        has_channels: bool = False,
    ) -> None:
        members = tuple(members or self.names)
        answers = self.call(build_channels if has_channels else build, attempt, members, subgroups, on=members)
        assert set(answers.values()) == {"built"}, answers

    def abort(self, *names: str) -> None:
        for name in names:
            self._connections[name].send(("abort",))

    def strike(self, name: str, signal_number: int) -> None:
        os.kill(self.process_id(name), signal_number)

    def await_end(self, name: str) -> None:
        """Wait for a member that ends by itself."""
        self._processes[name].join(PATIENCE_SECONDS)
        assert not self._processes[name].is_alive()

    def process_id(self, name: str) -> int:
        return self._processes[name].pid
