"""The tree over which one reduction is predicted to be fastest."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from kintsugi.core.overlay import OverlayLink
from planner.overlay.pricing import SynchronizationProblem, alpha, beta, tree_seconds
from planner.overlay.topology import adjacency

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
    """The spanning tree of least predicted seconds, of equals the one of fewest hops, then of the root that joined first.

    For each bound on beta the links within it are left, and of their trees one of least height is a tree of shortest paths from
    that worker from which the farthest is nearest: no path in any tree is shorter than in the graph. The best over all bounds is
    optimal. Bounds ascend, so that none is tried whose slowest link alone takes longer than the best tree so far.

    Complexity: O(bounds * workers * links log workers).

    Raises:
        AssertionError: the links do not connect the workers.
    """
    best: Tree | None = None
    for bound in sorted({beta(link) for link in problem.links} or {0.0}):
        if best is not None and tree_seconds(0.0, bound, problem.message_bytes) >= best.seconds:
            break
        neighbors = adjacency(problem.workers, (link for link in problem.links if beta(link) <= bound))
        rooted = _least_height(problem.workers, neighbors)
        if rooted is None:
            continue
        seconds = tree_seconds(rooted.height_seconds, bound, problem.message_bytes)
        if best is None or seconds < best.seconds:
            best = Tree(order=rooted.order, parents=rooted.parents, seconds=seconds)
    assert best is not None, "the links do not connect the workers"
    return best


def _least_height(workers: tuple[str, ...], neighbors: Neighbors) -> _Rooted | None:
    """A spanning tree of least height; None where the links do not connect the workers."""
    best: _Rooted | None = None
    for root in workers:
        rooted = _shortest_paths(root, neighbors)
        if len(rooted.order) < len(workers):
            return None
        if best is None or (rooted.height_seconds, rooted.num_hops) < (best.height_seconds, best.num_hops):
            best = rooted
    return best


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
