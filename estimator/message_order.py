"""The order of messages between two workers, for transports that match them by nothing else.

A channel is one direction of a pair of workers. What passes over it arrives in the order in which it was sent, and the
sender's list says what that order is; the receiver may want its messages in another one. Nothing waits for ever even where a
message holds up all later ones of its channel until its receiver takes it, provided that who wants a message begins to
receive all that precede it on its channel: those were sent before, and the wanted one then arrives when its sender has come
to it and its receiver wants it, as it does where messages are matched by name. Programs are free of deadlock under that rule,
so they are under this one.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from estimator.program import RECEIVES, SENDS, Action, Message
from kintsugi.core.errors import InvalidInputError

Order = Mapping[str, tuple[Message, ...]]
"""By peer: the messages of one channel in the order in which they are sent."""


def departures(actions: Sequence[Action]) -> Order:
    """What a worker sends to each peer, in order. O(A) for A actions."""
    result: dict[str, list[Message]] = defaultdict(list)
    for action in actions:
        if action.kind in SENDS:
            result[action.peer].append(action.message)
    return {peer: tuple(messages) for peer, messages in result.items()}


def arrivals(actions: Sequence[Action], turns: Sequence[int]) -> Order:
    """What a worker receives from each peer, in the order in which that one sends it. O(A log A) for A actions.

    Args:
        actions: the worker's own list.
        turns: of its receives, as the program tells them.

    Raises:
        InvalidInputError: the turns of some peer's messages are not 0, 1, 2 and so on.
    """
    result: dict[str, list[tuple[int, Message]]] = defaultdict(list)
    receives = [action for action in actions if action.kind in RECEIVES]
    if len(receives) != len(turns):
        raise InvalidInputError(f"are not one for each of {len(receives)} receives", field="turns", value=len(turns))
    for action, turn in zip(receives, turns, strict=True):
        result[action.peer].append((turn, action.message))
    for peer, messages in result.items():
        messages.sort()
        if [turn for turn, _ in messages] != list(range(len(messages))):
            raise InvalidInputError(f"of the messages from {peer} are not 0 to {len(messages) - 1}", field="turns")
    return {peer: tuple(message for _, message in messages) for peer, messages in result.items()}
