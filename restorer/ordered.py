"""Tagged messages over a transport that tells those of one direction of a pair apart by nothing but their order.

Both ends know the order in which each channel's messages are sent (see `estimator.message_order`). A sender keeps to it; a
receiver begins to receive in it, whatever it wants first: who wants a message begins all that precede it, and some that
follow, so that they arrive beside what it computes. So a send may be under way until its receiver wants the message: sends are
waited for once all that this worker wants has arrived.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from restorer.transport import Fetched, Receiving, Sending, TensorSpec, Transport

AHEAD = 2
"""Messages of a channel that are received before they are wanted: one may arrive while the next is begun."""

_TAG = 0
"""Of all messages."""

Tags = Mapping[str, Sequence[int]]
"""By peer: the tags of one channel's messages, in the order in which they are sent; it begins anew with every step."""


class OrderedTransport:
    """Keeps each channel in order over a transport that does the rest."""

    def __init__(self, transport: Transport, departures: Tags, arrivals: Tags, *, ahead: int = AHEAD) -> None:
        """Messages in order.

        Args:
            transport: whose messages with one tag, from one worker to another, arrive in the order in which both begin them.
            departures: what this worker sends.
            arrivals: what it receives.
            ahead: messages of each channel to begin before they are wanted.
        """
        self._transport = transport
        self._departures = {peer: tuple(tags) for peer, tags in departures.items()}
        self._num_sent: Counter[str] = Counter()
        self._inboxes = {peer: _Inbox(transport, peer, tuple(tags), ahead) for peer, tags in arrivals.items()}

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Sending:
        """Start to send the next message of the channel."""
        order = self._departures[peer]
        due = order[self._num_sent[peer] % len(order)]
        assert tag == due, f"message {tag} to {peer} is sent where {due} is due"
        self._num_sent[peer] += 1
        return self._transport.send(tensor, peer, _TAG)

    def receive(self, spec: TensorSpec, peer: str, tag: int) -> Receiving:
        """Ask for a message; it is received when its turn comes, at the latest when it is waited for.

        All that precede it on its channel must have been asked for by then.
        """
        return self._inboxes[peer].ask(spec, tag)

    def settle(self) -> None:
        """Block until what was received is there for the host as well."""
        self._transport.settle()

    def close(self) -> None:
        """No more messages; what is under way comes to its end."""
        self._transport.close()


@dataclass(slots=True)
class _Inbox:
    """The receiving end of one channel. Places count its messages over all steps."""

    transport: Transport
    peer: str
    order: tuple[int, ...]
    ahead: int
    _turn_of: dict[int, int] = field(init=False)
    _times_asked: Counter[int] = field(init=False, default_factory=Counter)
    _asked: dict[int, TensorSpec] = field(init=False, default_factory=dict)
    """By place: not begun yet."""
    _begun: dict[int, Receiving] = field(init=False, default_factory=dict)
    """By place: not taken yet."""
    _num_begun: int = field(init=False, default=0)
    _limit: int = field(init=False)
    """The place up to which messages may be begun."""

    def __post_init__(self) -> None:
        self._turn_of = {tag: turn for turn, tag in enumerate(self.order)}
        self._limit = self.ahead

    def ask(self, spec: TensorSpec, tag: int) -> Receiving:
        """A message of the next step in which it was not asked for yet."""
        place = self._turn_of[tag] + len(self.order) * self._times_asked[tag]
        self._times_asked[tag] += 1
        self._asked[place] = spec
        self._begin()
        return Fetched(partial(self._take, place))

    def _take(self, place: int) -> torch.Tensor:
        """Wait for a message."""
        self._limit = max(self._limit, place + 1 + self.ahead)
        self._begin()
        assert place in self._begun, f"of what {self.peer} sends before it something was not asked for"
        return self._begun.pop(place).wait()

    def _begin(self) -> None:
        while self._num_begun < self._limit and (spec := self._asked.pop(self._num_begun, None)) is not None:
            self._begun[self._num_begun] = self.transport.receive(spec, self.peer, _TAG)
            self._num_begun += 1
