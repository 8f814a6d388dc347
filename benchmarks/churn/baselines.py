"""The ways of bringing a state to a joiner that are compared, each as sends along ways of the overlay.

Single source is Elan's (and EDL+'s), multi-source Autoscaling's: even parts from every node along shortest ways, whether or not
a node on the way holds the same bytes. Even, greedy and brute-force shards come from the joiner's neighbours; those of brute
force are larger, so that what it finds is no lower bound of what greedy does.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

import networkx as nx

from benchmarks.churn.overlays import Drawn
from benchmarks.churn.plane import Send
from planner.sharding.baselines import brute_force, even_assignment, num_assignments, single_source
from planner.sharding.exact import assign_shards
from planner.sharding.problem import Neighbor, ShardAssignment, ShardProblem

MOST_ASSIGNMENTS = 5_000
"""That brute force looks at: the shards are made larger until there are no more."""


class Method(StrEnum):
    """How a joiner gets the state."""

    CHECKPOINT = "checkpoint-restart"
    SINGLE = "single source"
    MULTI_SOURCE = "multi-source"
    EVEN = "multi-neighbour, even"
    GREEDY = "multi-neighbour, greedy"
    OPTIMUM = "multi-neighbour, brute force"

    @property
    def has_barrier(self) -> bool:
        """Whether all nodes wait until the joiner has the state (Elan's; a restart by its nature)."""
        return self in (Method.CHECKPOINT, Method.SINGLE)


_SOLVERS: dict[Method, Callable[[ShardProblem], ShardAssignment]] = {
    Method.SINGLE: single_source,
    Method.EVEN: even_assignment,
    Method.GREEDY: assign_shards,
    Method.OPTIMUM: brute_force,
}


def tree_of(overlay: Drawn) -> dict[str, str]:
    """Parents in the spanning tree of the active nodes with the fastest slowest link, from its centre."""
    tree = nx.maximum_spanning_tree(overlay.graph(with_joiner=False), weight="bytes_per_second")
    return {child: parent for parent, child in nx.bfs_edges(tree, min(nx.center(tree)))}


def ready_seconds(overlay: Drawn) -> dict[str, float]:
    """When each of the joiner's neighbours is through with a reduction, after the first of them to be.

    Results come down from the tree's root: each node has them later by the latencies on its way.
    """
    parents, found = tree_of(overlay), {}
    for neighbor in overlay.neighbors:
        node, found[neighbor] = neighbor, 0.0
        while (parent := parents.get(node)) is not None:
            found[neighbor] += overlay.wire(node, parent).latency_seconds
            node = parent
    return {neighbor: seconds - min(found.values()) for neighbor, seconds in found.items()}


def shard_problem(overlay: Drawn, state_bytes: int, shard_bytes: int) -> ShardProblem:
    """The question of equation 2 over the joiner's links; the last shard counts as a whole one."""
    ready = ready_seconds(overlay)
    neighbors = tuple(
        Neighbor(
            id=neighbor,
            propagation_seconds=wire.latency_seconds,
            ready_seconds=ready[neighbor],
            beta_seconds_per_byte=wire.beta_seconds_per_byte,
        )
        for neighbor, wire in zip(overlay.neighbors, overlay.joiner_wires, strict=True)
    )
    num_shards = -(-state_bytes // shard_bytes)
    return ShardProblem(num_shards=num_shards, shard_bytes=shard_bytes, min_shards_per_neighbor=0, neighbors=neighbors)


def searchable(overlay: Drawn, state_bytes: int, shard_bytes: int) -> ShardProblem:
    """The same with shards so large that brute force is through with it soon."""
    problem = shard_problem(overlay, state_bytes, shard_bytes)
    while num_assignments(problem) > MOST_ASSIGNMENTS:
        shard_bytes *= 2
        problem = shard_problem(overlay, state_bytes, shard_bytes)
    return problem


def assignment(method: Method, overlay: Drawn, state_bytes: int, shard_bytes: int) -> tuple[ShardProblem, ShardAssignment]:
    """Which neighbour sends how many shards under one of the methods that ask neighbours alone."""
    problem = (searchable if method is Method.OPTIMUM else shard_problem)(overlay, state_bytes, shard_bytes)
    return problem, _SOLVERS[method](problem)


def sends(method: Method, overlay: Drawn, state_bytes: int, shard_bytes: int) -> tuple[Send, ...]:
    """Who sends which bytes along which way; all bytes once."""
    if method is Method.MULTI_SOURCE:
        return _parts(_shortest_ways(overlay), _even_bytes(len(overlay.active), state_bytes))
    problem, found = assignment(method, overlay, state_bytes, shard_bytes)
    ways = [(neighbor, overlay.joiner) for neighbor in overlay.neighbors]
    return _parts(ways, _bytes_of(found.counts, problem.shard_bytes, state_bytes))


def _shortest_ways(overlay: Drawn) -> list[tuple[str, ...]]:
    """From every active node to the joiner, by the time that a byte takes on every link."""
    ways = nx.single_source_dijkstra_path(overlay.graph(), overlay.joiner, weight="seconds_per_byte")
    return [tuple(reversed(ways[node])) for node in overlay.active]


def _even_bytes(num_parts: int, state_bytes: int) -> list[int]:
    share, rest = divmod(state_bytes, num_parts)
    return [share + (index < rest) for index in range(num_parts)]


def _bytes_of(counts: Sequence[int], shard_bytes: int, state_bytes: int) -> list[int]:
    """Bytes of each part; the last shard of all may be shorter."""
    sizes, left = [], state_bytes
    for count in counts:
        sizes.append(min(count * shard_bytes, left))
        left -= sizes[-1]
    return sizes


def _parts(ways: Sequence[tuple[str, ...]], sizes: Sequence[int]) -> tuple[Send, ...]:
    """Consecutive parts of the state, one for each way."""
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return tuple(
        Send(way=way, first_byte=first, num_bytes=size) for way, first, size in zip(ways, starts, sizes, strict=True) if size
    )
