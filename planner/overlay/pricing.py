"""How long one reduction takes over measured links: what trees and rings are compared by.

A message of B bytes goes through a tree in small pieces, first up and summed, then down: the last piece of each direction
arrives after the latency from the farthest leaf to the root and the time that the slowest link needs for all pieces,

    tree: 2 (height + B max beta)

with the height in seconds of latency. In a ring of n every piece of B / n bytes makes 2 (n - 1) hops, at each of which all wait
for the slowest link:

    ring: 2 (n - 1) max(alpha + beta B / n)
"""

from dataclasses import dataclass

from kintsugi.core.checks import LONGEST_LATENCY_SECONDS, SLOWEST_SECONDS_PER_BYTE
from kintsugi.core.overlay import OverlayLink


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronizationProblem:
    """Over which links should these workers reduce?"""

    workers: tuple[str, ...]
    """Whose gradients count, in the order in which they joined; the links connect all of them."""
    links: tuple[OverlayLink, ...]
    """Connected ones between them, in ascending order of their ends; measured or not."""
    message_bytes: int
    """What each worker adds to a reduction."""


def alpha(link: OverlayLink) -> float:
    """Latency of a link in seconds, one way; before it is measured the worst that is credible: others are preferred."""
    return LONGEST_LATENCY_SECONDS if link.alpha_seconds is None else link.alpha_seconds


def beta(link: OverlayLink) -> float:
    """Seconds per byte of a link; before it is measured the worst that is credible."""
    return SLOWEST_SECONDS_PER_BYTE if link.beta_seconds_per_byte is None else link.beta_seconds_per_byte


def tree_seconds(height_seconds: float, slowest_beta: float, message_bytes: int) -> float:
    """Predicted seconds of a reduction over a tree."""
    return 2.0 * (height_seconds + message_bytes * slowest_beta)


def hop_seconds(link: OverlayLink, num_workers: int, message_bytes: int) -> float:
    """Seconds in which one piece of a ring's message crosses a link."""
    return alpha(link) + beta(link) * message_bytes / num_workers


def ring_seconds(slowest_hop_seconds: float, num_workers: int) -> float:
    """Predicted seconds of a reduction over a ring."""
    return 2.0 * (num_workers - 1) * slowest_hop_seconds
