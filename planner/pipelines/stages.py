"""What single stages take at least, tabulated where one pipeline is asked about again and again; machine code."""

from typing import NamedTuple

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import borrowing, compiled
from planner.pipelines.bounds import Chain, Model, fits, flight_of, stage_parts


class Stages(NamedTuple):
    """Layers that each stage may hold below a ceiling: those of one stage and first layer stand together."""

    ranges: Ints
    """Where those of a stage and first layer begin and end, shape [stages, layers + 1, 2]."""
    stops: Ints
    """One past the last layer, ascending; this and what follows has shape [entries]."""
    through: Floats
    """Until the stage's last backward pass, in seconds."""
    back: Floats
    """From there to the end of the first stage's, in seconds."""
    after: Floats
    """What follows the stage's own, in seconds."""


@compiled
def stages_below(model: Model, chain: Chain, ceiling: float) -> Stages:
    """All that fits memory and is no bound above the ceiling whatever the first stage is followed by. O(stages * layers^2).

    Only where stages from the first on can lead, and the later ones can go on from.
    """
    both = model.forward + model.backward
    count, num_stages, size = len(both) - 1, len(chain.speeds), 0
    widest, is_reached = _widest(model, chain, ceiling), np.zeros((num_stages + 1, count + 1), dtype=np.bool_)
    lowest, ranges = _lowest_starts(both, widest), np.zeros((num_stages, count + 1, 2), dtype=np.int64)
    is_reached[0, 0] = True
    stops, parts = np.empty(4 * num_stages + count, dtype=np.int64), np.empty((4 * num_stages + count, 3))
    for stage in range(num_stages):
        for start in range(lowest[stage], count - num_stages + stage + 1):
            ranges[stage, start] = size
            if not is_reached[stage, start]:
                continue
            for stop in range(max(start + 1, lowest[stage + 1]), count - num_stages + stage + 2):
                if both[stop] - both[start] > widest[stage]:
                    break
                if not fits(model, chain, stage, start, stop):
                    continue
                through, back, after = stage_parts(model, chain, stage, start, stop)
                if through + max(back, after) <= ceiling:
                    if size == len(stops):
                        stops, parts = np.concatenate((stops, stops)), np.concatenate((parts, parts))
                    stops[size], parts[size, 0], parts[size, 1], parts[size, 2] = stop, through, back, after
                    is_reached[stage + 1, stop] = True
                    size += 1
            ranges[stage, start, 1] = size
    return Stages(ranges, stops[:size], parts[:size, 0], parts[:size, 1], parts[:size, 2])


@borrowing
def entry_bound(stages: Stages, entry: int, follow: float) -> float:
    """`stage_bound` of an entry."""
    return float(stages.through[entry] + max(stages.back[entry] + follow, stages.after[entry]))


@borrowing
def fill_bounds(stages: Stages, ceiling: float, follow: float, best: Floats) -> None:
    """Put the least greatest bound of the stages from one on, by its first layer, into `best`, up to a ceiling.

    Of all stages but the first, which is followed by so many seconds. Shape of `best`: [stages + 1, layers + 1].
    """
    num_stages, count = len(best) - 1, best.shape[1] - 1
    best[num_stages, count] = 0.0
    for stage in range(num_stages - 1, 0, -1):
        for start in range(stage, count - num_stages + stage + 1):
            least = np.inf
            for entry in range(stages.ranges[stage, start, 0], stages.ranges[stage, start, 1]):
                rest = best[stage + 1, stages.stops[entry]]
                if rest < least:
                    bound = entry_bound(stages, entry, follow)
                    if bound <= ceiling:
                        least = min(least, max(bound, rest))
            best[stage, start] = least


@compiled
def _lowest_starts(both: Floats, widest: Floats) -> Ints:
    """The first layer from which a stage and those after it, as wide as they can be, reach the end. Shape [stages + 1]."""
    num_stages, count = len(widest), len(both) - 1
    result, left = np.full(num_stages + 1, count), 0.0
    for stage in range(num_stages - 1, -1, -1):
        left += widest[stage]
        result[stage] = max(stage, np.searchsorted(both, both[-1] - left))
    return result


@compiled
def _widest(model: Model, chain: Chain, ceiling: float) -> Floats:
    """Passes at full speed that a stage can hold below a ceiling, whatever the others hold. Shape [stages].

    One micro-batch passes all layers and links. Beside that, the mean of two of the stage's waits (`waiting_seconds`) is free
    of what the stages below it hold.
    """
    num_stages, rest = len(chain.speeds), chain.rest
    way = (model.forward[-1] + model.backward[-1]) / chain.speeds.max() + 2.0 * (num_stages - 1) * model.least_delay
    result = np.full(num_stages, np.inf)
    for stage in range(num_stages):
        flight = flight_of(chain, stage)
        if chain.all_forward:
            times = 1.0 * rest
        elif rest >= flight:
            times = rest - 0.5 * (flight - 1)
        else:
            times = 0.5 * rest
        if times > 0.0:
            result[stage] = max(0.0, ceiling * (1 + 1e-9) - way) / times * chain.speeds[stage]
    return result
