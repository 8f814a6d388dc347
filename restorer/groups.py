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
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from kintsugi.core.errors import CommunicationError, KintsugiError
from restorer.channels import ChannelGroups
from restorer.gloo import GlooGroup, connect
from restorer.reducing import AllReduce, Reducing
from restorer.rendezvous import Rendezvous, group_prefix
from restorer.sockets import Sockets, ending_at, open_sockets, shut_down, shut_down_once_quiet
from restorer.teardown import let_go
from restorer.transport import GlooTransport, Transport, UnderWay, to_host
from restorer.waiter import OwnWaiter, Waiter

W = TypeVar("W", bound=Waiter)


class Groups:
    """The process groups that one worker takes part in during one attempt at a generation."""

    def __init__(
        self,
        worker: str,
        members: Sequence[str],
        subgroups: Iterable[tuple[str, ...]],
        rendezvous: Rendezvous,
        name: str,
        *,
        channels: ChannelGroups | None = None,
    ) -> None:
        """Groups that are to be built.

        Args:
            worker: this one.
            members: of the generation, in rank order.
            subgroups: of them; all members name those that they share in one order.
            rendezvous: of the attempt.
            name: of the attempt; all keys begin with it.
            channels: carry the tensors of a step where these groups shall not.
        """
        self._worker = worker
        self._members = tuple(members)
        self._lasting = [group for group in dict.fromkeys(subgroups) if worker in group]
        self._wanted = list(dict.fromkeys([self._members, *self._lasting]))
        self._rendezvous = rendezvous
        self._name = name
        self._channels = channels
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
            InvalidInputError: channels cannot be had between these members.
        """
        self._operation_timeout_seconds = operation_timeout_seconds
        arguments = (address, timeout_seconds)
        threading.Thread(target=self._construct, args=arguments, name=f"groups-{self._name}", daemon=True).start()
        if not self._built.wait(timeout_seconds):
            self.abort()
            raise CommunicationError(f"the groups of {self._name} were not connected within {timeout_seconds:g} s")
        if isinstance(self._error, KintsugiError):
            raise self._error
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
            self._connect_channels()
            if self._own_sockets is None:
                self._own_sockets = self._connections()
        except Exception as error:  # whatever it is, the waiting thread must learn of it
            self._error = error
        finally:
            self._built.set()

    def _connect_channels(self) -> None:
        """What they open is among the sockets that are shut down only where that is how they are given up."""
        if self._channels is not None and not self._is_aborted:
            if not self._channels.ends_with_sockets:
                self._own_sockets = self._connections()
            self._channels.connect(self._rendezvous)

    def _connections(self) -> Sockets:
        """What was opened since these groups began, and leads from or to where a member listens: others opened connections, too."""
        return ending_at(open_sockets() - self._foreign_sockets, self._rendezvous.addresses)

    def transport(self, device: torch.device, members: tuple[str, ...] | None = None) -> GlooTransport:
        """Messages between `members` (all by default), for one thread: it never waits for what others wait for."""
        return self._transport(device, members or self._members, self._new_waiter())

    def stream_transport(self, on_abort: Callable[[], None]) -> GlooTransport:
        """The same between all members, in host memory, for a thread that can be left behind: it does its waiting itself.

        Args:
            on_abort: called when the groups are given up; the thread may not be free for long after.
        """
        return self._transport(torch.device("cpu"), self._members, self._kept(OwnWaiter(on_abort)))

    def _transport(self, device: torch.device, members: tuple[str, ...], waiter: Waiter) -> GlooTransport:
        rank_of = {member: rank for rank, member in enumerate(members)}
        seconds = self._operation_timeout_seconds
        return GlooTransport(self._groups[members], rank_of, device, waiter, seconds, under_way=self._under_way)

    def channel_transport(self) -> Transport:
        """Messages over the channels, for one thread; nothing but the order of each channel tells them apart."""
        assert self._channels is not None
        return self._channels.transport(self._new_waiter(), self._under_way)

    def keep_subgroups(self) -> None:
        """Let go of the group that spans the generation, unless it is one of the subgroups: all transfers are done."""
        if self._members not in self._lasting:
            let_go([self._groups.pop(self._members)], self._name)

    def _new_waiter(self) -> Waiter:
        """A waiter that is given up with these groups, even if they were given up already."""
        return self._kept(Waiter(f"waiter-{self._name}"))

    def _kept(self, waiter: W) -> W:
        self._waiters.append(waiter)
        if self._is_aborted:
            waiter.abort()
        return waiter

    def all_reduce(self, tensor: torch.Tensor, members: tuple[str, ...] | None = None) -> None:
        """Sum `tensor` in place over `members` (all by default); bitwise equal on all of them. Who is alone has the sum already.

        Raises:
            CommunicationError: a member is gone or `abort` was called.
        """
        if (members or self._members) == (self._worker,):
            self._waiter.require_use()
            return
        self._reduction(tensor, members, self._waiter).wait()

    def begin_all_reduce(self, tensor: torch.Tensor, members: tuple[str, ...]) -> Reducing:
        """Sum `tensor` in place over `members`, beside what this thread does next.

        Sums that were begun so are carried out one at a time, in the order in which they were begun: every member must
        begin those that it shares with others in one global order. The tensor must not be touched until the sum is there.

        Raises:
            CommunicationError: `abort` was called.
        """
        if self._channels is not None:
            return self._channels.begin_sum(tensor, members, self._reducer)
        return self._reduction(tensor, members, self._reducer)

    def _reduction(self, tensor: torch.Tensor, members: tuple[str, ...] | None, waiter: Waiter) -> Reducing:
        buffer = to_host(tensor)
        return Reducing(waiter.begin(AllReduce(self._groups[members or self._members], buffer)), tensor, buffer)

    def abort(self) -> None:
        """Free everyone in this process who waits inside these groups; safe from any thread, at any time."""
        if self._is_aborted:
            return
        self._is_aborted = True
        for waiter in self._waiters:
            waiter.abort()
        self._rendezvous.close()
        self._built.set()
        if self._channels is not None:
            self._channels.give_up()
        if self._own_sockets is None:
            shut_down(self._connections())
        else:
            drained = (self._own_sockets, self._under_way)
            threading.Thread(target=_drain, args=drained, name=f"drain-{self._name}", daemon=True).start()

    def close(self) -> None:
        """Tear the groups down in the background."""
        groups, self._groups = list(self._groups.values()), {}
        for waiter in self._waiters:
            waiter.close()
        self._rendezvous.close()
        if self._channels is not None:
            self._channels.close()
        let_go(groups, self._name)


def _drain(sockets: Sockets, under_way: UnderWay) -> None:
    """Let messages between survivors come to their end before their connections do."""
    shut_down_once_quiet(sockets)
    under_way.clear()
