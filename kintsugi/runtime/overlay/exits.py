"""Whether this process was asked to leave: by a signal, or by the scheduler (somebody pressed the button)."""

import signal
import threading
from types import FrameType
from typing import Any

_asked = threading.Event()
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def ask_to_leave() -> None:
    """Set the exit event of this process."""
    _asked.set()


def capture_exit_event() -> bool:
    """Whether somebody wants this process to leave its job: Ctrl-C, SIGTERM, or a leave button."""
    return _asked.is_set()


def forget_exit_event() -> None:
    """Clear the exit event: whoever joins again has not been asked yet."""
    _asked.clear()


class ExitSignals:
    """Has SIGINT and SIGTERM set the exit event, once each: the second one has the effect that it had before.

    A handler of the script's own is called by the first one, too; what the script ignores stays ignored. Only the main thread may
    take signals; in others nothing happens.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None):
                self._before[number] = before
                signal.signal(number, self._leave)

    def give_back(self) -> None:
        """Let signals have their effect again; what somebody else handles since stays so."""
        if threading.current_thread() is threading.main_thread():
            for number in self._before:
                self._give_back(number)

    def _give_back(self, number: int) -> None:
        if signal.getsignal(number) == self._leave:
            signal.signal(number, self._before[number])

    def _leave(self, number: int, frame: FrameType | None) -> None:
        _asked.set()
        self._give_back(number)
        before = self._before[number]
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)
