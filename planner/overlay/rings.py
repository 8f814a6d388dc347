"""The ring over which one reduction is predicted to be fastest, where the links allow one."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kintsugi.core.overlay import OverlayLink
from planner.overlay.pricing import SynchronizationProblem, hop_seconds, ring_seconds
from planner.overlay.topology import adjacency

SEARCH_WORK = 20_000
"""Workers that a search for a cycle may put behind others before it gives up: some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A cycle through all workers, and what a reduction over it takes."""

    order: tuple[str, ...]
    seconds: float


def fastest_ring(problem: SynchronizationProblem, *, below_seconds: float = float("inf")) -> Ring | None:
    """The cycle of least predicted seconds through all workers, from the one that joined first.

    The slowest hop decides, so the least bound on hops is sought at which the links within it hold a cycle; a cycle needs two
    links of every worker, from which the bounds begin. None where there is no cycle, none faster than `below_seconds`, or none
    was found within `SEARCH_WORK`: whether links hold one is NP-complete, so that the search may give up on large overlays.

    Complexity: O(log links) searches, each of at most `SEARCH_WORK` steps.
    """
    num_workers = len(problem.workers)
    if num_workers < 3:
        return None
    hops = {link: hop_seconds(link, num_workers, problem.message_bytes) for link in problem.links}
    least = _least_bound(problem.workers, hops)
    bounds = sorted({hop for hop in hops.values() if hop >= least and ring_seconds(hop, num_workers) < below_seconds})
    found: dict[float, tuple[str, ...]] = {}

    def is_possible(bound: float) -> bool:
        cycle = _cycle(problem.workers, [link for link, hop in hops.items() if hop <= bound])
        if cycle is not None:
            found[bound] = cycle
        return cycle is not None

    index = bisect_left(bounds, True, key=is_possible)
    if index == len(bounds):
        return None
    return Ring(order=found[bounds[index]], seconds=ring_seconds(bounds[index], num_workers))


def _least_bound(workers: Sequence[str], hops: dict[OverlayLink, float]) -> float:
    """No cycle has a slowest hop below this: every worker needs two links."""
    bound = 0.0
    for worker in workers:
        own = sorted(hop for link, hop in hops.items() if worker in link.between)
        bound = max(bound, own[1] if len(own) > 1 else float("inf"))
    return bound


def _cycle(workers: Sequence[str], links: Sequence[OverlayLink]) -> tuple[str, ...] | None:
    """A cycle through all workers over `links`, if one is found within the budget."""
    neighbors = {worker: {other for other, _ in own} for worker, own in adjacency(workers, links).items()}
    if any(len(others) < 2 for others in neighbors.values()):
        return None
    return _Search(workers, neighbors).run()


class _Search:
    """Extends a path by the worker with the fewest ways on, and takes back what led nowhere."""

    def __init__(self, workers: Sequence[str], neighbors: dict[str, set[str]]) -> None:
        self._neighbors = neighbors
        self._path = [workers[0]]
        self._left = set(workers[1:])
        self._work = SEARCH_WORK

    def run(self) -> tuple[str, ...] | None:
        """The cycle, if one is found."""
        ways = [self._ways()]
        while ways:
            if not self._left and self._path[0] in self._neighbors[self._path[-1]]:
                return tuple(self._path)
            worker = next(ways[-1], None)
            if worker is None or not self._work:
                ways.pop()
                if ways:
                    self._left.add(self._path.pop())
                continue
            self._work -= 1
            self._path.append(worker)
            self._left.discard(worker)
            ways.append(self._ways())
        return None

    def _ways(self) -> Iterator[str]:
        ends = self._left | {self._path[0]}
        if any(len(self._neighbors[worker] & (ends | {self._path[-1]})) < 2 for worker in self._left):
            return iter(())
        near = self._neighbors[self._path[-1]] & self._left
        return iter(sorted(near, key=lambda worker: (len(self._neighbors[worker] & self._left), worker)))
