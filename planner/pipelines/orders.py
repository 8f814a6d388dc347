"""In which order workers of unequal memory hold a pipeline's layers: machine code."""

import numpy as np

from estimator.arrays import Ints
from estimator.compiled import compiled
from planner.pipelines.bounds import Chain, Model, stage_peak_bytes


@compiled
def order_that_fits(model: Model, chain: Chain, sizes: Ints, counts: Ints) -> Ints:
    """An order of workers in which some split of the layers fits memory, as the size of each stage's; empty where there is none.

    Whichever workers come first, in the best order of these they hold as many layers as they can: less never helps those
    after them. O(sizes * layers * choices of workers).

    Args:
        model: layers.
        chain: what is asked of the pipeline; the memory of its workers does not count.
        sizes: distinct memories, in bytes.
        counts: how many workers have each, shape of `sizes`.
    """
    num_layers, num_stages = model.static_bytes.shape[0] - 1, counts.sum()
    strides = np.ones(len(sizes), dtype=np.int64)
    for size in range(1, len(sizes)):
        strides[size] = strides[size - 1] * (counts[size - 1] + 1)
    num_choices = strides[-1] * (counts[-1] + 1)
    reached, last = np.full(num_choices, -1), np.zeros(num_choices, dtype=np.int64)
    reached[0] = 0
    for choice in range(1, num_choices):
        used = choice // strides % (counts + 1)
        stage = used.sum() - 1
        for size in range(len(sizes)):
            start = reached[choice - strides[size]] if used[size] else -1
            stop = start
            while start >= 0 and stop < num_layers - (num_stages - 1 - stage):
                if stage_peak_bytes(model, chain.held[stage], chain.is_all[stage], start, stop + 1) > sizes[size]:
                    break
                stop += 1
            if stop > max(start, reached[choice]):
                reached[choice], last[choice] = stop, size
    order = np.empty(num_stages if reached[-1] == num_layers else 0, dtype=np.int64)
    choice = num_choices - 1
    for stage in range(len(order) - 1, -1, -1):
        order[stage] = last[choice]
        choice -= strides[last[choice]]
    return order
