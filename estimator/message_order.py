"""The order of messages between two workers, for transports that match them by nothing else.

A channel is one direction of a pair of workers. What passes over it arrives in the order in which it was sent, and the
sender's list says what that order is; the receiver may want its messages in another one. Nothing waits for ever even where a
message holds up all later ones of its channel until its receiver takes it, provided that who wants a message begins to
receive all that precede it on its channel: those were sent before, and the wanted one then arrives when its sender has come
to it and its receiver wants it, as it does where messages are matched by name. Programs are free of deadlock under that rule,
so they are under this one.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from estimator.program import RECEIVES, SENDS, Action, Message, messages
from kintsugi.core.errors import InvalidInputError

Order = Mapping[str, tuple[Message, ...]]
"""By peer: the messages of one channel in the order in which they are sent."""


def departures(actions: Sequence[Action]) -> Order:
    """What a worker sends to each peer, in order. O(A) for A actions."""
    result: dict[str, list[Message]] = defaultdict(list)
    for action in actions:
        if action.kind in SENDS:
            result[action.peer].append(action.message)
    return {peer: tuple(order) for peer, order in result.items()}


def arrivals(actions: Sequence[Action], places: Sequence[int]) -> Order:
    """What a worker receives from each peer, in the order in which that one sends it; as `conversations` tells it."""
    found = conversations(actions, places)
    received = {peer: tuple(one.message for one in both_ways if one.kind in RECEIVES) for peer, both_ways in found.items()}
    return {peer: order for peer, order in received.items() if order}


def conversations(actions: Sequence[Action], places: Sequence[int]) -> Mapping[str, tuple[Action, ...]]:
    """A worker's sends and receives by peer, in the order in which that one comes to their other ends. O(A log A) for A actions.

    Args:
        actions: the worker's own list.
        places: of its messages, as the program tells them.

    Raises:
        InvalidInputError: the places of some peer's messages are not 0, 1, 2 and so on.
    """
    own = messages(actions)
    if len(own) != len(places):
        raise InvalidInputError(f"are not one for each of {len(own)} messages", field="places", value=len(places))
    found: dict[str, dict[int, Action]] = defaultdict(dict)
    for action, place in zip(own, places, strict=True):
        found[action.peer][place] = action
    for peer, count in Counter(action.peer for action in own).items():
        if found[peer].keys() != set(range(count)):
            raise InvalidInputError(f"of the messages with {peer} are not 0 to {count - 1}", field="places")
    return {peer: tuple(by_place[place] for place in sorted(by_place)) for peer, by_place in found.items()}
