"""Processes that connect as workers do, in network namespaces or on loopback, and call functions of a benchmark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member runs; by default on loopback, beside this process."""

    address: str = WorkerOptions().address
    """At which the others reach it."""
    namespace: str | Path | None = None
    """The network namespace that it enters: a name, or a path to one; None: it stays in this process's."""


def _member_main(kind: type[Member], name: str, place: Place, connection: Connection) -> NoReturn:
    if place.namespace is not None:
        enter(place.namespace)
    member = kind(name, place.address, connection)
    member.run(member.answer)


class MemberCrew(Crew):
    """Members of one kind, each in its place; where one cannot start, all of them are ended."""

    def __init__(self, kind: type[Member], places: Mapping[str, Place], *, timeout_seconds: float) -> None:
        super().__init__(timeout_seconds=timeout_seconds)
        try:
            for name, place in places.items():
                self.start(name, _member_main, kind, name, place)
            self.make_ready()
        except BaseException:
            self.close()
            raise

    def make_ready(self) -> None:
        """What is asked of all of them first; nothing here."""

    def call(self, function: Callable[..., Any], *arguments: Any, on: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of some members (all by default) to a call of a module-level function with them first."""
        return self.ask(dict.fromkeys(on or self.names, (function, arguments)))


class Links(Protocol):
    """What members are connected by: links of their own, or a shared one."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Of every member."""

    def namespace(self, member: str) -> str:
        """The network namespace of a member."""


class Members(MemberCrew):
    """A process for every member of emulated links."""

    def __init__(self, links: Links, *, timeout_seconds: float = 120.0) -> None:
        places = {name: Place(address, links.namespace(name)) for name, address in links.addresses.items()}
        super().__init__(Member, places, timeout_seconds=timeout_seconds)

    def connect(self, members: Sequence[str] = (), subgroups: Sequence[tuple[str, ...]] = ()) -> None:
        """Build new groups among some members (all by default)."""
        self.build(tuple(members or self.names), tuple(subgroups))

    def calls(self, requests: Mapping[str, Call]) -> dict[str, Any]:
        """The members' answers, each to its own call."""
        return self.ask(requests)


class LocalMembers(MemberCrew):
    """The same without links: processes that reach each other over loopback."""

    def __init__(self, names: Sequence[str], *, timeout_seconds: float = 300.0) -> None:
        super().__init__(Member, dict.fromkeys(names, Place()), timeout_seconds=timeout_seconds)
