"""The reductions since the step of the copy, as a joining worker hears them: whole ones, in order, from one source at a time."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from kintsugi.runtime.overlay.committed import Committed, Sum
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.overlay.reduction import Vector


class Trail:
    """What was heard and waits to be applied. Put by threads of links, taken by the one that joins."""

    def __init__(self, generation: int, after: Sum, memory: Callable[[], Vector], on_change: Callable[[], None]) -> None:
        """Go on behind reduction `after`, of the replication of `generation`; `memory` gives room for one vector."""
        self.generation = generation
        self._taken = after
        self.teller: str | None = None
        """Who is asked; what others tell is passed over."""
        self._memory, self._on_change = memory, on_change
        self._whole: deque[Committed] = deque()
        self._parts: list[Message] = []
        self._lock = threading.Lock()

    @property
    def heard(self) -> Sum:
        """The last whole reduction."""
        return self._whole[-1].which if self._whole else self._taken

    def begin(self, teller: str | None) -> None:
        """Hear another source; what one told in part, or last, is told again.

        Whoever tells a reduction has it; that all others have it, too, is certain once they took part in the next one.
        """
        with self._lock:
            if self.teller is not None and self._whole:
                self._whole.pop()
            self.teller, self._parts = teller, []

    def take(self, worker: str, message: Message) -> None:
        """Take in a part of a reduction. One of another length than here is passed over: why is told once the state is compared."""
        fields = message.fields
        with self._lock:
            expected = self.heard.number + 1, len(self._parts)
            if worker != self.teller or (fields["replication"], fields["number"], fields["chunk"]) != (self.generation, *expected):
                return
            self._parts.append(message)
            if len(self._parts) < int(fields["num_chunks"]):
                return
            parts, self._parts = self._parts, []
            if not self._fits(parts):
                return
            self._whole.append(self._joined(parts))
        self._on_change()

    def pop(self, takes_last: Callable[[Committed], bool]) -> Committed | None:
        """The next reduction; None where it was not heard yet, or is the last and `takes_last` says no."""
        with self._lock:
            if not self._whole or (len(self._whole) == 1 and not takes_last(self._whole[0])):
                return None
            self._taken = self._whole[0].which
            return self._whole.popleft()

    def _fits(self, parts: list[Message]) -> bool:
        return bool(parts[0].fields.get("is_empty")) or sum(part.num_bytes for part in parts) == self._memory().nbytes

    def _joined(self, parts: list[Message]) -> Committed:
        header: dict[str, Any] = parts[0].fields["header"]
        return Committed(
            which=Sum(int(parts[0].fields["number"]), int(header["attempt"])),
            vector=self._vector(parts),
            weights=header["weights"],
            agreed=header["agreed"],
        )

    def _vector(self, parts: list[Message]) -> Vector | None:
        if parts[0].fields.get("is_empty"):
            return None
        vector, at = self._memory(), 0
        for part in parts:
            piece = np.frombuffer(part.payload, dtype=vector.dtype)
            vector[at : at + len(piece)] = piece
            at += len(piece)
        return vector
