"""What neighbours send of a vector: piece after piece, each once. Whatever else comes is refused before anything is made of it."""

from collections.abc import Mapping

from kintsugi.runtime.overlay.exchange import UnfitMessageError
from kintsugi.runtime.overlay.messages import Message

Stream = tuple[str | int, ...]
"""A neighbour and the kind of its messages; in a ring with the segment."""


class Pieces:
    """Which piece comes next in each stream of a pass."""

    def __init__(self, counts: Mapping[Stream, int]) -> None:
        """Await so many pieces in each stream."""
        self._counts = counts
        self._next = dict.fromkeys(counts, 0)

    def take(self, worker: str, message: Message) -> tuple[int, ...]:
        """The numbers of a piece that came, of which the last one counts within its stream.

        Raises:
            UnfitMessageError: it is not the next one, or none is awaited.
        """
        told = message.fields.get("chunk")
        numbers = tuple(told) if isinstance(told, list | tuple) else (told,)
        if not numbers or any(type(number) is not int for number in numbers):
            raise UnfitMessageError(worker, f"sent a piece of a vector without its number ({message.kind})")
        *segment, index = numbers
        stream = (worker, message.kind, *segment)
        if self._next.get(stream) != index or index >= self._counts[stream]:
            raise UnfitMessageError(worker, f"sent piece {told} of a vector ({message.kind}), which is not the one that comes next")
        self._next[stream] += 1
        return numbers

    def take_empty(self, worker: str, message: Message) -> bool:
        """Whether the piece that was taken stands for its whole stream, which holds nothing.

        Raises:
            UnfitMessageError: some of that came before.
        """
        if not message.fields.get("is_empty"):
            return False
        stream = worker, message.kind
        if self._next[stream] != 1:
            raise UnfitMessageError(worker, "sent a part of a vector, and then that there is none")
        self._next[stream] = self._counts[stream]
        return True
