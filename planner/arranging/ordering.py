"""In which order the workers of a pipeline stand: the roomiest first, unless memory makes that long or impossible."""

from collections.abc import Iterator
from itertools import combinations
from math import inf

from estimator.arrays import Floats
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.partition import Partitioner, Split

MOST_WORKERS = 16
"""Of a job that is small."""

MOST_ORDERS, MOST_ORDERS_OF_MANY = 4096, 256
"""Of the pipelines of a small job, and of another, that are looked at beside those that are given or found to fit."""

MOST_ORDERS_EACH = 64
"""Of one pipeline."""

MOST_SHUFFLED = 8
"""Workers up to which a pipeline that fits in some order is told from one that does not."""

CLOSE = 2e-3
"""How far above what its workers could do with any memory a pipeline may stay without a look at other orders."""

BOUNDLESS_BYTES = 2**62
"""More than layers take, whatever is in flight."""

Kinds = tuple[WorkerKind, ...]

Ordered = tuple[Kinds, Split]
"""Workers of a pipeline, first stage first, and the best split for them."""


class Ordering:
    """Orders of the workers of a job's pipelines; stays with what is given once enough others were looked at."""

    def __init__(self, num_workers: int) -> None:
        self._left = MOST_ORDERS if num_workers <= MOST_WORKERS else MOST_ORDERS_OF_MANY

    def best(self, partitioner: Partitioner, given: Kinds, num_microbatches: int, tail: Floats) -> Ordered | None:
        """The workers as given, or in an order with a shorter objective where their memory differs; None where nothing fits.

        No proof of optimality.

        Args:
            partitioner: of the job's layers.
            given: the workers of a pipeline, first stage first.
            num_microbatches: that enter the pipeline.
            tail: reduction of the first n layers in seconds, shape [layers + 1].
        """
        best = _split(partitioner, given, num_microbatches, tail)
        if len({kind.usable_bytes for kind in given}) == 1:
            return best
        free = [WorkerKind(kind.speed_ratio, BOUNDLESS_BYTES) for kind in given]
        if best is not None and best[1].seconds <= partitioner.attain(free, num_microbatches, tail).seconds * (1 + CLOSE):
            return best
        fitting = partitioner.order_that_fits(given, num_microbatches)
        other = None if fitting is None else _split(partitioner, fitting, num_microbatches, tail)
        options = [option for option in (best, other) if option is not None]
        chosen = min(options, key=lambda option: option[1].seconds, default=None)
        return None if chosen is None else self._exchanged(partitioner, chosen, num_microbatches, tail)

    def _exchanged(self, partitioner: Partitioner, best: Ordered, num_microbatches: int, tail: Floats) -> Ordered:
        """Two workers exchange places as long as that helps, neighbours first."""
        seen, most = {best[0]}, min(self._left, MOST_ORDERS_EACH)
        is_better = True
        while is_better:
            is_better = False
            for order in _nearby(best[0]):
                if order in seen or len(seen) > most:
                    continue
                seen.add(order)
                other = _split(partitioner, order, num_microbatches, tail, best[1].seconds)
                if other is not None and other[1].seconds < best[1].seconds:
                    best, is_better = other, True
                    break
        self._left -= len(seen) - 1
        return best


def fits(partitioner: Partitioner, given: Kinds, num_microbatches: int) -> bool:
    """Whether layers are found to fit the memory of workers, in their order or, of few, in another."""
    if partitioner.fits(given, num_microbatches):
        return True
    return len(given) <= MOST_SHUFFLED and partitioner.order_that_fits(given, num_microbatches) is not None


def _split(partitioner: Partitioner, order: Kinds, num_microbatches: int, tail: Floats, below: float = inf) -> Ordered | None:
    """The best split for an order of workers; None where nothing fits, or no split has an objective below a time."""
    attained = partitioner.attain(order, num_microbatches, tail)
    split = partitioner.best(attained) if attained.seconds < below else None
    return None if split is None else (order, split)


def _nearby(order: Kinds) -> Iterator[Kinds]:
    """Orders in which two workers that differ have changed places, neighbours first."""
    pairs = sorted(combinations(range(len(order)), 2), key=lambda pair: pair[1] - pair[0])
    for i, k in pairs:
        if order[i] != order[k]:
            yield (*order[:i], order[k], *order[i + 1 : k], order[i], *order[k + 1 :])
