"""Telling a joining worker the reductions since its copy: at its pace, in order, whole, over one link with the least urgency."""

import threading
from collections.abc import Mapping
from typing import Any

from kintsugi.core.errors import KintsugiError
from kintsugi.runtime.overlay.committed import Committed, Sum
from kintsugi.runtime.overlay.history import History, Key
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.messages import Channel, Message
from kintsugi.runtime.overlay.reduction import as_bytes, slices

FOLLOW, ELSEWHERE, ROUND, FORGOTTEN = "follow", "elsewhere", "round", "forgotten"
_WAIT_SECONDS = 1.0


class Telling:
    """Tells one joining worker what it asks for, in a thread of its own, until it is told everything or hangs up."""

    def __init__(self, key: Key, history: History, links: Links, *, after: Sum, chunk_bytes: int) -> None:
        """Begin behind reduction `after`; nothing is told before it is asked for."""
        self._joiner, self._generation = key
        self._key, self._history, self._links, self._chunk_bytes = key, history, links, chunk_bytes
        self._after, self._up_to = after, after.number
        self._changed = threading.Condition()
        self._is_closed = False
        threading.Thread(target=self._run, name=f"overlay-tells-{self._joiner}", daemon=True).start()

    def allow(self, up_to: int) -> None:
        """Tell as far as reduction `up_to`: the joining worker has room for so many."""
        with self._changed:
            self._up_to = max(self._up_to, up_to)
            self._changed.notify_all()

    def close(self) -> None:
        """Tell nothing more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                if self._is_asked():
                    self._tell_next()
        except KintsugiError as error:
            self._history.leave(self._key)
            self._links.tell(self._joiner, FORGOTTEN, {"replication": self._generation, "why": str(error)})

    def _is_asked(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed or self._after.number < self._up_to, _WAIT_SECONDS)

    def _tell_next(self) -> None:
        committed = self._history.next(self._key, self._after, _WAIT_SECONDS)
        if committed is None or self._is_closed:
            return
        for message in messages(committed, self._generation, self._chunk_bytes):
            self._links.send(self._joiner, message)
        self._after = committed.which


def messages(committed: Committed, generation: int, chunk_bytes: int) -> list[Message]:
    """A reduction as it travels to whoever follows it."""
    told: dict[str, Any] = {"replication": generation, "number": committed.number}
    header: Mapping[str, Any] = {
        "weights": dict(committed.weights),
        "agreed": committed.agreed,
        "attempt": committed.which.attempt,
    }
    vector = committed.vector
    if vector is None:
        return [Message(Channel.ROUNDS, ROUND, {**told, "chunk": 0, "num_chunks": 1, "header": header, "is_empty": True})]
    parts = slices(len(vector), chunk_bytes // vector.itemsize)
    return [
        Message(
            Channel.ROUNDS,
            ROUND,
            {**told, "chunk": index, "num_chunks": len(parts)} | ({"header": header} if index == 0 else {}),
            as_bytes(vector[where]),
        )
        for index, where in enumerate(parts)
    ]
