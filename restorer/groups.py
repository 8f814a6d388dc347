"""Process groups of one generation: built together, given up at once.

A survivor never waits inside gloo itself: a thread that can be left behind does (see `waiter`), so giving up always works.
Construction runs in a thread that can be abandoned too, because the constructor hangs when a member dies after it published
its address.

The threads that were left behind end once the group's sockets are shut down; neither `abort` nor `shutdown` of the group does
that (measured). But gloo frees nobody who waits for the rest of a message when its connection closes, and the rest of what
survivors were sending to each other still comes, whoever waits for it, as long as both keep the message. So messages are
kept, and sockets shut down, until nothing moves on them any more, beside what follows; only what a worker sent in part
before it died is waited for to the timeout.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote, unquote

import torch

from kintsugi.core.errors import CommunicationError
from restorer.gloo import GlooGroup, Store, connect
from restorer.sockets import Sockets, open_sockets, shut_down, shut_down_once_quiet
from restorer.transport import GlooTransport, UnderWay, to_host
from restorer.waiter import Waiter, Waiting

TEARDOWN_DELAY_SECONDS = 0.5
"""From letting go of groups to tearing them down."""


class Rendezvous(Store):
    """Where the members of a generation find each other's addresses: a store over the project's own control plane.

    `publish` hands a key to the control plane; what others published arrives through `deliver`. `close` frees waiters.
    """

    def __init__(self, publish: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def deliver(self, key: str, value: bytes) -> None:
        """Take in what some member published."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def close(self) -> None:
        """Fail everyone who waits for a key."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def set(self, key: str, value: bytes | str) -> None:
        """Publish a key."""
        self._publish(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a key."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._is_closed)
            if key not in self._values:
                raise RuntimeError("the rendezvous was called off")
            return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002  # `close` bounds the wait
        """Wait for all of `keys`."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of `keys` are there."""
        return all(key in self._values for key in keys)


@dataclass(slots=True)
class _AllReduce:
    """A sum over a group, started when it is waited for; keeps its buffer for as long."""

    group: GlooGroup
    buffer: torch.Tensor

    def wait(self) -> None:
        self.group.allreduce([self.buffer]).wait()


@dataclass(slots=True)
class Reducing:
    """A sum under way."""

    waiting: Waiting
    tensor: torch.Tensor
    buffer: torch.Tensor
    """In host memory; the tensor's own where that is."""

    def wait(self) -> None:
        """Block until the sum is in the tensor.

        Raises:
            CommunicationError: a member is gone or the groups were given up.
        """
        self.waiting.wait()
        if self.buffer.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(self.buffer)

    @property
    def span(self) -> tuple[float, float]:
        """When it was carried out, once it is over: from its turn to its end, on the monotonic clock in seconds."""
        return self.waiting.began_at, self.waiting.ended_at


