"""What is asked of equal workers."""

from collections.abc import Callable
from dataclasses import dataclass

from estimator.costs import Costs
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.arranging.degrees import Degrees
from planner.pipelines.kinds import WorkerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualProblem:
    """Equal workers over equal links, and what is asked of them."""

    costs: Costs
    kind: WorkerKind
    num_workers: int
    num_microbatches: int
    allowed: Degrees
    schedule: Schedule
    link: LinkCost
    """The fastest between neighbouring stages, so that bounds hold."""
    reduction_link: Callable[[int], LinkCost]
    """The fastest that can pace a reduction over so many workers."""
