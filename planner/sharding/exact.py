"""The optimal shard assignment in closed form: its cost grows with the neighbours, not with the shards.

Source u finishes its j-th shard at `r_u + j * p_u`. Whatever the counts, they are prefixes of these progressions, so the
makespan is least when the K shards are the K earliest completions of all (multi-party paper, Proposition 1 and Lemma 1).
The papers merge the progressions one shard at a time. Here the makespan is inverted: by the time T source u has finished
`n_u(T) = floor((T - r_u) / p_u)` shards, and all completions up to T belong to the K earliest as long as `sum n_u(T) <= K`.

1. *Level.* If shards were divisible, all active sources would stop at the one time that solves
   `sum max(0, T - r_u) / p_u = K`: a water level, found in one pass over the sources in the order of `r_u`.
   With `1 / p_u` rounded up to a multiple of `2**-S` and T rounded down to a tick, `sum n_u(T) <= K` is certain.
2. *Invert.* `n_u(T)` by integer division.
3. *Rest.* Flooring withheld less than one shard per source, rounding the level to a tick less than another (`p_u` is one
   tick or more), rounding the inverses less than one in all, so at most `2 m + 1` shards are left for m sources. They are
   the next earliest completions: a heap of the m heads hands them out.

All of it is integer arithmetic on exact ticks (`ExactTimes`). Equal completions go to the earlier neighbour, as in a greedy
scan that takes the first minimum; so the counts equal those of the papers' greedy algorithms in exact arithmetic, shard by
shard. A minimum per source is dealt out first (the multi-party paper's lines 3-5); what remains is the same problem.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace

from planner.sharding.problem import ExactTimes, ShardAssignment, ShardProblem, seconds

FINE_BITS = 64
"""By so many binary places a bound is reckoned more finely than the times that it follows from."""


def assign_shards(problem: ShardProblem) -> ShardAssignment:
    """The counts of least makespan for P3 and P4 (multi-party paper, equations 18-25), exactly.

    Complexity: O(m log m) for m neighbours, whatever the number of shards.
    """
    times, minimum = ExactTimes.of(problem), problem.min_shards_per_neighbor
    further = earliest_counts(times.after(minimum), problem.num_shards - minimum * len(times.costs))
    return times.assignment([minimum + count for count in further])


def earliest_counts(times: ExactTimes, num_shards: int) -> list[int]:
    """How many of the `num_shards` earliest completions are each source's; equal ones count for the earlier source."""
    level = _safe_level(times, num_shards)
    counts = [
        (level - offset) // cost if cost and offset < level else 0 for offset, cost in zip(times.offsets, times.costs, strict=True)
    ]
    return hand_out(times, counts, num_shards - sum(counts))


def hand_out(times: ExactTimes, counts: list[int], num_shards: int) -> list[int]:
    """`counts` after `num_shards` more shards, each given to the source that would finish it first.

    Complexity: O(m + num_shards log m).
    """
    pairs = zip(times.offsets, times.costs, strict=True)
    heads = [(offset + (counts[source] + 1) * cost, source) for source, (offset, cost) in enumerate(pairs)]
    heapify(heads)
    while num_shards:
        finish, source = heads[0]
        taken = 1 if times.costs[source] else num_shards  # a link that takes no time stays the first
        counts[source] += taken
        num_shards -= taken
        heapreplace(heads, (finish + times.costs[source], source))
    return counts


def water_level(vessels: Iterable[tuple[int, int]], volume: int) -> int:
    """The highest whole level at which vessels hold at most `volume`: the sum of `max(0, level - bottom) * width`.

    Args:
        vessels: bottom and positive width of each; at least one.
        volume: at least 0.
    """
    filled, total_width = volume, 0
    for bottom, width in sorted(vessels):
        if total_width and filled <= bottom * total_width:
            break
        filled += bottom * width
        total_width += width
    return filled // total_width


def divisible_seconds(times: ExactTimes, num_shards: int) -> float:
    """When the last shard would arrive if shards could be divided at will; no assignment ends earlier, not by rounding either.

    Complexity: O(m log m) for m neighbours.
    """
    fine = [(offset << FINE_BITS, cost << FINE_BITS) for offset, cost in zip(times.offsets, times.costs, strict=True)]
    paid = [source for source in fine if source[1]]
    levels = [_divisible_level(paid, num_shards, FINE_BITS)] if paid else []
    return seconds(min(levels + [offset for offset, cost in fine if not cost]), times.shift + FINE_BITS)


def _safe_level(times: ExactTimes, num_shards: int) -> int:
    """A time in ticks up to which all completions together are at most `num_shards`, and nearly as many.

    A link that takes no time finishes any number of shards at its offset; the level stays below it.
    """
    sources = list(zip(times.offsets, times.costs, strict=True))
    paid = [source for source in sources if source[1]]
    levels = [_divisible_level(paid, num_shards)] if paid else []
    return min(levels + [offset - 1 for offset, cost in sources if not cost])


def _divisible_level(sources: Sequence[tuple[int, int]], num_shards: int, spare_bits: int = 0) -> int:
    """The water level of the module's first step, rounded down to a tick, over sources that take time: offsets and costs.

    Their inverses are rounded up, by less than one shard in all; with `spare_bits` by less than that part of one.
    """
    shift = (num_shards * max(cost for _, cost in sources) * len(sources)).bit_length() + 1 + spare_bits
    return water_level([(offset, -((-1 << shift) // cost)) for offset, cost in sources], num_shards << shift)
