"""Groups for the tensors of a step: one for each direction of a pair that talks, and one for each set of holders of layers.

Two directions of a pair never wait for each other, as they would where one group carried both; within one, messages arrive in
the order in which both ends begin them. All workers connect their groups in one global order, first those of sums and then the
channels', so of all groups that are not connected yet the first finds all its members ready for it.
"""

import threading
from collections.abc import Iterable, Sequence
from enum import StrEnum

import torch
from torch import Tensor

from kintsugi.core.errors import CommunicationError
from restorer.channel_transport import RECEIVER, SENDER, Channel, ChannelTransport
from restorer.gloo import GlooGroup, Store
from restorer.library import Library
from restorer.reducing import Reducing
from restorer.rendezvous import group_prefix
from restorer.teardown import let_go
from restorer.transport import TensorSpec, UnderWay, communication
from restorer.waiter import Operation, Waiter


class _Purpose(StrEnum):
    SUM = "sum"
    CHANNEL = "channel"


_Key = tuple[_Purpose, tuple[str, ...]]


def in_turns(channels: Iterable[Channel], members: Sequence[str]) -> list[Channel]:
    """In an order that is the same for all: along a pipeline those of every other pair come first, each direction by itself.

    So they are connected side by side, in four turns however long it is; by name each would wait for the one before it.
    """
    rank_of = {member: rank for rank, member in enumerate(members)}

    def turn(channel: Channel) -> tuple[int, bool, int, int]:
        sender, receiver = (rank_of[end] for end in channel)
        return min(sender, receiver) % 2, sender > receiver, sender, receiver

    return sorted(set(channels), key=turn)


class ChannelGroups:
    """One worker's, during one attempt at a generation."""

    def __init__(
        self,
        worker: str,
        members: Sequence[str],
        channels: Iterable[Channel],
        sums: Iterable[tuple[str, ...]],
        *,
        library: Library,
        name: str,
    ) -> None:
        """Groups that are to be connected; those that the worker is not in are passed over.

        Args:
            worker: this one.
            members: all that have such groups, neighbours of a pipeline next to each other.
            channels: over which messages pass.
            sums: members of sums, in an order that is the same for all.
            library: that carries the tensors.
            name: of the attempt.
        """
        self._worker = worker
        self._members = tuple(members)
        ordered = in_turns(channels, members)
        wanted = [*((_Purpose.SUM, group) for group in sums), *((_Purpose.CHANNEL, channel) for channel in ordered)]
        self._wanted: list[_Key] = [key for key in dict.fromkeys(wanted) if worker in key[1]]
        self._library = library
        self._name = name
        self._groups: dict[_Key, GlooGroup] = {}
        self._lock = threading.Lock()
        self._is_given_up = False

    @property
    def ends_with_sockets(self) -> bool:
        """Whether shutting their sockets down is needed to give them up."""
        return self._library.ends_with_sockets

    def connect(self, store: Store) -> None:
        """Connect all groups; blocks, in a thread that may be left behind.

        Raises:
            CommunicationError: they were given up.
            InvalidInputError: these members cannot be in one group.
            RuntimeError: a member is gone.
        """
        self._library.meet(store, f"{group_prefix(self._name, self._members)}/meet", self._worker, self._members)
        for purpose, members in self._wanted:
            prefix = f"{group_prefix(self._name, members)}/{purpose}"
            rank = members.index(self._worker)
            group = self._library.connect(store, prefix, rank=rank, size=len(members), has_sums=purpose is _Purpose.SUM)
            self._keep((purpose, members), group)
            self._first_use(purpose, group, rank).wait()

    def _keep(self, key: _Key, group: GlooGroup) -> None:
        with self._lock:
            if not self._is_given_up:
                self._groups[key] = group
                return
        self._library.give_up([group])
        raise CommunicationError(f"the channels of {self._name} were given up")

    def _first_use(self, purpose: _Purpose, group: GlooGroup, rank: int) -> Operation:
        """Begin what makes libraries connect members that they connect on their first use, for which the host may wait."""
        greeting = torch.zeros(1, device=self._library.device)
        if purpose is _Purpose.SUM:
            return self._library.sum(group, greeting)[0]
        if rank == SENDER:
            return self._library.send(group, greeting, RECEIVER)
        return self._library.receive(group, TensorSpec((1,), greeting.dtype), SENDER)

    def transport(self, waiter: Waiter, under_way: UnderWay) -> ChannelTransport:
        """Messages over the channels, for one thread, until these groups are closed.

        Args:
            waiter: waits for the messages.
            under_way: holds every message from its start to its end, for whoever gives the groups up.
        """
        channels = {(key[1][0], key[1][1]): group for key, group in self._groups.items() if key[0] is _Purpose.CHANNEL}
        return ChannelTransport(self._worker, channels, self._library, waiter, under_way)

    def begin_sum(self, tensor: Tensor, members: tuple[str, ...], waiter: Waiter) -> Reducing:
        """Sum `tensor` in place over `members`, beside what this thread does next; bitwise equal on all of them.

        Raises:
            CommunicationError: a member is gone, or the groups were given up.
        """
        waiter.require_use()
        with communication():
            operation, buffer = self._library.sum(self._groups[_Purpose.SUM, members], tensor)
        return Reducing(waiter.begin(operation), tensor, buffer)

    def give_up(self) -> None:
        """Free whoever waits inside these groups; safe from any thread, at any time."""
        with self._lock:
            self._is_given_up = True
            groups = list(self._groups.values())
        self._library.give_up(groups)

    def close(self) -> None:
        """Tear the groups down in the background."""
        with self._lock:
            self._is_given_up = True
            groups = list(self._groups.values())
            self._groups.clear()
        let_go(groups, self._name, self._library.give_up)
