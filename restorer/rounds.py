"""Gradient reductions in rounds: layers with the same holders share a bucket, buckets that share a worker take turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from estimator.costs import Costs
from estimator.passes import Passes, passes_of
from kintsugi.core.plan import Plan, Reduction, Round
from kintsugi.core.profile import Profile
from restorer.buckets import Bucket, bucket_bytes, buckets_of, shape_of
from restorer.ordering import Rounds, few_rounds, short_rounds
from restorer.rings import along_fast_links

Order = Callable[[Sequence[Bucket], Sequence[int], Sequence[float], Sequence[float]], Rounds]
"""Rounds for buckets, their bytes, what each takes in seconds, and when each can begin."""


def colour_rounds(plan: Plan, profile: Profile, costs: Costs | None = None) -> tuple[Round, ...]:
    """All-reduce rounds for `plan`, in which no worker takes part in two reductions at once: few, then short ones.

    The paper colours layers (section IV-B); buckets of layers with the same holders are coloured here, for layers on
    exactly the same workers can be reduced in one message. Rounds of the last layers come first, for their gradients are
    ready first. Pipelines of one shape are coloured once: O(B^2) for B buckets and what it takes to name their workers.

    Args:
        plan: its pipelines say who holds which layer; its own rounds do not matter.
        profile: gradient bytes and ties; layers tied to each other are reduced over the holders of all of them.
        costs: of links; without them a reduction's workers stand in the order of their pipelines.
    """
    named = _Named.of(plan, profile)
    if costs is not None:
        named = named.along_fast_links(costs)
    return named.rounds(few_rounds(named.buckets, [reduction.num_bytes for reduction in named.reductions]))


def fastest_rounds(plan: Plan, costs: Costs, order: Order = short_rounds, *, passes: Passes | None = None) -> tuple[Round, ...]:
    """The rounds of `colour_rounds`, or others where those are through sooner.

    Args:
        plan: its own rounds do not matter where it has no routes; else they say in which order its passes are.
        costs: of its passes and reductions.
        order: how rounds are sought.
        passes: of the plan, where they are known.
    """
    named, ends = _Named.of(plan, costs.profile).along_fast_links(costs), (passes or passes_of(plan, costs)).last_seconds(plan)
    seconds = [costs.reduction_seconds(reduction) if len(reduction.workers) > 1 else 0.0 for reduction in named.reductions]
    ready = [_ready_seconds(reduction, plan, ends) for reduction in named.reductions]
    num_bytes = [reduction.num_bytes for reduction in named.reductions]
    return named.rounds(order(named.buckets, num_bytes, seconds, ready))


@dataclass(frozen=True, slots=True)
class _Named:
    """The buckets of a plan's pipelines and the reductions that they are."""

    buckets: Sequence[Bucket]
    reductions: Sequence[Reduction]

    @classmethod
    def of(cls, plan: Plan, profile: Profile) -> "_Named":
        shapes = [shape_of(pipeline) for pipeline in plan.pipelines]
        distinct = tuple(dict.fromkeys(shapes))
        index_of = {shape: index for index, shape in enumerate(distinct)}
        kinds = [index_of[shape] for shape in shapes]
        buckets = buckets_of(distinct, profile)
        return cls(buckets, [_reduction(bucket, plan, kinds, profile) for bucket in buckets])

    def along_fast_links(self, costs: Costs) -> "_Named":
        """The same with workers in the order of faster rings."""
        return replace(self, reductions=along_fast_links(self.reductions, costs))

    def rounds(self, order: Rounds) -> tuple[Round, ...]:
        """Rounds of reductions; what one worker holds alone is not reduced."""
        kept = (tuple(self.reductions[index] for index in own if len(self.reductions[index].workers) > 1) for own in order)
        return tuple(round_ for round_ in kept if round_)


def _ready_seconds(reduction: Reduction, plan: Plan, ends: Mapping[str, Sequence[float]]) -> float:
    """When the last of a reduction's workers is through with its layers."""
    if all(len(ends[worker]) == 1 for worker in reduction.workers):
        return max(ends[worker][0] for worker in reduction.workers)
    layers = frozenset(reduction.layers)
    return max(
        end
        for worker in reduction.workers
        for stage, end in zip(plan.stages_of[worker], ends[worker], strict=True)
        if not layers.isdisjoint(stage.layers)
    )


def _reduction(bucket: Bucket, plan: Plan, kinds: Sequence[int], profile: Profile) -> Reduction:
    workers = [
        worker
        for pipeline, kind in zip(plan.pipelines, kinds, strict=True)
        for stage in bucket.stages[kind]
        if (worker := pipeline.stages[stage].worker) is not None
    ]
    return Reduction(layers=bucket.layers, workers=tuple(workers), num_bytes=bucket_bytes(bucket, profile))
