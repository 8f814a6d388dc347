"""The contiguous split whose greatest stage bound is least: a dynamic program over (stage, first layer), as machine code."""

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import borrowing, compiled
from planner.pipelines.bounds import Chain, Model, fits, follow_seconds, greatest_bound, stage_bound
from planner.pipelines.stages import Stages, entry_bound, fill_bounds, stages_below


@compiled
def minimax(model: Model, chain: Chain, known: Ints) -> tuple[float, Ints]:
    """The least greatest bound over all splits that fit memory, in seconds, and two splits that attain it.

    What follows the first stage depends on its layers, and all other stages' bounds on that: first stages are tried in the
    order of their bounds with the least that can follow, until none is left that could do better. The splits are
    stage boundaries, shape [2, stages + 1]: with the largest and with the smallest stages first. Infinite where nothing fits.
    O(stages * layers^2) for every first stage that is tried; a ceiling from a split by even time, or a known one, leaves far less.

    Args:
        model: layers.
        chain: what is asked of the pipeline.
        known: splits that were good for something similar, and may not fit; shape [splits, stages + 1].
    """
    count, num_stages = len(model.forward) - 1, len(chain.speeds)
    ceiling = even_ceiling(model, chain)
    for row in range(len(known)):
        ceiling = min(ceiling, greatest_bound(model, chain, known[row]))
    limit, follow = ceiling * (1 + 1e-12), follow_seconds(model, chain, 1)
    stages, best = stages_below(model, chain, limit), np.full((num_stages + 1, count + 1), np.inf)
    fill_bounds(stages, limit, follow, best)
    hopes, own = np.full(count + 1, np.inf), np.full(count + 1, np.inf)
    for entry in range(stages.ranges[0, 0, 0], stages.ranges[0, 0, 1]):
        stop = stages.stops[entry]
        own[stop] = entry_bound(stages, entry, 0.0)
        hopes[stop] = max(own[stop], best[1, stop])
    least, first, kept = np.inf, 0, best
    stop = int(hopes.argmin())
    if hopes[stop] < np.inf:
        splits = _traced(stages, best, (hopes[stop], stop), follow)
        greatest = max(greatest_bound(model, chain, splits[0]), greatest_bound(model, chain, splits[1]))
        if greatest <= hopes[stop] * (1 + 1e-12):
            return hopes[stop], splits
    while True:
        stop = int(hopes.argmin())
        if hopes[stop] >= least or hopes[stop] == np.inf:
            break
        hopes[stop] = np.inf
        table = np.full((num_stages + 1, count + 1), np.inf)
        fill_bounds(stages, min(limit, least), follow_seconds(model, chain, stop), table)
        if max(own[stop], table[1, stop]) < least:
            least, first, kept = max(own[stop], table[1, stop]), stop, table
    return least, _traced(stages, kept, (least, first), follow_seconds(model, chain, first))


@compiled
def even_ceiling(model: Model, chain: Chain) -> float:
    """The greatest stage bound of a split by even time: a ceiling for `minimax`; infinite where it does not fit memory."""
    both = model.forward + model.backward
    count, num_stages = len(both) - 1, len(chain.speeds)
    result, start, share, follow = 0.0, 0, 0.0, 0.0
    for stage in range(num_stages):
        share += both[-1] * chain.speeds[stage] / chain.speeds.sum()
        last = count - (num_stages - 1 - stage)
        stop = start + 1
        while stop < last and (stage > 0 or stop < chain.most_first) and both[stop + 1] + both[stop] <= 2 * share * (1 + 1e-9):
            stop += 1
        if stage == num_stages - 1:
            stop = count
        if not fits(model, chain, stage, start, stop):
            return np.inf
        follow = follow_seconds(model, chain, stop) if stage == 0 else follow
        result = max(result, stage_bound(model, chain, stage, (start, stop), follow))
        start = stop
    return result


@compiled
def _traced(stages: Stages, best: Floats, found: tuple[float, int], follow: float) -> Ints:
    """Two splits with this greatest bound and this first stage: the other stages as large, or as small, as the bound allows."""
    splits, limit = np.zeros((2, len(best)), dtype=np.int64), found[0] * (1 + 1e-12)
    if limit < np.inf:
        splits[:, 1] = found[1]
        _trace(stages, best, (limit, follow), splits[0], True)
        _trace(stages, best, (limit, follow), splits[1], False)
    return splits


@borrowing
def _trace(stages: Stages, best: Floats, limits: tuple[float, float], cuts: Ints, is_largest: bool) -> None:
    """Fill in the ends of a split's stages from the second on, within a limit when so many seconds follow the first stage."""
    limit, follow = limits
    for stage in range(1, len(cuts) - 1):
        start = cuts[stage]
        for entry in range(stages.ranges[stage, start, 0], stages.ranges[stage, start, 1]):
            if best[stage + 1, stages.stops[entry]] <= limit and entry_bound(stages, entry, follow) <= limit:
                cuts[stage + 1] = stages.stops[entry]
                if not is_largest:
                    break
