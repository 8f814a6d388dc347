"""When the interpreter looks for garbage: what a process holds once it has begun stays, and most of what it makes has no cycles."""

import gc

THRESHOLDS = (20_000, 20, 20)
"""Allocations between collections: with Python's own 700 a decision at 256 workers is interrupted by dozens of them."""


def settle() -> None:
    """Collect once, leave out whatever is there from then on, and look seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
