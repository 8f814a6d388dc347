"""Why nothing fits memory: which stage lacks how much in the roomiest split, and how many workers would do."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial

import numpy as np

from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from planner.arranging.knapsack import Worth, lengths_worth
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.partition import Partitioner

MOST_GRIDS = 32
"""Whose roomiest splits are looked at for an error."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """The stage that lacks most in the split whose greatest stage is smallest."""

    stage: int
    layer_start: int
    layer_stop: int
    peak_bytes: int


def least_peak(partitioner: Partitioner, num_layers: int, num_stages: int, num_microbatches: int) -> Shortage:
    """The greatest stage of the split that makes it smallest, in bytes. O(stages * layers^2)."""
    peaks = [partitioner.peak_table(stage, num_stages, num_microbatches) for stage in range(num_stages)]
    rest = [np.full(num_layers + 1, np.inf) for _ in range(num_stages + 1)]
    rest[num_stages][num_layers] = 0.0
    for stage in reversed(range(num_stages)):
        rest[stage] = np.maximum(peaks[stage], rest[stage + 1][None, :]).min(axis=1)
    stages, start = [], 0
    for stage in range(num_stages):
        stop = int(np.maximum(peaks[stage][start], rest[stage + 1]).argmin())
        stages.append(Shortage(stage, start, stop, int(peaks[stage][start, stop])))
        start = stop
    return max(stages, key=lambda item: (item.peak_bytes, -item.stage))


def memory_error(
    partitioner: Partitioner, kind: WorkerKind, *, num_layers: int, num_workers: int, num_microbatches: int, ranges: Ranges
) -> InfeasibleError:
    """The error for a job that fits no arrangement of its workers, the roomiest of which are of `kind`."""
    grids = _longest_grids(num_workers, num_layers, num_microbatches, ranges)
    splits = [(least_peak(partitioner, num_layers, pp, -(-num_microbatches // dp)), pp) for dp, pp in grids]
    worst, num_stages = min(splits, key=lambda split: split[0].peak_bytes)
    enough = _sufficient_workers(partitioner, kind, num_layers, num_microbatches, ranges)
    advice = (
        "no number of workers suffices within the ranges; use larger devices, more tensor parallelism or other ranges"
        if enough is None
        else f"the smallest sufficient number of workers is {enough}"
    )
    lacking = max(0, worst.peak_bytes - kind.usable_bytes)
    return InfeasibleError(
        f"in the roomiest split over {num_stages} stages, stage {worst.stage} lacks {lacking} bytes (layers "
        f"{worst.layer_start} to {worst.layer_stop - 1} need {worst.peak_bytes}, a worker has {kind.usable_bytes}); {advice}",
        field="memory_bytes",
        value=kind.usable_bytes,
    )


def _longest_grids(num_workers: int, num_layers: int, num_microbatches: int, ranges: Ranges) -> list[tuple[int, int]]:
    """Pipelines and their equal length: longer ones hold fewer layers in a stage, more of them fewer micro-batches at a time.

    Of every length the most pipelines, of equally many the longest, and of very many grids only some, the longest among them.
    """
    longest = min(num_workers // ranges.min_dp, ranges.max_pp or num_layers, num_layers)
    most = min(ranges.max_dp or num_microbatches, num_microbatches)
    grids: dict[int, int] = {}
    for pp in range(longest, min(ranges.min_pp, longest) - 1, -1):
        grids.setdefault(max(ranges.min_dp, min(num_workers // pp, most)), pp)
    found = list(grids.items())
    return found[:: -(-len(found) // MOST_GRIDS)]


def _sufficient_workers(
    partitioner: Partitioner, kind: WorkerKind, num_layers: int, num_microbatches: int, ranges: Ranges
) -> int | None:
    """Fewest workers whose pipelines fit, whatever their lengths and shares of the micro-batches; None where no number does."""
    first, longest = ranges.min_pp, min(ranges.max_pp or num_layers, num_layers)
    worth = np.array([partitioner.most_microbatches(length, kind, num_microbatches) for length in range(first, longest + 1)])
    if not worth.any():
        return None
    fewest = None
    least_dp = max(ranges.min_dp, -(-num_microbatches // int(worth.max())))
    for dp in range(least_dp, min(ranges.max_dp or num_microbatches, num_microbatches) + 1):
        limit = dp * longest if fewest is None else fewest - 1
        enough = partial(_hold, worth, first, dp, num_microbatches)
        if enough(limit):
            fewest = bisect_left(range(limit), True, lo=dp * first, key=enough)
    return fewest


def _hold(worth: Worth, first_length: int, dp: int, num_microbatches: int, num_workers: int) -> bool:
    """Whether `dp` pipelines of so many workers can hold all micro-batches."""
    return num_workers >= dp * first_length and len(lengths_worth(worth, first_length, num_workers, dp, num_microbatches)) > 0
