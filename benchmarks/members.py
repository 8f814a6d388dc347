"""Processes that connect as workers do, each in its own network namespace, and call functions of a benchmark."""

from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Protocol

from benchmarks.links import enter
from kintsugi.runtime.measuring.crew import Crew, CrewMember
from kintsugi.runtime.options import WorkerOptions

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A module-level function, called with the member first, and its other arguments."""


class Member(CrewMember):
    """A process as the functions that it calls see it."""

    def __init__(self, name: str, address: str, connection: Connection) -> None:
        super().__init__(name, address, connection)
        self.kept: dict[str, Any] = {}
        """Whatever a function leaves for later ones."""

    def answer(self, call: Call) -> Any:
        """What a function gives."""
        function, arguments = call
        return function(self, *arguments)


def _member_main(name: str, address: str, namespace: str, connection: Connection) -> NoReturn:
    enter(namespace)
    member = Member(name, address, connection)
    member.run(member.answer)


class Places(Protocol):
    """Where members are: on links of their own, or on a shared one."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Of every member."""

    def namespace(self, member: str) -> str:
        """The network namespace of a member."""


class Members(Crew):
    """A process for every member of emulated links."""

    def __init__(self, links: Places, *, timeout_seconds: float = 120.0) -> None:
        super().__init__(timeout_seconds=timeout_seconds)
        try:
            for name, address in links.addresses.items():
                self.start(name, _member_main, name, address, links.namespace(name))
        except BaseException:
            self.close()
            raise

    def connect(self, members: Sequence[str] = (), subgroups: Sequence[tuple[str, ...]] = ()) -> None:
        """Build new groups among some members (all by default)."""
        self.build(tuple(members or self.names), tuple(subgroups))

    def call(self, function: Callable[..., Any], *arguments: Any, on: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of some members (all by default) to a call of a module-level function with them first."""
        return self.calls(dict.fromkeys(on or self.names, (function, arguments)))

    def calls(self, requests: Mapping[str, Call]) -> dict[str, Any]:
        """The members' answers, each to its own call."""
        return self.ask(requests)


class LocalMembers(Crew):
    """The same without links: processes that reach each other over loopback."""

    def __init__(self, names: Sequence[str], *, timeout_seconds: float = 300.0) -> None:
        super().__init__(timeout_seconds=timeout_seconds)
        try:
            for name in names:
                self.start(name, _local_main, name)
        except BaseException:
            self.close()
            raise


def _local_main(name: str, connection: Connection) -> NoReturn:
    member = Member(name, WorkerOptions().address, connection)
    member.run(member.answer)
