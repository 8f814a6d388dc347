"""In which order workers of unequal memory hold a pipeline's layers: machine code."""

import numpy as np

from estimator.arrays import Ints
from estimator.compiled import compiled
from planner.pipelines.bounds import Chain, Model, stage_peak_bytes


@compiled
def order_that_fits(model: Model, chain: Chain, sizes: Ints, counts: Ints) -> Ints:
    """An order of workers in which some split of the layers fits memory, as the size of each stage's; empty where there is none.

    Of each choice of workers that come first, all that they may hold together in any order. O(sizes * layers * choices) for
    each layer that a stage can hold.

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
    last = np.full((num_choices, num_layers + 1), -1)  # the size of the last worker by where it stops; -1 where none can
    starts = np.zeros((num_choices, num_layers + 1), dtype=np.int64)
    last[0, 0] = 0
    for choice in range(1, num_choices):
        used = choice // strides % (counts + 1)
        stage = used.sum() - 1
        for size in range(len(sizes)):
            if not used[size]:
                continue
            before = choice - strides[size]
            for start in range(stage, num_layers - num_stages + stage + 1):
                stop = start + 1 if last[before, start] >= 0 else num_layers + 1
                while stop <= num_layers - (num_stages - 1 - stage):
                    if stage_peak_bytes(model, chain.moments[stage], start, stop) > sizes[size]:
                        break
                    last[choice, stop], starts[choice, stop] = size, start
                    stop += 1
    order = np.empty(num_stages if last[-1, num_layers] >= 0 else 0, dtype=np.int64)
    choice, stop = num_choices - 1, num_layers
    for stage in range(len(order) - 1, -1, -1):
        order[stage] = last[choice, stop]
        choice, stop = choice - strides[order[stage]], starts[choice, stop]
    return order
