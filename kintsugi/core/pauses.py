"""How long to wait before what failed is tried once more."""

_MOST_DOUBLINGS = 100
"""Longer than anybody waits; a thousand doublings are no number any more."""


def doubled_seconds(first: float, num_doublings: int, longest: float) -> float:
    """A pause that is twice as long each time, up to the longest one.

    Args:
        first: without any doubling, in seconds.
        num_doublings: so many times; below 0 none.
        longest: in seconds.
    """
    return min(first * 2.0 ** min(max(num_doublings, 0), _MOST_DOUBLINGS), longest)
