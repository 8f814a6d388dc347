"""How long a worker's messages need their buffers, as far as the lists of their two ends say.

A peer that sends something has taken before what precedes it in its list. So it cannot send before this worker has come to the
last of the messages that it takes first: to begin the receive right before that send is early enough for everybody, and takes
no buffer earlier. And once it arrived, all that the peer took first is known to be over, and its buffers are free without a wait.
Under 1F1B as many messages have buffers as micro-batches are in flight, however many a step has.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from estimator.message_order import conversations
from estimator.program import RECEIVES, SENDS, Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """When a worker's receives are begun, and its sends are known to be over."""

    at_once: tuple[Action, ...]
    """Receives that are begun with the step."""
    begun_with: Mapping[Action, tuple[Action, ...]]
    """Receives that are begun right before a send."""
    over_with: Mapping[Action, tuple[Action, ...]]
    """Sends that are over once a receive is; of the others that is known at the end of the step."""


def windows(actions: Sequence[Action], places: Sequence[int]) -> Windows:
    """Of a worker's list. O(A log A) for A actions.

    Args:
        actions: the worker's own.
        places: of its messages, as the program tells them.

    Raises:
        InvalidInputError: the places do not fit the list.
    """
    index_of = {action: index for index, action in enumerate(actions)}
    begun_with: dict[Action | None, list[Action]] = defaultdict(list)
    over_with: dict[Action, list[Action]] = defaultdict(list)
    for conversation in conversations(actions, places).values():
        latest: Action | None = None
        for own in conversation:
            if own.kind not in SENDS:
                begun_with[latest].append(own)
            elif latest is None or index_of[own] > index_of[latest]:
                latest = own
        first: Action | None = None
        for own in reversed(conversation):
            if own.kind not in SENDS:
                first = own if first is None or index_of[own] < index_of[first] else first
            elif first is not None:
                over_with[first].append(own)
    at_once = tuple(begun_with.pop(None, ()))
    return Windows(
        at_once=at_once,
        begun_with={send: tuple(receives) for send, receives in begun_with.items() if send is not None},
        over_with={receive: tuple(sends) for receive, sends in over_with.items()},
    )


def most_held(actions: Sequence[Action], own: Windows) -> int:
    """How many messages of a worker's list have buffers at once, at most. O(A) for A actions."""
    held = most = len(own.at_once)
    for action in actions:
        if action.kind in SENDS:
            held += 1 + len(own.begun_with.get(action, ()))
            most = max(most, held)
        elif action.kind in RECEIVES:
            held -= 1 + len(own.over_with.get(action, ()))
    return most
