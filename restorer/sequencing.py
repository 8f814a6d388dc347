"""Orders of reductions whose workers reduce one at a time: each as soon as it can begin, or by branch and bound; machine code."""

from typing import NamedTuple

import numpy as np

from estimator.arrays import Floats, Ints, Mask
from estimator.compiled import borrowing, compiled


class Shop(NamedTuple):
    """Buckets to be reduced, as arrays."""

    conflicts: Mask
    """Whether two buckets share a worker, shape [buckets, buckets]."""
    stages: Mask
    """Which buckets each stage takes part in, shape [stages, buckets]."""
    seconds: Floats
    """That each takes, shape [buckets]."""
    ready: Floats
    """When each can begin at the earliest, shape [buckets]."""


@compiled
def end_seconds(shop: Shop, order: Ints) -> float:
    """End of the last reduction, each beginning as soon as its workers are through with their reductions before."""
    start, left = shop.ready.copy(), np.ones(len(order), dtype=np.bool_)
    result = 0.0
    for index in order:
        left[index] = False
        result = max(result, _take(shop, index, start, left))
    return result


@compiled
def soonest(shop: Shop) -> Ints:
    """Always one that can begin first; of those the one whose busiest stage has most left to reduce. Shape [buckets]."""
    size = len(shop.ready)
    start, left, order = shop.ready.copy(), np.ones(size, dtype=np.bool_), np.empty(size, dtype=np.int64)
    for place in range(size):
        chosen = -1
        for index in range(size):
            if left[index] and (chosen < 0 or _is_more_urgent(shop, start, left, index, chosen)):
                chosen = index
        order[place], left[chosen] = chosen, False
        _take(shop, chosen, start, left)
    return order


@compiled
def sooner_seconds(shop: Shop, order: Ints) -> float:
    """End of the last reduction in an order, or with each as soon as it can begin, whichever is sooner."""
    return min(end_seconds(shop, order), end_seconds(shop, soonest(shop)))


@compiled
def shortest(shop: Shop, least: float, most_looks: int) -> Ints:
    """An order that is through before `least` seconds, the first that is if it is not bettered; empty where none is found.

    Branch and bound over active schedules (Giffler and Thompson, 1960), exact where it ends within so many looks at buckets.
    """
    size, depth, is_new = len(shop.ready), 0, True
    best, path = np.empty(0, dtype=np.int64), np.empty(size, dtype=np.int64)
    start, end, left = np.empty((size + 1, size)), np.zeros(size + 1), np.ones(size, dtype=np.bool_)
    rivals, counts = np.empty((size + 1, size), dtype=np.int64), np.zeros(size + 1, dtype=np.int64)
    start[0] = shop.ready
    while depth >= 0:
        if is_new:
            counts[depth], is_new = 0, False
            if max(end[depth], _bound(shop, start[depth], left)) < least and most_looks > 0:
                if depth == size:
                    best, least = path.copy(), end[depth]
                else:
                    most_looks -= size - depth
                    counts[depth] = _rivals(shop, start[depth], left, rivals[depth])
        if counts[depth] == 0:
            depth -= 1
            if depth >= 0:
                left[path[depth]] = True
            continue
        counts[depth] -= 1
        path[depth] = rivals[depth, counts[depth]]
        left[path[depth]] = False
        start[depth + 1] = start[depth]
        end[depth + 1] = max(end[depth], _take(shop, path[depth], start[depth + 1], left))
        depth, is_new = depth + 1, True
    return best


@borrowing
def _take(shop: Shop, index: int, start: Floats, left: Mask) -> float:
    """Reduce a bucket: those left that share a worker with it begin after its end, which is returned."""
    end: float = start[index] + shop.seconds[index]
    for other in range(len(start)):
        if left[other] and shop.conflicts[index, other]:
            start[other] = max(start[other], end)
    return end


@borrowing
def _rivals(shop: Shop, start: Floats, left: Mask, result: Ints) -> int:
    """One of those begins first in every active schedule: the one that could end first, and what would hinder it; how many.

    The most urgent ones come last.
    """
    first, count = -1, 0
    for index in range(len(start)):
        if left[index] and (first < 0 or start[index] + shop.seconds[index] < start[first] + shop.seconds[first]):
            first = index
    limit = start[first] + shop.seconds[first]
    for index in range(len(start)):
        if index == first or (left[index] and shop.conflicts[first, index] and start[index] < limit):
            place = count
            while place > 0 and _is_more_urgent(shop, start, left, result[place - 1], index):
                result[place] = result[place - 1]
                place -= 1
            result[place], count = index, count + 1
    return count


@borrowing
def _is_more_urgent(shop: Shop, start: Floats, left: Mask, one: int, other: int) -> bool:
    """Whether one can begin before the other, or has more left on its busiest stage, or else comes later."""
    if start[one] != start[other]:
        return bool(start[one] < start[other])
    mine, its = _remaining(shop, left, one), _remaining(shop, left, other)
    return bool(mine > its or (mine == its and one > other))


@borrowing
def _remaining(shop: Shop, left: Mask, index: int) -> float:
    """What the busiest stage of a bucket has left to reduce, in seconds."""
    result = 0.0
    for stage in range(len(shop.stages)):
        if shop.stages[stage, index]:
            own = 0.0
            for other in range(len(left)):
                if left[other] and shop.stages[stage, other]:
                    own += shop.seconds[other]
            result = max(result, own)
    return result


@borrowing
def _bound(shop: Shop, start: Floats, left: Mask) -> float:
    """No stage is through with what is left before this."""
    result = 0.0
    for stage in range(len(shop.stages)):
        begin, own = np.inf, 0.0
        for index in range(len(left)):
            if left[index] and shop.stages[stage, index]:
                begin, own = min(begin, start[index]), own + shop.seconds[index]
        if begin < np.inf:
            result = max(result, begin + own)
    return result
