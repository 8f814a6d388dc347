"""What the outcomes of a campaign say: medians, ratios within the same event, and the tables of them."""

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.churn.baselines import Method, searchable
from benchmarks.churn.campaign import Record, Results, by
from benchmarks.churn.measure import Outcome
from benchmarks.churn.overlays import drawn
from benchmarks.churn.product import ProductEvent
from planner.sharding.baselines import brute_force
from planner.sharding.exact import assign_shards

_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure that was asked for."""

    name: str
    measured: float
    asked: str
    num_events: int
    """Whose median it is."""


def assignments_equal_to_brute_force(seed: int, num_draws: int) -> tuple[int, int]:
    """In how many random overlays the greedy assignment is as fast as the best of all, and how many there were.

    Exact arithmetic: the two are equal or they are not.
    """
    draw = random.Random(f"assignments {seed}")
    equal = 0
    for index in range(num_draws):
        overlay = drawn(draw.choice((6, 8, 10, 12)), seed + index)
        problem = searchable(overlay, draw.randrange(1, 600) * 2**20, 64 * 1024)
        equal += assign_shards(problem).makespan_seconds == brute_force(problem).makespan_seconds
    return equal, num_draws


def figures(results: Results, seed: int, *, num_draws: int = _DRAWS) -> list[Figure]:
    """The figures that were asked for, as far as the results tell them."""
    return [_assignment(seed, num_draws), *_compared(results.records), *_of_product(results.product)]


def _compared(records: Sequence[Record]) -> list[Figure]:
    """Those of the methods that were compared."""
    found = []
    large = [record for record in by(records, "unequal") if record.case.mebibytes > 100]
    if large:
        ours = [record.of(Method.GREEDY) for record in large]
        found += [
            _figure("scale-out delay over the bound of the joiner's links", [o.over_bound_ratio for o in ours], "<= 1.1"),
            _figure("delay of the largest cluster over the smallest's, same joiner", _growth(large), "about 1"),
            _figure("idle time, single source with its barrier over ours", _gains(large, Method.SINGLE, idle), ">= 5"),
        ]
    if equal := by(records, "equal"):
        found.append(
            _figure("delay from the best single source over ours, two equal links", _gains(equal, Method.SINGLE, delay), ">= 1.8")
        )
    return found


def _of_product(events: Sequence[ProductEvent]) -> list[Figure]:
    """Those of the product itself."""
    if not events:
        return []
    together, single = [event.joins[0] for event in events], [event.joins[1] for event in events]
    gains = [one.delay_seconds / both.delay_seconds for one, both in zip(single, together, strict=True)]
    found = [
        _figure(
            "product: delay over the bound of the joiner's links", [j.delay_seconds / j.bound_seconds for j in together], "<= 1.1"
        ),
        _figure("product: delay from the fastest neighbour alone over that from all", gains, "> 1"),
        _figure("product: from the call to a worker that counts (s)", [join.join_seconds for join in together], ""),
        _figure("product: idle time of the cluster (s)", [join.idle_seconds for join in together], ""),
    ]
    for kind in ("scale-in", "connect-link", "disconnect-link"):
        own = [one.lengthened_seconds for event in events for one in event.primitives if one.kind == kind]
        found.append(_figure(f"product: {kind} lengthens training (s)", own, "<= 0.02"))
    return found


def delay(outcome: Outcome) -> float:
    """Seconds from the boundary to the complete state."""
    return outcome.delay_seconds


def idle(outcome: Outcome) -> float:
    """Seconds of idle time, summed over the cluster."""
    return outcome.idle_seconds


def median_of(records: Iterable[Record], method: Method, value: Callable[[Outcome], float]) -> float:
    """Of one method's outcomes."""
    return statistics.median(value(record.of(method)) for record in records)


def table(records: Sequence[Record], value: Callable[[Outcome], float], title: str) -> list[str]:
    """Medians by size of state and number of nodes, methods side by side, with greedy's delay over the bound; Markdown."""
    records = by(records, "unequal")
    lines = [
        f"| {title}: state (MiB) | nodes | events | " + " | ".join(method.value for method in Method) + " | greedy over bound |",
        "|---" * (len(Method) + 4) + "|",
    ]
    for mebibytes, num_nodes in sorted({(record.case.mebibytes, record.case.num_nodes) for record in records}):
        own = [r for r in records if (r.case.mebibytes, r.case.num_nodes) == (mebibytes, num_nodes)]
        cells = [f"{median_of(own, method, value):.2f}" for method in Method]
        over = median_of(own, Method.GREEDY, lambda outcome: outcome.over_bound_ratio)
        lines.append(f"| {mebibytes:g} | {num_nodes} to {num_nodes + 1} | {len(own)} | {' | '.join(cells)} | {over:.2f} |")
    return lines


def figure_table(found: Sequence[Figure]) -> list[str]:
    """The figures as Markdown."""
    lines = ["| figure (median) | measured | asked | events |", "|---|---|---|---|"]
    return lines + [f"| {one.name} | {one.measured:.3g} | {one.asked} | {one.num_events} |" for one in found]


def _assignment(seed: int, num_draws: int) -> Figure:
    equal, tried = assignments_equal_to_brute_force(seed, num_draws)
    return Figure(name="shard assignments as fast as brute force's", measured=equal / tried, asked="1", num_events=tried)


def _figure(name: str, values: Sequence[float], asked: str) -> Figure:
    return Figure(name=name, measured=statistics.median(values), asked=asked, num_events=len(values))


def _gains(records: Iterable[Record], method: Method, value: Callable[[Outcome], float]) -> list[float]:
    return [value(record.of(method)) / value(record.of(Method.GREEDY)) for record in records]


def _growth(records: Sequence[Record]) -> list[float]:
    """Delay in the largest cluster over that in the smallest, of joiners with the same links and the same state."""
    delays: dict[tuple[float, int], dict[int, float]] = {}
    for record in records:
        case = record.case
        delays.setdefault((case.mebibytes, case.seed), {})[case.num_nodes] = delay(record.of(Method.GREEDY))
    return [own[max(own)] / own[min(own)] for own in delays.values()]
