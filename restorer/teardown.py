"""Tearing groups down beside what follows, and before the interpreter ends: it aborts the process for a thread in a destructor."""

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

DELAY_SECONDS = 0.5
"""From letting go of groups to tearing them down: training has resumed then."""
_AT_EXIT_SECONDS = 10.0
"""For all destructors that are left when a script has ended."""

Group = TypeVar("Group")

_is_over = threading.Event()
_threads: set[threading.Thread] = set()


def let_go(groups: list[Group], name: str, before: Callable[[list[Group]], None] | None = None) -> None:
    """Drop the last references to groups a little later, in a thread of its own: destructors take 13-100 ms each.

    Args:
        groups: nobody else may hold them, or the list, by then.
        name: of the attempt that they are of.
        before: what is done to them first.
    """
    if _is_over.is_set():
        _tear_down(groups, before)
        return
    thread = threading.Thread(target=_tear_down, args=(groups, before), name=f"teardown-{name}", daemon=True)
    _threads.add(thread)
    try:
        thread.start()
    except RuntimeError:  # the script has ended: no thread is started any more
        _threads.discard(thread)
        _is_over.set()
        _tear_down(groups, before)


def _tear_down(groups: list[Group], before: Callable[[list[Group]], None] | None) -> None:
    """A destructor keeps the interpreter from all other threads for as long as it takes."""
    try:
        _is_over.wait(DELAY_SECONDS)
        if before is not None:
            before(groups)
        groups.clear()
    finally:
        _threads.discard(threading.current_thread())


def _await_all() -> None:
    _is_over.set()
    deadline = time.monotonic() + _AT_EXIT_SECONDS
    for thread in list(_threads):
        if thread.is_alive():
            thread.join(max(deadline - time.monotonic(), 0.0))


atexit.register(_await_all)
os.register_at_fork(after_in_child=_threads.clear)
