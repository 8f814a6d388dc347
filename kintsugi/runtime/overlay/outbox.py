"""What waits to be sent over a link, by channel; the most urgent goes first."""

import threading
from collections import deque
from collections.abc import Callable

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.overlay.messages import Channel, Message

MOST_WAITING_BYTES = 2 * 2**20
"""Of shards, and of rounds, in one link's outbox; who sends more waits."""
_BOUNDED = (Channel.SHARDS, Channel.ROUNDS)


class Outbox:
    """Messages in the order of their channels, and within a channel in the order in which they were put."""

    def __init__(self, window_bytes: int) -> None:
        """No more than `window_bytes` of reductions are on their way to a receiver that has not taken them."""
        self._window_bytes = window_bytes
        self._untaken_bytes = 0
        self._waiting: dict[Channel, deque[Message]] = {channel: deque() for channel in Channel}
        self._changed = threading.Condition()
        self._is_closed = False
        self._bounded_bytes = dict.fromkeys(_BOUNDED, 0)
        self._is_sending = False

    def put(self, message: Message, timeout_seconds: float) -> None:
        """Let a message wait; shards wait for room first, and rounds as long as it takes: all others go before them.

        Raises:
            CommunicationError: the link is closed, or there was no room in time.
        """
        with self._changed:
            if message.channel in _BOUNDED:
                self._await_room(message.channel, None if message.channel is Channel.ROUNDS else timeout_seconds)
                self._bounded_bytes[message.channel] += message.num_bytes
            if self._is_closed:
                raise CommunicationError("the link is closed", field="link")
            self._waiting[message.channel].append(message)
            self._changed.notify_all()

    def take(self, timeout_seconds: float) -> Message | None:
        """The most urgent message; None when none came in time. The one taken before counts as sent.

        Raises:
            CommunicationError: the link is closed.
        """
        with self._changed:
            self._is_sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or self._first() is not None, timeout_seconds)
            if self._is_closed:
                raise CommunicationError("the link is closed", field="link")
            channel = self._first()
            if channel is None:
                return None
            message, self._is_sending = self._waiting[channel].popleft(), True
            self._count(message)
            return message

    def taken(self, num_bytes: int) -> None:
        """The receiver has taken so many bytes of reductions."""
        with self._changed:
            self._untaken_bytes = max(self._untaken_bytes - num_bytes, 0)
            self._changed.notify_all()

    def drop(self, is_stale: Callable[[Message], bool]) -> None:
        """Forget messages of reductions that nobody waits for any more."""
        with self._changed:
            kept = [message for message in self._waiting[Channel.REDUCTION] if not is_stale(message)]
            self._waiting[Channel.REDUCTION] = deque(kept)

    def waiting_bytes(self, channel: Channel) -> int:
        """Of the messages of one channel."""
        with self._changed:
            return sum(message.num_bytes for message in self._waiting[channel])

    def await_empty(self, timeout_seconds: float) -> bool:
        """Whether everything was sent within the time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_closed or not (self._is_sending or any(self._waiting.values())), timeout_seconds
            )

    def close(self) -> None:
        """Nothing is taken or put any more."""
        with self._changed:
            self._is_closed = True
            for queue in self._waiting.values():
                queue.clear()
            self._changed.notify_all()

    def _first(self) -> Channel | None:
        """The most urgent channel that has something which may be sent."""
        is_full = self._untaken_bytes >= self._window_bytes
        ready = (one for one, queue in self._waiting.items() if queue and not (is_full and one is Channel.REDUCTION))
        return next(ready, None)

    def _count(self, message: Message) -> None:
        if message.channel in _BOUNDED:
            self._bounded_bytes[message.channel] -= message.num_bytes
            self._changed.notify_all()
        elif message.channel is Channel.REDUCTION:
            self._untaken_bytes += message.num_bytes

    def _await_room(self, channel: Channel, timeout_seconds: float | None) -> None:
        def has_room() -> bool:
            return self._is_closed or self._bounded_bytes[channel] < MOST_WAITING_BYTES

        if not self._changed.wait_for(has_room, timeout_seconds):
            raise CommunicationError(f"took nothing for {timeout_seconds:g} s", field="link")
