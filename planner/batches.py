"""Micro-batches to pipelines: how many each takes so that all are through together."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence


def trim(
    caps: Mapping[tuple[int, int], int], num_microbatches: int, seconds: Callable[[int, int], float]
) -> Counter[tuple[int, int]]:
    """Reduce what pipelines could take within a target time to `num_microbatches` in all, the slowest first.

    Args:
        caps: how many pipelines of each (length, most micro-batches) there are, at least 1 micro-batch each.
        num_microbatches: to be distributed, at most what all can take together.
        seconds: time of a pipeline of a length with m micro-batches, not falling in m.

    Returns:
        How many pipelines of each (length, micro-batches) there are; ties go to the longest. Pipelines that are alike
        are reduced together: O(d log g) for g groups and d distinct micro-batch counts in all.
    """
    groups = Counter(caps)
    surplus = sum(count * times for (_, count), times in groups.items()) - num_microbatches
    queue = [(-seconds(length, count), -length, -count) for length, count in groups if count > 1]
    heapq.heapify(queue)
    while surplus > 0:
        _, length, count = (-item for item in heapq.heappop(queue))
        length, count = int(length), int(count)
        moved = min(surplus, groups[length, count])
        groups[length, count] -= moved
        if count > 2 and not groups[length, count - 1]:
            heapq.heappush(queue, (-seconds(length, count - 1), -length, 1 - count))
        groups[length, count - 1] += moved
        surplus -= moved
    return +groups


def distribute(
    num_pipelines: int, num_microbatches: int, seconds: Callable[[int, int], float], least: Sequence[int] = ()
) -> tuple[int, ...]:
    """Give every pipeline one micro-batch, then each further one to the pipeline that is through with it first.

    Greedy is exact here: times do not fall with the number of micro-batches. O(num_microbatches * log(num_pipelines)).

    Args:
        num_pipelines: that share them.
        num_microbatches: in all.
        seconds: time of a pipeline with so many.
        least: how many each gets at any rate, no more than greedily; one where nothing is said.
    """
    counts = list(least) or [1] * num_pipelines
    queue = [(seconds(k, counts[k] + 1), k) for k in range(num_pipelines)]
    heapq.heapify(queue)
    for _ in range(num_microbatches - sum(counts)):
        _, first = heapq.heappop(queue)
        counts[first] += 1
        heapq.heappush(queue, (seconds(first, counts[first] + 1), first))
    return tuple(counts)


def distribute_alike(
    groups: Sequence[Sequence[int]], num_microbatches: int, seconds: Callable[[int, int], float], least: Sequence[int]
) -> tuple[int, ...]:
    """`distribute` over pipelines of which those of a group take equally long: all of them get one more at once.

    Times rise with the number of micro-batches until they are infinite. O(pipelines + micro-batches of each beyond the least *
    groups * log(groups)).

    Args:
        groups: ascending numbers of pipelines.
        num_microbatches: in all.
        seconds: time of a pipeline of a group with so many.
        least: how many those of each group get at any rate, no more than greedily.
    """
    counts, takers = list(least), list[int]()
    left = num_microbatches - sum(len(group) * count for group, count in zip(groups, counts, strict=True))
    queue = [(seconds(g, count + 1), g) for g, count in enumerate(counts)]
    heapq.heapify(queue)
    while left and not takers:
        first, tied = queue[0][0], []
        while queue and queue[0][0] == first:
            tied.append(heapq.heappop(queue)[1])
        through = sorted(k for g in tied for k in groups[g])
        if math.isinf(first):
            takers = through[:1] * left
        elif len(through) > left:
            takers = through[:left]
        else:
            left -= len(through)
            for g in tied:
                counts[g] += 1
                heapq.heappush(queue, (seconds(g, counts[g] + 1), g))
    result = {k: count for group, count in zip(groups, counts, strict=True) for k in group}
    for k in takers:
        result[k] += 1
    return tuple(result[k] for k in range(len(result)))


def exchanged(shares: Sequence[int], seconds: Callable[[int, int], float]) -> tuple[int, ...]:
    """What `distribute` comes to, from shares that are near it: the nearer they are, the fewer times are asked for.

    Who is through last gives a micro-batch to whoever would be through with it first, as long as that is sooner.

    Args:
        shares: micro-batches of each pipeline, one at least.
        seconds: time of a pipeline with so many.
    """
    counts = list(shares)
    for _ in range(sum(counts)):  # fewer, unless times fall somewhere
        takes = min((seconds(k, count + 1), k) for k, count in enumerate(counts))
        gives = max(((seconds(k, count), k) for k, count in enumerate(counts) if count > 1), default=takes)
        if gives <= takes:
            break
        counts[gives[1]] -= 1
        counts[takes[1]] += 1
    return tuple(counts)
