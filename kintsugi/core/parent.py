"""Processes that end with the one that started them, even where that one is killed."""

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_library = ctypes.CDLL(None)  # before any fork: loading it is nothing for a process that has been forked and runs nothing else yet
_parents = [os.getppid()]
"""Process ids of who had this process when this was loaded, and of who forked it later; the last one may have ended since."""


def end_with_parent(signal_number: int, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends; at once where that one is gone already.

    Args:
        signal_number: to end by.
        parent: process id of who forked this one; by default of who had it when this module was loaded, or it was forked.
    """
    _library.prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != (parent or _parents[-1]):
        os.kill(os.getpid(), signal_number)


os.register_at_fork(after_in_child=lambda: _parents.append(os.getppid()))
