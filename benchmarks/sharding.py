"""Shard assignment: ours, the papers' algorithms and their integer programs in one run, with the published figures beside.

Run: python -m benchmarks.sharding [--time-limit-seconds 20] [--p3-shards 100 1000]

Neighbours as in the papers' test bed: bandwidths of 100-1000 Mbit/s and latencies of 10-20 ms, drawn from a fixed seed; all
end their all-reduce within half a second. Times are medians of cold calls, those of the programs of one call.
HiGHS looks at its time limit between its phases only: P3 for AlexNet's 29,835 shards runs far over it, and finds nothing.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table

from kintsugi.core.errors import UnavailableError
from planner.sharding.baselines import brute_force, even_assignment, single_source
from planner.sharding.distribution import distribute
from planner.sharding.exact import assign_shards
from planner.sharding.exchange import Exchange, Link, Part, Receiver, Source
from planner.sharding.greedy import heap_greedy, scan_greedy
from planner.sharding.milp import SolvedProgram, solve_p3, solve_p4
from planner.sharding.problem import Neighbor, ShardAssignment, ShardProblem
from planner.sharding.sizing import SizedAssignment, search_shard_size, solve_along_chain

ALEXNET_PARAMETERS = (
    *(23232, 64, 307200, 192, 663552, 384, 884736, 256, 589824, 256),  # convolutions and their biases
    *(37748736, 4096, 16777216, 4096, 4096000, 1000),  # fully connected layers and their biases
)
PARAMETER_BYTES = 4
SHARD_BYTES = 2048 * PARAMETER_BYTES
ALEXNET_SHARDS = -(-sum(ALEXNET_PARAMETERS) // 2048)
REPEATS = 5

Solve = Callable[[ShardProblem], ShardAssignment]
Program = Callable[..., SolvedProgram]


def neighbors(count: int, seed: int = 0) -> tuple[Neighbor, ...]:
    draw = random.Random(seed)
    return tuple(
        Neighbor(
            id=f"n{index}",
            propagation_seconds=draw.uniform(0.010, 0.020),
            ready_seconds=draw.uniform(0.0, 0.5),
            beta_seconds_per_byte=8 / draw.uniform(100e6, 1000e6),
        )
        for index in range(count)
    )


def timed(call: Callable[[], ShardAssignment]) -> tuple[ShardAssignment, float]:
    """The result, and the median time of `REPEATS` calls."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


class Comparison:
    """A table of assignments of one problem, each against the optimal one."""

    def __init__(self, title: str, problem: ShardProblem) -> None:
        self.problem = problem
        self.table = Table(
            title=f"{title}: {problem.num_shards:,} shards from {len(problem.neighbors)} neighbours", title_justify="left"
        )
        for name in ("algorithm", "makespan", "over ours", "time", "published"):
            self.table.add_column(name, justify="left" if name in ("algorithm", "published") else "right")
        self.best, seconds = timed(lambda: assign_shards(problem))
        self._row("closed form (ours)", self.best, seconds, "")

    def add(self, name: str, solve: Solve, published: str = "") -> None:
        """A row for an algorithm."""
        self._row(name, *timed(lambda: solve(self.problem)), published)

    def add_program(self, name: str, solve: Program, time_limit_seconds: float, published: str = "") -> None:
        """A row for an integer program."""
        try:
            solved = solve(self.problem, time_limit_seconds=time_limit_seconds)
        except UnavailableError:
            self.table.add_row(name, "none found", "-", f"> {time_limit_seconds:g} s", published)
            return
        self._row(name if solved.proven else f"{name}, not proven", solved.assignment, solved.solve_seconds, published)

    def _row(self, name: str, assignment: ShardAssignment, seconds: float, published: str) -> None:
        ratio = assignment.makespan_seconds / self.best.makespan_seconds - 1
        self.table.add_row(name, f"{assignment.makespan_seconds:.6f} s", f"{ratio:.3%}", f"{seconds * 1e3:.3f} ms", published)


def small(time_limit_seconds: float) -> Table:
    result = Comparison("Small enough for brute force", ShardProblem(num_shards=40, shard_bytes=2**20, neighbors=neighbors(4)))
    result.add("brute force", brute_force)
    result.add("greedy", scan_greedy, "0.5-29 % over the optimum (edge), optimal (multi-party)")
    result.add_program("P3, HiGHS", solve_p3, time_limit_seconds)
    result.add_program("P4, HiGHS", solve_p4, time_limit_seconds)
    result.add("even", even_assignment)
    result.add("single source", single_source)
    return result.table


def alexnet(time_limit_seconds: float) -> Table:
    problem = ShardProblem(num_shards=ALEXNET_SHARDS, shard_bytes=SHARD_BYTES, neighbors=neighbors(4))
    result = Comparison("AlexNet, 2048 parameters a shard", problem)
    result.add("greedy, scan", scan_greedy, "160 ms (multi-party, section III-B)")
    result.add("greedy, heap", heap_greedy)
    result.add_program("P4, HiGHS", solve_p4, time_limit_seconds)
    result.add("even", even_assignment)
    result.add("single source", single_source)
    return result.table