class Groups:
    """The process groups that one worker takes part in during one attempt at a generation."""

    def __init__(
        self, worker: str, members: Sequence[str], subgroups: Iterable[tuple[str, ...]], rendezvous: Rendezvous, name: str
    ) -> None:
        self._worker = worker
        self._members = tuple(members)
        self._lasting = [group for group in dict.fromkeys(subgroups) if worker in group]
        self._wanted = list(dict.fromkeys([self._members, *self._lasting]))
        self._rendezvous = rendezvous
        self._name = name
        self._foreign_sockets = open_sockets()
        self._own_sockets: Sockets | None = None
        """Known once all groups are connected; what is opened later is not theirs."""
        self._operation_timeout_seconds = 0.0
        """Known once they are being built."""
        self._groups: dict[tuple[str, ...], GlooGroup] = {}
        self._error: Exception | None = None
        self._built = threading.Event()
        self._is_aborted = False
        self._under_way: UnderWay = set()
        self._waiters: list[Waiter] = []
        self._waiter, self._reducer = self._new_waiter(), self._new_waiter()

    def build(self, *, address: str, timeout_seconds: float, operation_timeout_seconds: float) -> None:
        """Connect all groups, the one that spans the generation first.

        Args:
            address: of this host, where peers reach it.
            timeout_seconds: for connecting all groups; a thread that gloo leaves behind here lasts five times as long.
            operation_timeout_seconds: for every later operation; after it the group is dead.

        Raises:
            CommunicationError: a member is gone, `abort` was called, or the time is over.
        """
        self._operation_timeout_seconds = operation_timeout_seconds
        arguments = (address, timeout_seconds)
        threading.Thread(target=self._construct, args=arguments, name=f"groups-{self._name}", daemon=True).start()
        if not self._built.wait(timeout_seconds):
            self.abort()
            raise CommunicationError(f"the groups of {self._name} were not connected within {timeout_seconds:g} s")
        if self._error is not None or self._is_aborted:
            raise CommunicationError(f"the groups of {self._name} could not be connected: {self._error}")

    def _construct(self, address: str, timeout_seconds: float) -> None:
        try:
            for index, members in enumerate(self._wanted):
                self._groups[members] = connect(
                    self._rendezvous,
                    group_prefix(self._name, members),
                    rank=members.index(self._worker),
                    size=len(members),
                    address=address,
                    timeout_seconds=timeout_seconds,
                    reduction_timeout_seconds=self._operation_timeout_seconds,
                )
                if self._is_aborted:
                    break
                if index == 0:
                    self._groups[members].allreduce([torch.zeros(1)]).wait()
            self._own_sockets = open_sockets() - self._foreign_sockets
        except Exception as error:  # whatever it is, the waiting thread must learn of it
            self._error = error
        finally:
            self._built.set()

    def transport(self, device: torch.device, members: tuple[str, ...] | None = None) -> GlooTransport:
        """Messages between `members` (all by default), for one thread: it never waits for what others wait for."""
        members = members or self._members
        rank_of = {member: rank for rank, member in enumerate(members)}
        seconds = self._operation_timeout_seconds
        return GlooTransport(self._groups[members], rank_of, device, self._new_waiter(), seconds, under_way=self._under_way)

    def keep_subgroups(self) -> None:
        """Let go of the group that spans the generation, unless it is one of the subgroups: all transfers are done."""
        if self._members not in self._lasting:
            _let_go([self._groups.pop(self._members)], self._name)

    def _new_waiter(self) -> Waiter:
        """A waiter that is given up with these groups, even if they were given up already."""
        waiter = Waiter(f"waiter-{self._name}")
        self._waiters.append(waiter)
        if self._is_aborted:
            waiter.abort()
        return waiter

    def all_reduce(self, tensor: torch.Tensor, members: tuple[str, ...] | None = None) -> None:
        """Sum `tensor` in place over `members` (all by default); bitwise equal on all of them.

        Raises:
            CommunicationError: a member is gone or `abort` was called.
        """
        self._reduction(tensor, members, self._waiter).wait()

    def begin_all_reduce(self, tensor: torch.Tensor, members: tuple[str, ...]) -> "Reducing":
        """Sum `tensor` in place over `members`, beside what this thread does next.

        Sums that were begun so are carried out one at a time, in the order in which they were begun: every member must
        begin those that it shares with others in one global order. The tensor must not be touched until the sum is there.

        Raises:
            CommunicationError: `abort` was called.
        """
        return self._reduction(tensor, members, self._reducer)

    def _reduction(self, tensor: torch.Tensor, members: tuple[str, ...] | None, waiter: Waiter) -> "Reducing":
        buffer = to_host(tensor)
        return Reducing(waiter.begin(_AllReduce(self._groups[members or self._members], buffer)), tensor, buffer)

    def abort(self) -> None:
        """Free everyone in this process who waits inside these groups; safe from any thread, at any time."""
        if self._is_aborted:
            return
        self._is_aborted = True
        for waiter in self._waiters:
            waiter.abort()
        self._rendezvous.close()
        self._built.set()
        if self._own_sockets is None:
            shut_down(open_sockets() - self._foreign_sockets)
        else:
            drained = (self._own_sockets, self._under_way)
            threading.Thread(target=_drain, args=drained, name=f"drain-{self._name}", daemon=True).start()

    def close(self) -> None:
        """Tear the groups down in the background: destructors take 13-100 ms each."""
        groups, self._groups = list(self._groups.values()), {}
        for waiter in self._waiters:
            waiter.close()
        self._rendezvous.close()
        _let_go(groups, self._name)


def _drain(sockets: Sockets, under_way: UnderWay) -> None:
    """Let messages between survivors come to their end before their connections do."""
    shut_down_once_quiet(sockets)
    under_way.clear()


def _let_go(groups: list[GlooGroup], name: str) -> None:
    threading.Thread(target=_tear_down, args=(groups,), name=f"teardown-{name}", daemon=True).start()


def _tear_down(groups: list[GlooGroup]) -> None:
    """Once training has resumed: a destructor keeps the interpreter from all other threads for as long as it takes."""
    time.sleep(TEARDOWN_DELAY_SECONDS)
    groups.clear()


def group_prefix(name: str, members: Sequence[str]) -> str:
    """Prefix of a group's keys, from which the control plane reads whom to tell."""
    return f"{name}/{','.join(quote(member, safe='') for member in members)}"


def members_of(key: str) -> list[str]:
    """The members of the group that a published key belongs to."""
    return [unquote(member) for member in key.split("/")[1].split(",")]
