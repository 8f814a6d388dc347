"""A copy of the state after one reduction, made beside the training: sources read from it while the model goes on."""

import threading
from collections.abc import Sequence

import torch

from kintsugi.core.errors import CommunicationError, UnavailableError
from kintsugi.runtime.overlay import flat_state
from kintsugi.runtime.overlay.committed import Sum
from kintsugi.runtime.overlay.ranges import ByteRange, Ranges, united, within, without
from restorer.packing import PackedState


class Snapshot:
    """The state after reduction `at`. Buffers are copied at once, for the next forward pass changes them; trained parameters
    and moments by a thread of its own, which the next optimizer step waits for. Frozen parameters are read where they are.
    """

    def __init__(self, packed: PackedState, at: Sum, first: Ranges, *, is_whole: bool) -> None:
        """Begin to copy.

        Args:
            packed: over the live tensors.
            at: the last reduction that it has seen.
            first: what is needed soonest.
            is_whole: whether the rest is copied, too.
        """
        self.at, self.header, self.num_bytes = at, packed.header, packed.num_bytes
        self._packed = packed
        self._still, self._version = flat_state.still_ranges(packed), flat_state.still_version(packed)
        self._memory = torch.empty(packed.num_bytes, dtype=torch.uint8)
        self._order = self._pieces(first, is_whole=is_whole)
        buffers = ((0, flat_state.buffer_bytes(packed)),)
        for begin, end in within(buffers, self._order):  # of whole pieces: what `holds` tells is by these
            packed.read(begin, self._memory[begin:end])
        self._early = united(buffers, self._still)
        self._copied: set[ByteRange] = set()
        self._held = set(self._order)
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._copy, name="overlay-copies")  # waited for when the script ends
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
            CommunicationError: they cannot be copied, or somebody changed a frozen parameter.
        """
        needed = {piece for piece in self._order if piece[0] < end and begin < piece[1]}
        with self._changed:
            if not self._changed.wait_for(lambda: self._error is not None or needed <= self._copied, timeout_seconds):
                raise UnavailableError(f"was not copied within {timeout_seconds:g} s", field="state")
        if self._error is not None:
            raise CommunicationError(f"the state could not be copied: {self._error}", field="state")
        still = within(((begin, end),), self._still)
        return self._with_still(begin, end, still) if still else self._memory.numpy().data[begin:end]

    def finish(self) -> None:
        """Wait until nothing of the live state is read any more that a step changes."""
        self._thread.join()

    def _with_still(self, begin: int, end: int, still: Ranges) -> memoryview:
        """Bytes of which some are read where they are."""
        found = torch.empty(end - begin, dtype=torch.uint8)
        for low, high in still:
            self._packed.read(low, found[low - begin : high - begin])
        for low, high in without(((begin, end),), still):
            found[low - begin : high - begin] = self._memory[low:high]
        if flat_state.still_version(self._packed) != self._version:
            raise CommunicationError("a parameter that is not trained was changed while it was sent", field="state")
        return found.numpy().data

    def _copy(self) -> None:
        try:
            for piece in self._order:
                for begin, end in without((piece,), self._early):
                    self._packed.read(begin, self._memory[begin:end])
                with self._changed:
                    self._copied.add(piece)
                    self._changed.notify_all()
        except BaseException as error:  # told to whoever waits
            with self._changed:
                self._error = error
                self._changed.notify_all()
