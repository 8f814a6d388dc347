"""Whether this process was asked to leave: by a signal, or by the scheduler (somebody pressed the button)."""

import signal
import threading
from types import FrameType

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


def read_signals() -> None:
    """Have SIGINT and SIGTERM set the exit event, once: the second one has its usual effect.

    Only the main thread may do that; in others nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if before is not _leave:
            signal.signal(number, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    _asked.set()
    signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
