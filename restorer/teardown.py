"""Tearing groups down beside what follows."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

DELAY_SECONDS = 0.5
"""From letting go of groups to tearing them down: training has resumed then."""

Group = TypeVar("Group")


def let_go(groups: list[Group], name: str, before: Callable[[list[Group]], None] | None = None) -> None:
    """Drop the last references to groups a little later, in a thread of its own: destructors take 13-100 ms each.

    Args:
        groups: nobody else may hold them, or the list, by then.
        name: of the attempt that they are of.
        before: what is done to them first.
    """
    threading.Thread(target=_tear_down, args=(groups, before), name=f"teardown-{name}", daemon=True).start()


def _tear_down(groups: list[Group], before: Callable[[list[Group]], None] | None) -> None:
    """A destructor keeps the interpreter from all other threads for as long as it takes."""
    time.sleep(DELAY_SECONDS)
    if before is not None:
        before(groups)
    groups.clear()
