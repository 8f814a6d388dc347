"""Waits for what other processes do."""

import time
from collections.abc import Callable

from tests.runtime.overlay.trainees import WAIT_SECONDS


def until(is_so: Callable[[], object], process) -> None:
    """Wait until something is so, as long as the process lives."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert process.is_alive(), "the process has ended"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