def largest(time_limit_seconds: float) -> Table:
    problem = ShardProblem(num_shards=10**8, shard_bytes=SHARD_BYTES, neighbors=neighbors(64))
    result = Comparison("The largest the papers speak of, from many", problem)
    result.add_program("P4, HiGHS", solve_p4, time_limit_seconds, "P3 too slow or out of memory (multi-party)")
    result.add("even", even_assignment)
    result.add("single source", single_source)
    return result.table


def growth(shards: Sequence[int], time_limit_seconds: float) -> Table:
    """What P3, a binary variable per neighbour and shard, costs as the shards grow."""
    table = Table(title="P3 by HiGHS, from 4 neighbours (published: several seconds, or out of memory)", title_justify="left")
    for name in ("shards", "variables", "P3", "over ours", "closed form"):
        table.add_column(name, justify="right")
    for num_shards in shards:
        problem = ShardProblem(num_shards=num_shards, shard_bytes=SHARD_BYTES, neighbors=neighbors(4))
        best, seconds = timed(partial(assign_shards, problem))
        try:
            solved = solve_p3(problem, time_limit_seconds=time_limit_seconds)
        except UnavailableError:
            cells = (f"none found in {time_limit_seconds:g} s", "-")
        else:
            ratio = solved.assignment.makespan_seconds / best.makespan_seconds - 1
            cells = (f"{solved.solve_seconds * 1e3:.1f} ms" + ("" if solved.proven else ", not proven"), f"{ratio:.3%}")
        table.add_row(f"{num_shards:,}", f"{4 * num_shards + 1:,}", *cells, f"{seconds * 1e3:.3f} ms")
    return table


def sizes() -> Table:
    table = Table(title="Shard sizes for AlexNet from 4 neighbours", title_justify="left")
    for name in ("algorithm", "shard bytes", "makespan", "time"):
        table.add_column(name, justify="left" if name == "algorithm" else "right")
    layer_bytes = [PARAMETER_BYTES * count for count in ALEXNET_PARAMETERS]
    searches: dict[str, Callable[[], SizedAssignment]] = {
        "binary search over Algorithm 2 (edge, Algorithm 1)": lambda: search_shard_size(layer_bytes, neighbors(4)),
        "the same over the closed form": lambda: search_shard_size(layer_bytes, neighbors(4), solve=assign_shards),
        "first of the divisibility chain, closed form": lambda: solve_along_chain(layer_bytes, neighbors(4))[0],
    }
    for name, search in searches.items():
        start = time.perf_counter()
        found = search()
        elapsed = time.perf_counter() - start
        table.add_row(name, f"{found.shard_bytes:,}", f"{found.assignment.makespan_seconds:.6f} s", f"{elapsed * 1e3:.3f} ms")
    return table


def exchange(num_sources: int, num_receivers: int, num_parts: int, num_shards: int) -> Exchange:
    """Sources that each hold about half of the parts, receivers that need all of them."""
    draw = random.Random(0)
    parts = tuple(Part(id=f"p{index}", num_shards=num_shards) for index in range(num_parts))
    sources = tuple(
        Source(id=n.id, ready_seconds=n.ready_seconds, parts=tuple(p.id for i, p in enumerate(parts) if (index + i) % 2 == 0))
        for index, n in enumerate(neighbors(num_sources))
    )
    receivers = tuple(Receiver(id=f"r{index}", parts=tuple(part.id for part in parts)) for index in range(num_receivers))
    links = tuple(
        Link(
            source=source.id,
            receiver=receiver.id,
            propagation_seconds=draw.uniform(0.010, 0.020),
            beta_seconds_per_byte=8 / draw.uniform(100e6, 1000e6),
        )
        for source in sources
        for receiver in receivers
    )
    return Exchange(shard_bytes=SHARD_BYTES, parts=parts, sources=sources, receivers=receivers, links=links)


def exchanges() -> Table:
    table = Table(title="Several receivers, sources that hold half of the parts", title_justify="left")
    for name in ("sources", "receivers", "parts", "shards a part", "makespan", "over the bound", "time"):
        table.add_column(name, justify="right")
    for shape in ((4, 2, 4, 1_000), (8, 4, 8, 100_000), (32, 8, 16, 1_000_000)):
        asked = exchange(*shape)
        start = time.perf_counter()
        answer = distribute(asked)
        elapsed = time.perf_counter() - start
        gap = answer.makespan_seconds / answer.lower_bound_seconds - 1
        cells = [f"{value:,}" for value in shape]
        table.add_row(*cells, f"{answer.makespan_seconds:.6f} s", f"{gap:.5%}", f"{elapsed * 1e3:.1f} ms")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit-seconds", type=float, default=20.0, help="of each integer program")
    parser.add_argument("--p3-shards", type=int, nargs="+", default=[100, 500, 1000, 2000], help="sizes to solve P3 for")
    arguments = parser.parse_args()
    limit = arguments.time_limit_seconds
    console = Console(width=132)
    console.print(small(limit))
    console.print(alexnet(limit))
    console.print(growth(arguments.p3_shards, limit))
    console.print(largest(limit))
    console.print(sizes())
    console.print(exchanges())


if __name__ == "__main__":
    main()
