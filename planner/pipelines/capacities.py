"""How many layers the workers of an interleaved pipeline can hold at most: where these are too few, no split fits memory."""

from collections.abc import Sequence

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.layers import LayerSums

ROUNDING = 1e-9

TOO_MUCH = 1e30
"""Bytes of a further layer where a stage can have none."""

FIRST, INNER, LAST = range(3)
"""Stages: the one with layer 0, those between, and the one with the last layer."""


class Capacities:
    """Upper bounds from what layers need at least: nearly exact where all but the first and the last are equal."""

    def __init__(self, sums: LayerSums, num_replicas: int) -> None:
        """Tabulate, over all layer ranges that a stage may have, the least bytes of one layer and of each further one.

        Args:
            sums: of the profile's layers.
            num_replicas: holders of each layer.
        """
        bounds, activations = np.arange(sums.profile.num_layers + 1), np.array(sums.activations, dtype=np.int64)
        held = activations[None] - activations[:, None] + np.array(sums.entry_bytes, dtype=np.int64)[:, None]
        self._num_layers = len(bounds) - 1
        self._static, self._held = _least(sums.least_static_table(num_replicas)), _least(held)
        self._temporary = int(sums.temporary_table()[bounds[:-1], bounds[1:]].min())

    def suffice(self, moments: Ints, usable_bytes: Sequence[int]) -> bool:
        """Whether a split is not ruled out. O(moments * stages).

        A worker needs, with most activations held at any moment, room for a layer in each of its stages; what is left it fills
        with further layers where these need least. It holds no more than at the moment, or on the average of all, that allows
        the fewest.

        Args:
            moments: micro-batches that each worker holds in each stage, shape [workers, moments, stages per worker].
            usable_bytes: of the workers.
        """
        num_workers, _, num_virtual = moments.shape
        if num_workers * num_virtual <= LAST:
            return True
        counts = np.concatenate((moments, moments.mean(axis=1, keepdims=True)), axis=1)
        sorts = np.full((num_workers, 1, num_virtual), INNER)
        sorts[0, :, 0], sorts[-1, :, -1] = FIRST, LAST
        one, more = (self._static[sorts, further] + counts * self._held[sorts, further] for further in (0, 1))
        room = np.array(usable_bytes)[:, None] - self._temporary - one.sum(axis=2)
        if (room < 0).any():
            return False
        least = np.maximum(more.min(axis=2), ROUNDING)
        most = np.minimum(num_virtual + np.floor(room / least + ROUNDING).min(axis=1), self._num_layers)
        return bool(most.sum() >= self._num_layers)


def _least(table: Ints) -> Floats:
    """The least bytes of one layer, and of each further one, in `FIRST`, `INNER` and `LAST` stages. Shape [3, 2].

    Args:
        table: bytes of layers a..b-1, shape [layers + 1, layers + 1].
    """
    count = len(table) - 1
    inner = [min(np.diagonal(table[1:-1, 1:-1], length)) for length in range(1, count - 1)]
    rows = table[0, 1:], np.array(inner or [0]), table[::-1, -1][1:]
    return np.array([(row[0], ((row[1:] - row[0]) / np.arange(1, len(row))).min(initial=TOO_MUCH)) for row in rows])
