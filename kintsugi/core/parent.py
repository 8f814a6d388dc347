"""Processes that end with the one that started them, even where that one is killed."""

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_library = ctypes.CDLL(None)  # before any fork: loading it is nothing for a process that has been forked and runs nothing else yet
_first_parents = [os.getppid()]


def first_parent() -> int:
    """Process id of whoever had this process when this was loaded, or forked it later; it may have ended since."""
    return _first_parents[-1]


def end_with_parent(signal_number: int, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends; at once where `parent` is gone already.

    Args:
        signal_number: to end by.
        parent: process id of who forked this one; null where that one cannot have ended yet.
    """
    _library.prctl(_PR_SET_PDEATHSIG, signal_number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal_number)


os.register_at_fork(after_in_child=lambda: _first_parents.append(os.getppid()))
