"""The tree over which one reduction is predicted to be fastest."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from kintsugi.core.overlay import OverlayLink
from planner.overlay.pricing import SynchronizationProblem, alpha, beta, tree_seconds
from planner.overlay.topology import adjacency, components

Neighbors = dict[str, list[tuple[str, OverlayLink]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A spanning tree, and what a reduction over it takes."""

    order: tuple[str, ...]
    """Workers from the root on, each behind its parent."""
    parents: dict[str, str]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rooted:
    """Least distances from a root: workers in ascending order of them, each with the parent through which it is nearest."""

    order: tuple[str, ...]
    parents: dict[str, str]
    height_seconds: float
    num_hops: int


def fastest_tree(problem: SynchronizationProblem) -> Tree:
    """The spanning tree of least predicted seconds, of equals the one of the least bound on beta, then of fewest hops.

    For each bound on beta the links within it are left, and of their trees one of least height is a tree of shortest paths from
    that worker from which the farthest is nearest: no path in any tree is shorter than in the graph. The best over all bounds is
    optimal. The least height never grows with the bound, so that between two bounds of equal height, or where even the height of
    the upper one would not be worth it, nothing better can lie: these are not tried.

    Complexity: O(bounds tried * workers * links log workers).

    Raises:
        AssertionError: the links do not connect the workers.
    """
    return _Search(problem).run()


class _Search:
    """Looks for the best bound on beta."""

    def __init__(self, problem: SynchronizationProblem) -> None:
        self._problem = problem
        self._bounds = sorted({beta(link) for link in problem.links} or {0.0})
        self._best: Tree | None = None
        self._best_bound = 0.0

    def run(self) -> Tree:
        """The best tree over all bounds."""
        first, last = bisect_left(self._bounds, True, key=self._connects), len(self._bounds) - 1
        assert first <= last, "the links do not connect the workers"
        self._between(first, self._height(first), last, self._height(last))
        assert self._best is not None
        return self._best

    def _between(self, low: int, low_height: float, high: int, high_height: float) -> None:
        """Try what may be better between two bounds that were tried."""
        if high - low < 2 or low_height == high_height:
            return
        assert self._best is not None
        if tree_seconds(high_height, self._bounds[low + 1], self._problem.message_bytes) >= self._best.seconds:
            return
        middle = (low + high) // 2
        height = self._height(middle)
        self._between(low, low_height, middle, height)
        self._between(middle, height, high, high_height)

    def _height(self, index: int) -> float:
        """The least height of a tree within a bound, in seconds; the tree is kept where it is the best so far."""
        bound = self._bounds[index]
        rooted = _least_height(self._problem.workers, self._neighbors(bound))
        seconds = tree_seconds(rooted.height_seconds, bound, self._problem.message_bytes)
        if self._best is None or (seconds, bound) < (self._best.seconds, self._best_bound):
            self._best, self._best_bound = Tree(order=rooted.order, parents=rooted.parents, seconds=seconds), bound
        return rooted.height_seconds

    def _connects(self, bound: float) -> bool:
        links = (link for link in self._problem.links if beta(link) <= bound)
        return len(components(self._problem.workers, links)) == 1

    def _neighbors(self, bound: float) -> Neighbors:
        return adjacency(self._problem.workers, (link for link in self._problem.links if beta(link) <= bound))


def _least_height(workers: tuple[str, ...], neighbors: Neighbors) -> _Rooted:
    """A spanning tree of least height, of equals one of fewest hops; the links connect all."""
    rooted = (_shortest_paths(root, neighbors) for root in workers)
    return min(rooted, key=lambda one: (one.height_seconds, one.num_hops))


def _shortest_paths(root: str, neighbors: Neighbors) -> _Rooted:
    """Dijkstra's algorithm; of equal distances that of fewest hops counts, then the order of names."""
    order, parents = list[str](), dict[str, str]()
    heads: list[tuple[float, int, str, str]] = [(0.0, 0, root, root)]
    distance = hops = 0.0
    done = set[str]()
    while heads:
        seconds, depth, worker, parent = heappop(heads)
        if worker in done:
            continue
        done.add(worker)
        order.append(worker)
        parents[worker] = parent
        distance, hops = seconds, max(hops, depth)
        for entry in _further(neighbors[worker], seconds, depth, worker, done):
            heappush(heads, entry)
    del parents[root]
    return _Rooted(order=tuple(order), parents=parents, height_seconds=distance, num_hops=int(hops))


def _further(
    links: list[tuple[str, OverlayLink]], seconds: float, depth: int, worker: str, done: set[str]
) -> Iterator[tuple[float, int, str, str]]:
    return ((seconds + alpha(link), depth + 1, other, worker) for other, link in links if other not in done)
