"""Host memory for messages that is used again and again: fresh pages for each would cost more than copying it."""

from collections import deque

import torch
from torch import Tensor


class BufferRing:
    """Flat byte buffers, each used again once all others were. One thread's."""

    def __init__(self, num_buffers: int, *, is_pinned: bool) -> None:
        """Memory comes with the first use.

        Args:
            num_buffers: how many are used at once.
            is_pinned: for copies to and from CUDA devices.
        """
        self._is_pinned = is_pinned
        self._buffers = deque([torch.empty(0, dtype=torch.uint8)] * num_buffers)

    def next(self, num_bytes: int) -> Tensor:
        """As many bytes of the buffer that was used longest ago."""
        buffer = self._buffers.popleft()
        if len(buffer) < num_bytes:
            buffer = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._is_pinned)
        self._buffers.append(buffer)
        return buffer[:num_bytes]
