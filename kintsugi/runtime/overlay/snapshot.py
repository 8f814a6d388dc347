"""A copy of the state after one reduction, made beside the training: sources read from it while the model goes on."""

import threading
from collections.abc import Sequence

import torch

from kintsugi.core.errors import CommunicationError, UnavailableError
from kintsugi.runtime.overlay import flat_state
from kintsugi.runtime.overlay.ranges import ByteRange, Ranges, within
from restorer.packing import PackedState


class Snapshot:
    """The state after `number` reductions. Buffers are copied at once, for the next forward pass changes them; parameters and
    moments by a thread of its own, which the next optimizer step waits for.
    """

    def __init__(self, packed: PackedState, number: int, first: Ranges, *, is_whole: bool) -> None:
        """Begin to copy.

        Args:
            packed: over the live tensors.
            number: of reductions that it has seen.
            first: what is needed soonest.
            is_whole: whether the rest is copied, too.
        """
        self.number, self.header, self.num_bytes = number, packed.header, packed.num_bytes
        self._packed: PackedState | None = packed
        self._memory = torch.empty(packed.num_bytes, dtype=torch.uint8)
        early = within(((0, flat_state.buffer_bytes(packed)),), first if not is_whole else ((0, packed.num_bytes),))
        for begin, end in early:
            packed.read(begin, self._memory[begin:end])
        self._buffer_bytes = flat_state.buffer_bytes(packed)
        self._order = self._pieces(first, is_whole=is_whole)
        self._copied: set[ByteRange] = set()
        self._held = set(self._order)
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._copy, name="overlay-copies", daemon=True)
        self._thread.start()

    def _pieces(self, first: Ranges, *, is_whole: bool) -> list[ByteRange]:
        """Pieces in the order in which they are copied."""
        all_pieces = list(flat_state.pieces(self.num_bytes))
        urgent = [piece for piece in all_pieces if within((piece,), first)]
        return urgent + [piece for piece in all_pieces if is_whole and piece not in set(urgent)]

    def holds(self, ranges: Sequence[ByteRange]) -> bool:
        """Whether these bytes are copied, or will be."""
        return all(piece in self._held for piece in flat_state.pieces(self.num_bytes) if within((piece,), ranges))

    def read(self, begin: int, end: int, timeout_seconds: float) -> memoryview:
        """Some bytes, once they are copied; they stay as they are.

        Raises:
            UnavailableError: they were not copied in time.
            CommunicationError: they cannot be copied.
        """
        needed = {piece for piece in self._order if piece[0] < end and begin < piece[1]}
        with self._changed:
            if not self._changed.wait_for(lambda: self._error is not None or needed <= self._copied, timeout_seconds):
                raise UnavailableError(f"was not copied within {timeout_seconds:g} s", field="state")
        if self._error is not None:
            raise CommunicationError(f"the state could not be copied: {self._error}", field="state")
        return self._memory.numpy().data[begin:end]

    def finish(self) -> None:
        """Wait until nothing of the live state is read any more."""
        self._thread.join()

    def _copy(self) -> None:
        packed, self._packed = self._packed, None
        assert packed is not None
        try:
            for begin, end in self._order:
                start = max(begin, self._buffer_bytes)
                if start < end:
                    packed.read(start, self._memory[start:end])
                with self._changed:
                    self._copied.add((begin, end))
                    self._changed.notify_all()
        except BaseException as error:  # told to whoever waits
            with self._changed:
                self._error = error
                self._changed.notify_all()
