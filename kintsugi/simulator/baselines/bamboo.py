"""Bamboo: redundant computation (Thorpe et al., NSDI 2023).

Every worker holds its successor's layers too, and runs their forward pass for each micro-batch: first in its bubbles, beyond
them the step is longer. Pipelines are deeper by half, to hold the replicas. When a worker is lost its predecessor does both
stages' work (the first stage's goes to the second, which stands in for the paper's ring). A worker that does two stages' work,
or two neighbours at once, cannot be lost: the pipeline is given up, its survivors wait, and the others share its micro-batches.
As many full pipelines as there are workers for are made anew where that pays; without any pipeline left the job restarts from
its last checkpoint.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from estimator.goodput import rerouting_seconds
from kintsugi.core.decision import Estimate
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import Pipeline, Plan, Policy, Stage
from kintsugi.simulator.baselines.common import LiveGrids, first_grid, is_hit, is_worthwhile
from kintsugi.simulator.baselines.constants import BAMBOO_DEPTH_RATIO, BAMBOO_HIDES_FORWARD
from kintsugi.simulator.running import Response, Running
from kintsugi.simulator.transitions import Survivors, finished, grid_seconds, priced


@dataclass(frozen=True)
class Bamboo(LiveGrids):
    """Predecessors stand in at once."""

    name: str = "bamboo"
    depth_ratio: float = BAMBOO_DEPTH_RATIO
    hides_forward: bool = BAMBOO_HIDES_FORWARD

    def respond(self, snapshot: Snapshot) -> Response:
        """Predecessors take over, or all full pipelines anew."""
        if not is_hit(snapshot):
            return super().respond(snapshot)
        try:
            failover = self._taken_over(snapshot)
        except InfeasibleError:
            return super().respond(snapshot)
        try:
            anew = self.move(snapshot, *self.chosen(len(snapshot.alive)))
        except InfeasibleError:
            return failover
        times = failover.running.price.iteration_seconds, anew.running.price.iteration_seconds
        is_better = is_worthwhile(*times, anew.pause_seconds - failover.pause_seconds, snapshot.settings.mtbf_seconds)
        return anew if is_better and not anew.rolls_back else failover

    def first(self, num_workers: int) -> tuple[int, int]:
        """Pipelines of Bamboo's depth."""
        return self.chosen(num_workers)

    def chosen(self, num_workers: int) -> tuple[int, int]:
        """As many full pipelines as there are workers for and the job allows, be they fewer than it asks for: they are deeper.

        Raises:
            InfeasibleError: there are workers for none.
        """
        if num_workers < self.depth:
            raise InfeasibleError(f"a pipeline needs {self.depth} workers", field="workers", value=num_workers)
        settings = self.job.settings
        most = min(settings.ranges.max_dp or settings.num_microbatches, settings.num_microbatches)
        return min(num_workers // self.depth, most), self.depth

    @cached_property
    def depth(self) -> int:
        """Stages of a pipeline."""
        profile, settings = self.job.profile, replace(self.job.settings, num_microbatches=1)
        enough = profile.num_layers * settings.ranges.min_dp
        needed = self.job.first.pp if self.job.first is not None else first_grid(self.job, enough)[1]
        depth = min(math.ceil(self.depth_ratio * needed), profile.num_layers)
        while depth < profile.num_layers and grid_seconds(profile, settings, 1, depth) is None:
            depth += 1
        return depth

    def of(self, plan: Plan, price: Estimate, snapshot: Snapshot) -> Running:
        """A plan with its price, redundant forward passes included."""
        running = super().of(plan, price, snapshot)
        extra = redundant_seconds(price, hides_forward=self.hides_forward)
        return replace(running, price=replace(running.price, redundant_seconds=extra))

    def _taken_over(self, snapshot: Snapshot) -> Response:
        assert snapshot.plan is not None
        holding = Survivors.of(snapshot).holding
        crews = [taken_over(pipeline.stages, holding, self.depth) for pipeline in snapshot.plan.pipelines]
        whole = [stages for stages in crews if stages is not None]
        if not whole:
            raise InfeasibleError("no pipeline is left", field="alive", value=len(snapshot.alive))
        pipelines = _shared(whole, self.job.settings.num_microbatches)
        bare = Plan(generation=snapshot.generation, schedule=snapshot.plan.schedule, pipelines=pipelines)
        plan = finished(bare, snapshot, Policy.DATA_REROUTING)
        price = priced(plan, snapshot)
        return Response(running=self.of(plan, price, snapshot), pause_seconds=rerouting_seconds(snapshot.profile.recovery))


def redundant_seconds(price: Estimate, *, hides_forward: bool = BAMBOO_HIDES_FORWARD) -> float:
    """By how much redundant forward passes make a step longer: what does not fit into the bubbles of the busiest worker."""
    following = {(stage.pipeline, stage.stage - 1): stage.forward_seconds for stage in price.stages}
    longest = price.pipeline_seconds
    for stage in price.stages:
        own = stage.forward_seconds + stage.backward_seconds
        count = round(stage.busy_seconds / own) if own else 0
        redundant = count * following.get((stage.pipeline, stage.stage), 0.0)
        base = stage.busy_seconds if hides_forward else price.pipeline_seconds
        longest = max(longest, base + redundant)
    return longest - price.pipeline_seconds


def taken_over(stages: Sequence[Stage], holding: frozenset[str], depth: int) -> tuple[Stage, ...] | None:
    """A pipeline's stages after its losses; None where it cannot go on.

    Args:
        stages: before, some of them already joined: then there are fewer than `depth`.
        holding: workers that live with their state.
        depth: of a whole pipeline.
    """
    result = list(stages)
    for lost in [stage for stage in stages if stage.worker not in holding]:
        index = result.index(lost)
        heir = index - 1 if index else 1
        if len(stages) < depth or heir >= len(result) or result[heir].worker not in holding or result[heir] not in stages:
            return None
        first, second = sorted((index, heir))
        joined = Stage(layer_start=result[first].layer_start, layer_stop=result[second].layer_stop, worker=result[heir].worker)
        result[first : second + 1] = [joined]
    return tuple(result)


def _shared(crews: Sequence[Sequence[Stage]], num_microbatches: int) -> tuple[Pipeline, ...]:
    """Pipelines with as even shares as can be; shorter ones, which take longer, have the smaller ones."""
    base, rest = divmod(num_microbatches, len(crews))
    order = sorted(range(len(crews)), key=lambda index: (-len(crews[index]), index))
    larger = set(order[:rest])
    return tuple(Pipeline(num_microbatches=base + (i in larger), stages=tuple(crew)) for i, crew in enumerate(crews))
