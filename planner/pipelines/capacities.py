"""How many layers the workers of an interleaved pipeline can hold at most: where these are too few, no split fits memory."""

from collections.abc import Sequence

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.layers import LayerSums
from estimator.moments import Moments

ROUNDING = 1e-9

TOO_MUCH = 1e30
"""Bytes of a further layer where a stage can have none."""

FIRST, INNER, LAST = range(3)
"""Stages: the one with layer 0, those between, and the one with the last layer."""


class Capacities:
    """Upper bounds from what layers need at least: nearly exact where all but the first and the last are equal."""

    def __init__(self, sums: LayerSums, num_replicas: int, taken_bytes: Ints) -> None:
        """Tabulate, over all layer ranges that a stage may have, the least bytes of one layer and of each further one.

        Args:
            sums: of the profile's layers.
            num_replicas: holders of each layer.
            taken_bytes: what a pass over layers [a, b) takes beyond what is kept, by kind; shape [kinds, layers + 1, layers + 1].
        """
        self._num_layers = sums.profile.num_layers
        self._static = _least(sums.least_static_table(num_replicas))
        self._held = _least_held(sums.activations, sums.entry_bytes)
        self._deferred = _least_held(sums.deferred, sums.deferred_entry_bytes)
        self._taken: Ints = np.diagonal(taken_bytes, offset=1, axis1=1, axis2=2).min(axis=1)

    def suffice(self, moments: Sequence[Moments], usable_bytes: Sequence[int]) -> bool:
        """Whether a split is not ruled out. O(moments * stages).

        A worker needs, with most kept at any moment, room for a layer in each of its stages; what is left it fills with further
        layers where these need least. It holds no more than at the moment, or on the average of all of a kind, that allows fewest.

        Args:
            moments: when each worker holds most, by kind.
            usable_bytes: of the workers.
        """
        num_workers, _, columns = moments[0].counts.shape
        if num_workers * columns // 2 <= LAST:
            return True
        most = [self._most_layers(own, np.array(usable_bytes)[:, None]) for own in moments]
        return bool(np.min(most, axis=0).sum() >= self._num_layers)

    def _most_layers(self, moments: Moments, usable_bytes: Ints) -> Floats:
        """That each worker can hold at most; -inf where it has no room for one in each of its stages. Shape [workers]."""
        num_workers, num_virtual = len(moments.counts), moments.counts.shape[2] // 2
        sorts = np.full((num_workers, 1, num_virtual), INNER)
        sorts[0, :, 0], sorts[-1, :, -1] = FIRST, LAST
        counts = np.concatenate((moments.counts, moments.counts.mean(axis=1, keepdims=True)), axis=1)
        held, put_off = counts[:, :, :num_virtual], counts[:, :, num_virtual:]
        one, more = (
            self._static[sorts, further] + held * self._held[sorts, further] + put_off * self._deferred[sorts, further]
            for further in (0, 1)
        )
        room = usable_bytes - self._taken[moments.kinds][:, None] - one.sum(axis=2)
        least = np.maximum(more.min(axis=2), ROUNDING)
        most = np.minimum(num_virtual + np.floor(room / least + ROUNDING).min(axis=1), self._num_layers)
        result: Floats = np.where((room < 0).any(axis=1), -np.inf, most)
        return result


def _least_held(sizes: Sequence[float], entries: Sequence[int]) -> Floats:
    """`_least` of what is kept of one micro-batch: of the first n layers, and of the input where a stage begins with one."""
    prefix = np.array(sizes, dtype=np.int64)
    return _least(prefix[None] - prefix[:, None] + np.array(entries, dtype=np.int64)[:, None])


def _least(table: Ints) -> Floats:
    """The least bytes of one layer, and of each further one, in `FIRST`, `INNER` and `LAST` stages. Shape [3, 2].

    Args:
        table: bytes of layers a..b-1, shape [layers + 1, layers + 1].
    """
    count = len(table) - 1
    inner = [min(np.diagonal(table[1:-1, 1:-1], length)) for length in range(1, count - 1)]
    rows = table[0, 1:], np.array(inner or [0]), table[::-1, -1][1:]
    return np.array([(row[0], ((row[1:] - row[0]) / np.arange(1, len(row))).min(initial=TOO_MUCH)) for row in rows])
