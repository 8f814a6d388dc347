"""What is asked of workers, equal or not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from estimator.costs import Costs
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LinkCost
from planner.arranging.degrees import Degrees
from planner.arranging.shared import Shared
from planner.pipelines.kinds import WorkerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked, whoever the workers are."""

    costs: Costs
    num_microbatches: int
    allowed: Degrees
    schedule: Schedule
    link: LinkCost
    """The fastest between neighbouring stages, so that bounds hold."""
    reduction_link: Callable[[int], LinkCost]
    """The fastest that can pace a reduction over so many workers."""
    shared: Shared = field(default_factory=Shared, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualProblem(Asked):
    """Equal workers over equal links, and what is asked of them."""

    kind: WorkerKind
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Asked):
    """Workers, equal or not, and what is asked of them."""

    kinds: Sequence[WorkerKind]
    """Of all workers that may be used."""

    def alike(self, num_workers: int, kind: WorkerKind) -> EqualProblem | None:
        """The same asked of so many workers of one kind; None where they are too few for the ranges."""
        dp, pp = self.allowed.dp, self.allowed.pp
        dp = range(dp.start, min(dp.stop, num_workers // pp.start + 1))
        pp = range(pp.start, min(pp.stop, num_workers + 1))
        if not dp or not pp:
            return None
        return EqualProblem(
            costs=self.costs,
            kind=kind,
            num_workers=num_workers,
            num_microbatches=self.num_microbatches,
            allowed=Degrees(dp, pp),
            schedule=self.schedule,
            link=self.link,
            reduction_link=self.reduction_link,
            shared=self.shared,
        )
