"""What ends before the interpreter does, which stops threads where they are and aborts the process for one that is within torch."""

import atexit
import os
from collections.abc import Callable

from kintsugi.core.logs import get_logger

End = Callable[[], object]
"""Ends threads, within bounded time."""

_due: dict[End, None] = {}


def before_exit(end: End) -> None:
    """Have it called when the script ends, whichever way, behind those that came before; not in a process forked from this one."""
    _due[end] = None


def is_over(end: End) -> None:
    """It was called, and is not to be called again."""
    _due.pop(end, None)


def _end_all() -> None:
    for end in list(_due):
        try:
            end()
        except Exception:  # the script has ended, and the others are to end, too
            get_logger("kintsugi.runtime").exception("could not be ended with the script", what=str(end))


atexit.register(_end_all)
os.register_at_fork(after_in_child=_due.clear)
