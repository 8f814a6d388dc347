"""Waits for what others do."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 120.0
"""What takes longer on any machine never comes."""


def eventually(look: Callable[[], T], is_right: Callable[[T], bool] = bool) -> T:
    """Look until it is right, or patience is over; the last that was seen."""
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    seen = look()
    while not is_right(seen) and time.monotonic() < deadline:
        pause.wait(0.01)
        seen = look()
    return seen
