"""How many pipelines, and how long: the job's ranges with their defaults filled in."""

from dataclasses import dataclass

from kintsugi.core.errors import InfeasibleError, InvalidInputError
from kintsugi.core.job import Ranges


@dataclass(frozen=True, slots=True)
class Degrees:
    """Ranges with their defaults filled in."""

    dp: range
    pp: range


def degrees(ranges: Ranges, num_workers: int, num_layers: int, num_microbatches: int) -> Degrees:
    """Fill in and check the ranges.

    Raises:
        InvalidInputError: more pipelines are asked for than there are micro-batches.
        InfeasibleError: there are too few workers or layers for the ranges.
    """
    if ranges.min_dp > num_microbatches:
        raise InvalidInputError(
            f"asks for more pipelines than there are micro-batches ({num_microbatches}); every pipeline needs one",
            field="min_dp",
            value=ranges.min_dp,
        )
    if ranges.min_pp > num_layers:
        raise InvalidInputError(f"is more stages than the model has layers ({num_layers})", field="min_pp", value=ranges.min_pp)
    needed = ranges.min_dp * ranges.min_pp
    if needed > num_workers:
        raise InfeasibleError(
            f"{ranges.min_dp} pipelines of {ranges.min_pp} stages need {needed} workers; {num_workers} are left",
            field="workers",
            value=num_workers,
        )
    max_dp = min(ranges.max_dp or num_workers, num_workers // ranges.min_pp, num_microbatches)
    max_pp = min(ranges.max_pp or num_workers, num_workers, num_layers)
    return Degrees(dp=range(ranges.min_dp, max_dp + 1), pp=range(ranges.min_pp, max_pp + 1))
