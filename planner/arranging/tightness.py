"""Why no interleaved pipeline fits memory: which worker of the roomiest lacks how much, and how many workers would do."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from planner.pipelines.chunks import ChunkSplitter
from planner.pipelines.kinds import WorkerKind

FEWEST_VIRTUAL = 2
"""Stages per worker with which the fewest micro-batches are in flight."""

MOST_TRIED = 8
"""Numbers of pipelines for which workers are counted."""


@dataclass(frozen=True, slots=True)
class Tight:
    """A pipeline that does not fit memory."""

    cuts: tuple[int, ...]
    """Shape [stages + 1]."""
    kinds: tuple[WorkerKind, ...]
    """Of its workers, which its stages go round."""
    num_microbatches: int
    num_pipelines: int
    lacking_bytes: int
    """Of the worker that lacks most."""


def interleaved_memory_error(
    tight: Tight, splitter_of: Callable[[int], ChunkSplitter], *, num_layers: int, num_microbatches: int, ranges: Ranges
) -> InfeasibleError:
    """The error for a job that fits no interleaved arrangement.

    Args:
        tight: the pipeline that lacks least.
        splitter_of: splits for so many pipelines.
        num_layers: of the model.
        num_microbatches: of all pipelines.
        ranges: of the job.
    """
    length, place = len(tight.kinds), splitter_of(tight.num_pipelines).neediest(tight.cuts, tight.kinds, tight.num_microbatches)
    usable = tight.kinds[place].usable_bytes
    stages = range(place, len(tight.cuts) - 1, length)
    held = " and ".join(f"stage {stage} of layers {tight.cuts[stage]} to {tight.cuts[stage + 1] - 1}" for stage in stages)
    kind = max(tight.kinds, key=lambda kind: kind.usable_bytes)
    enough = _sufficient_workers(splitter_of, kind, num_layers, num_microbatches, ranges)
    advice = (
        "no number of workers that was tried suffices within the ranges"
        if enough is None
        else f"the smallest number of workers that was found to suffice is {enough}"
    )
    return InfeasibleError(
        f"of all interleaved pipelines that were tried the roomiest, of {length} workers, lacks {tight.lacking_bytes} bytes on the "
        f"worker that holds {held} (they need {usable + tight.lacking_bytes}, a worker has {usable}); {advice}; interleaving holds "
        "more micro-batches in flight than 1f1b, which may do with fewer",
        field="memory_bytes",
        value=usable,
    )


def _sufficient_workers(
    splitter_of: Callable[[int], ChunkSplitter], kind: WorkerKind, num_layers: int, num_microbatches: int, ranges: Ranges
) -> int | None:
    """Fewest equal workers whose pipelines of one length are found to fit; None where none are."""
    fewest: int | None = None
    longest = min(ranges.max_pp or num_layers, num_layers // FEWEST_VIRTUAL)
    most_dp = min(ranges.max_dp or num_microbatches, num_microbatches, ranges.min_dp + MOST_TRIED - 1)
    for dp in range(ranges.min_dp, most_dp + 1):
        lengths = range(ranges.min_pp, min(longest, longest if fewest is None else (fewest - 1) // dp) + 1)
        share, splitter = -(-num_microbatches // dp), splitter_of(dp)

        def fits(length: int, share: int = share, splitter: ChunkSplitter = splitter) -> bool:
            virtual = FEWEST_VIRTUAL if length > 1 else 1
            return splitter.fits((kind,) * length, virtual, share)

        if lengths and fits(lengths[-1]):
            fewest = dp * lengths[bisect_left(lengths, True, hi=len(lengths) - 1, key=fits)]
    return fewest
