"""Micro-batches to pipelines: how many each takes so that all are through together."""

import heapq
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
