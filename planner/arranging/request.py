"""What a new arrangement is asked for, and the search that answers."""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from estimator.costs import Costs
from estimator.goodput import (
    charged_goodput,
    goodput_samples_per_second,
    migration_seconds,
    restart_excess_seconds,
    throughput_samples_per_second,
)
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings
from kintsugi.core.plan import Policy
from planner.arranging.degrees import degrees
from planner.arranging.interleaving import InterleavedSearch
from planner.arranging.problem import Problem
from planner.arranging.search import EqualSearch
from planner.arranging.shared import Shared
from planner.arranging.shortage import memory_error
from planner.arranging.unequal import UnequalSearch
from planner.pipelines.kinds import WorkerKind, crews, kinds_of
from planner.placing.links import Links
from planner.placing.placement import Holdings

AnySearch = EqualSearch | UnequalSearch | InterleavedSearch


class Sided(Enum):
    """What becomes of arrangements by sides of slow links."""

    NOT = "not looked for"
    TOO = "looked for too"
    ALONE = "nothing else is placed"


@dataclass(frozen=True, slots=True)
class Request:
    """What a new arrangement is asked for."""

    costs: Costs
    settings: JobSettings
    workers: Sequence[str]
    """That may be used, in cluster order."""
    holdings: Holdings
    generation: int
    policy: Policy
    counted: WorkerKind | None = None
    """What each of the workers counts as while arrangements are looked for; None for what it is."""
    least_worth: float = -math.inf
    """What plans are worth no more than is of no use, for a better one is known; see `worth`."""
    charges_restarts: bool = True
    """Whether what a restart may cost at the next failure counts; see `worth`."""
    sided: Sided = Sided.TOO
    """Whether workers are dealt out side by side of slow links (`planner.arranging.siding`)."""
    searches: dict[Hashable, EqualSearch] = field(default_factory=dict, compare=False)
    """By what is asked of equal workers, whoever they are; requests that are made of each other share what these found out."""
    shared: Shared = field(default_factory=Shared, compare=False)
    """What they share, equal workers or not."""

    @property
    def kinds(self) -> tuple[WorkerKind, ...]:
        """What each of the workers counts as."""
        if self.counted is not None:
            return (self.counted,) * len(self.workers)
        return kinds_of(self.workers, self.costs.cluster, self.costs.profile)

    def worth(self, price: Estimate) -> float:
        """What arrangements are compared by, in samples per second; a first plan is judged by its step alone."""
        if not self._is_charged:
            return price.goodput_samples_per_second
        return charged_goodput(price, self.settings.mtbf_seconds)

    def worth_of_step(self, iteration_seconds: float, num_pipelines: int, moving_seconds: float = 0.0) -> float:
        """`worth` of such a step of so many pipelines without dead slots, when moving what must be moved takes so long."""
        settings, profile = self.settings, self.costs.profile
        throughput = throughput_samples_per_second(settings.num_microbatches, profile.microbatch_size, iteration_seconds)
        charged = self.expected_restart_seconds(num_pipelines)
        if self.holdings.plan is not None:
            charged += migration_seconds(profile.recovery, moving_seconds)
        return goodput_samples_per_second(throughput, charged, settings.mtbf_seconds)

    def expected_restart_seconds(self, num_pipelines: int) -> float:
        """`estimator.goodput.expected_restart_seconds` of an arrangement without dead slots: only a single pipeline risks any."""
        return restart_excess_seconds(self.costs.profile) if num_pipelines == 1 and self._is_charged else 0.0

    @property
    def _is_charged(self) -> bool:
        return self.charges_restarts and self.policy is not Policy.FAULT_FREE


def counted_alike(request: Request) -> Iterator[Request]:
    """The same asked of all workers, and without the slowest or smallest, where each counts as the worst of those that are left.

    What is planned for so many equal workers suits better ones as well. Nothing comes of equal workers.
    """
    kinds = request.kinds
    if len(set(kinds)) > 1:
        for crew in map(set, crews(kinds)):
            worst = WorkerKind(min(kind.speed_ratio for kind in crew), min(kind.usable_bytes for kind in crew))
            workers = tuple(worker for worker, kind in zip(request.workers, kinds, strict=True) if kind in crew)
            yield replace(request, workers=workers, counted=worst)


def search_for(request: Request, *, is_spread: bool = True) -> AnySearch:
    """The search that fits the schedule and the workers.

    Args:
        request: what is asked for.
        is_spread: replicas of a layer are on different hosts, so that every reduction leaves its host.

    Raises:
        InfeasibleError: there are too few workers or layers for the ranges.
    """
    profile, settings = request.costs.profile, request.settings
    allowed = degrees(settings.ranges, len(request.workers), profile.num_layers, settings.num_microbatches)
    kinds = request.kinds
    links = Links(request.workers, request.costs)
    reduction_link = links.pacing_apart if is_spread else links.pacing
    problem = Problem(
        costs=request.costs,
        kinds=kinds,
        num_microbatches=settings.num_microbatches,
        allowed=allowed,
        schedule=settings.schedule,
        link=links.fastest,
        reduction_link=reduction_link,
        shared=request.shared,
    )
    if settings.schedule.is_interleaved:
        return InterleavedSearch(problem)
    if len(set(kinds)) > 1:
        return UnequalSearch(problem)
    key = kinds, allowed, settings.schedule, links.fastest, links.joining, None if is_spread else links.most_per_host
    if key not in request.searches:
        equal = problem.alike(len(kinds), kinds[0])
        assert equal is not None
        request.searches[key] = EqualSearch(equal)
    return request.searches[key]


def shortage(request: Request, search: AnySearch) -> InfeasibleError:
    """Why nothing fits memory."""
    if isinstance(search, InterleavedSearch):
        return search.shortage(request.settings.ranges)
    profile, ranges, kinds = request.costs.profile, request.settings.ranges, request.kinds
    replicas = profile.optimizer_shards(ranges.min_dp)
    return memory_error(
        search.partitioner(replicas),
        max(kinds, key=lambda kind: kind.usable_bytes),
        num_layers=profile.num_layers,
        num_workers=len(kinds),
        num_microbatches=request.settings.num_microbatches,
        ranges=ranges,
    )
