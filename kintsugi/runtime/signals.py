"""SIGTERM and SIGHUP end what is under way in order, as Ctrl-C does; and each of them may be put off for a little while."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

End = Callable[[], object]
"""Raises what a signal would have raised."""


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


@contextmanager
def put_off(asks: Callable[[End], bool]) -> Iterator[None]:
    """Have the first Ctrl-C, SIGTERM or SIGHUP that would raise in the block put off where `asks` says so, which then ends it.

    The second one raises at once. Only in the main thread, and where nobody else handles or ignores that signal.

    Args:
        asks: called by the signal's handler, between any two instructions, with what ends the block.
    """

    def _ask(number: int, frame: FrameType | None) -> None:
        give_back()
        end = partial(before[number], number, frame)
        if not asks(end):
            end()

    def give_back() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is _ask:
                signal.signal(number, handler)

    before: dict[int, Callable[[int, FrameType | None], object]] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in ((signal.SIGINT, signal.default_int_handler), *((own, _end) for own in _SIGNALS)):
            if signal.getsignal(number) is handler:
                before[number] = handler
                signal.signal(number, _ask)
    try:
        yield
    finally:
        give_back()


def _end(number: int, _: FrameType | None) -> None:
    _let_go(_SIGNALS)
    raise SignalExit(number)


def _let_go(numbers: Iterable[int]) -> None:
    """Back to the default, but for what somebody else handles by now."""
    for number in numbers:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)
