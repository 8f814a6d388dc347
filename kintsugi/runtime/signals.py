"""SIGTERM and SIGHUP end what is under way in order, as Ctrl-C does."""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class SignalExit(SystemExit):
    """This process was told to end by a signal; where nobody catches it, it exits with 128 + its number, as shells tell it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Have the first SIGTERM or SIGHUP raise `SignalExit` in the block, where it would have ended this process on the spot.

    Only in the main thread, and where nobody handles or ignores that signal; a second one ends the process on the spot.
    """
    is_main = threading.current_thread() is threading.main_thread()
    taken = [number for number in _SIGNALS if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        _let_go(taken)


def _end(number: int, _: FrameType | None) -> None:
    _let_go(_SIGNALS)
    raise SignalExit(number)


def _let_go(numbers: Iterable[int]) -> None:
    """Back to the default, but for what somebody else handles by now."""
    for number in numbers:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)
