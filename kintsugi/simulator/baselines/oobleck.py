"""Oobleck: pipeline templates (Jang et al., SOSP 2023).

For every length from the shortest that fits memory to the longest that the job allows there is a template: the split of the
layers with the shortest pipeline that fits memory whatever its share of the micro-batches. A job begins with at least f + 1
pipelines, as far as its range and its workers allow them, that use all workers. A pipeline that loses workers takes the template of
its new length; below the shortest it borrows workers of the longest pipeline, and where nobody can lend it
merges with the shortest other one. Micro-batches follow the pipelines' times. Workers keep their order, and copy the layers
that they lack from replicas. Other pipelines are never arranged anew; when workers join, all are, if that pays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from estimator.costs import Costs
from kintsugi.core.errors import InfeasibleError, StateLostError
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import Pipeline, Plan, Policy, Stage
from kintsugi.simulator.baselines.common import is_hit, is_worthwhile, stay, with_idle
from kintsugi.simulator.baselines.constants import OOBLECK_FAULT_TOLERANCE
from kintsugi.simulator.baselines.templates import Template, distributed, pipeline_seconds, template
from kintsugi.simulator.job import Job
from kintsugi.simulator.running import Response, Running, StepPrice
from kintsugi.simulator.transitions import Survivors, finished, grid, migration_pause_seconds, priced, restart_pause_seconds
from planner.arranging.arrangement import Arrangement, PipelineShape
from planner.arranging.degrees import degrees
from planner.arranging.request import Request
from planner.placing.placement import Holdings
from planner.policies.found import Found
from planner.policies.reshaping import realise


@dataclass(frozen=True)
class Oobleck:
    """Templates for pipelines of every length."""

    job: Job
    name: str = "oobleck"
    fault_tolerance: int = OOBLECK_FAULT_TOLERANCE

    def start(self, snapshot: Snapshot) -> Running:
        """The scenario's grid where there are workers for it, else the fastest combination of templates."""
        first = self.job.first
        if first is not None and first.dp * first.pp == len(snapshot.alive):
            found = grid(snapshot, snapshot.alive, first.dp, first.pp, keeps_state=False, policy=Policy.FAULT_FREE)
            return self._running(found.plan, StepPrice.of(found.estimate))
        found = self._instantiated(snapshot, keeps_state=False)
        return self._running(with_idle(found.plan, snapshot.alive), StepPrice.of(found.estimate))

    def respond(self, snapshot: Snapshot) -> Response:
        """Other templates for the pipelines that were hit; all anew for arrivals; else from the last checkpoint."""
        if not is_hit(snapshot):
            return self._grow(snapshot)
        try:
            return self._recover(snapshot)
        except InfeasibleError:
            found = self._instantiated(snapshot, keeps_state=False)
            plan = with_idle(found.plan, snapshot.alive)
            running = self._running(plan, StepPrice.of(found.estimate))
            return Response(running=running, pause_seconds=restart_pause_seconds(self.job.profile), rolls_back=True)

    def _recover(self, snapshot: Snapshot) -> Response:
        lengths = self.lengths(len(snapshot.alive))
        crews = regrouped(_crews(snapshot), lengths)
        fewest = self.job.settings.ranges.min_dp
        if len(crews) < fewest:
            raise InfeasibleError(f"the job asks for {fewest} pipelines at least", field="dp", value=len(crews))
        plan = finished(self._named(crews, snapshot), snapshot, Policy.DYNAMIC_PARALLELISM)
        price = priced(plan, snapshot)
        pause = migration_pause_seconds(snapshot, plan)
        return Response(running=self._running(plan, StepPrice.of(price)), pause_seconds=pause)

    def _grow(self, snapshot: Snapshot) -> Response:
        assert snapshot.plan is not None
        present = self._running(snapshot.plan, StepPrice.of(priced(snapshot.plan, snapshot)))
        try:
            found = self._instantiated(snapshot, keeps_state=True)
        except StateLostError:
            return stay(present, snapshot)
        cost = found.estimate.reconfiguration_seconds
        seconds = (present.price.iteration_seconds, found.estimate.iteration_seconds)
        if not is_worthwhile(*seconds, cost, snapshot.settings.mtbf_seconds):
            return stay(present, snapshot)
        plan = with_idle(found.plan, snapshot.alive)
        return Response(running=self._running(plan, StepPrice.of(found.estimate)), pause_seconds=cost)

    def lengths(self, num_workers: int) -> range:
        """Lengths for which there are templates.

        Raises:
            InfeasibleError: not even one pipeline fits.
        """
        shortest = self._shortest
        if num_workers < shortest:
            raise InfeasibleError(f"a pipeline needs {shortest} workers", field="workers", value=num_workers)
        layers = self.job.profile.num_layers
        return range(shortest, min(self.job.settings.ranges.max_pp or layers, layers) + 1)

    @cached_property
    def _shortest(self) -> int:
        ranges, layers = self.job.settings.ranges, self.job.profile.num_layers
        for length in range(ranges.min_pp, min(ranges.max_pp or layers, layers) + 1):
            if self._template(length) is not None:
                return length
        raise InfeasibleError("no template fits memory", field="memory_bytes", value=self.job.profile.device.usable_bytes)

    def _template(self, length: int) -> Template | None:
        if length not in self._templates:
            self._templates[length] = template(self.job.profile, self._own(length), length)
        return self._templates[length]

    @cached_property
    def _templates(self) -> dict[int, Template | None]:
        return {}

    def _own(self, length: int) -> JobSettings:
        """Settings of one pipeline: its share of the micro-batches in the beginning, and more than it has workers.

        Further ones need no more memory (GPipe apart): a template fits whatever share its pipeline has once others are gone.
        """
        total = self.job.settings.num_microbatches
        dp = self.job.first.dp if self.job.first is not None else self.fault_tolerance + 1
        return replace(self.job.settings, num_microbatches=min(total, max(length + 1, total // dp)))

    def _instantiated(self, snapshot: Snapshot, *, keeps_state: bool) -> Found:
        """The fastest combination: for every number of pipelines, lengths that differ by one at most."""
        costs = Costs(snapshot.profile, snapshot.cluster)
        best: tuple[float, Arrangement] | None = None
        lengths = self.lengths(len(snapshot.alive))
        settings = self.job.settings
        allowed = degrees(settings.ranges, len(snapshot.alive), self.job.profile.num_layers, settings.num_microbatches).dp
        most = min(len(snapshot.alive) // lengths[0], allowed[-1])
        for dp in range(max(allowed[0], min(self.fault_tolerance + 1, most)), most + 1):
            sizes = [min(lengths[-1], (len(snapshot.alive) + dp - 1 - index) // dp) for index in range(dp)]
            arrangement = self._arranged(sizes, snapshot.alive, costs)
            if arrangement is not None and (best is None or arrangement.seconds < best[0]):
                best = arrangement.seconds, arrangement
        if best is None:
            raise InfeasibleError("no templates cover these workers", field="workers", value=len(snapshot.alive))
        held = Holdings(snapshot.plan, Survivors.of(snapshot).holding) if keeps_state else Holdings(None, ())
        request = Request(costs, snapshot.settings, snapshot.alive, held, snapshot.generation, Policy.DYNAMIC_PARALLELISM)
        return realise(request, best[1])

    def _arranged(self, sizes: Sequence[int], workers: Sequence[str], costs: Costs) -> Arrangement | None:
        templates = [self._template(size) for size in sizes]
        if any(item is None for item in templates):
            return None
        cuts = [item.cuts for item in templates if item is not None]
        shares = distributed(cuts, self.job.settings, costs, workers[0])
        shapes = tuple(PipelineShape(own, share) for own, share in zip(cuts, shares, strict=True))
        times = [
            pipeline_seconds(own, share, self.job.settings, costs, workers[0]) for own, share in set(zip(cuts, shares, strict=True))
        ]
        return Arrangement(shapes, max(times))

    def _named(self, crews: Sequence[Sequence[str]], snapshot: Snapshot) -> Plan:
        """Pipelines of the crews' lengths, workers in order."""
        templates = [self._template(len(crew)) for crew in crews]
        cuts = [item.cuts for item in templates if item is not None]
        if len(cuts) < len(crews):
            raise InfeasibleError("a template does not fit memory", field="memory_bytes", value=None)
        shares = distributed(cuts, self.job.settings, Costs(snapshot.profile, snapshot.cluster), crews[0][0])
        pipelines = tuple(
            Pipeline(
                num_microbatches=share,
                stages=tuple(Stage(layer_start=a, layer_stop=b, worker=w) for (a, b), w in zip(pairwise(own), crew, strict=True)),
            )
            for own, share, crew in zip(cuts, shares, crews, strict=True)
        )
        return Plan(generation=snapshot.generation, schedule=self.job.settings.schedule, pipelines=pipelines)

    def _running(self, plan: Plan, price: StepPrice) -> Running:
        interval = self.job.profile.recovery.checkpoint_interval_seconds
        return Running(plan=plan, price=price, checkpoint_interval_seconds=interval)


def _crews(snapshot: Snapshot) -> list[list[str]]:
    """Survivors by pipeline, in stage order; workers that hold nothing make the shortest crews longer that were hit."""
    assert snapshot.plan is not None
    own = Survivors.of(snapshot)
    crews = [
        [s.worker for s in pipeline.stages if s.worker in own.holding and s.worker is not None]
        for pipeline in snapshot.plan.pipelines
    ]
    hit = [crew for crew, pipeline in zip(crews, snapshot.plan.pipelines, strict=True) if len(crew) < len(pipeline.stages)]
    for worker in own.empty:
        min(hit, key=len).append(worker)
    return crews


def regrouped(crews: Sequence[Sequence[str]], lengths: range) -> list[list[str]]:
    """Crews that all have a length for which there is a template.

    A crew that is too short borrows from the longest, or merges with the shortest other one; what is more than the longest
    template takes is left out.

    Raises:
        InfeasibleError: the workers do not make one pipeline.
    """
    result = [list(crew) for crew in crews if crew]
    while result and len(short := min(result, key=len)) < lengths[0]:
        longest = max(result, key=len)
        if len(longest) > lengths[0]:
            short.append(longest.pop())
            continue
        result.remove(short)
        if not result:
            raise InfeasibleError(f"a pipeline needs {lengths[0]} workers", field="workers", value=len(short))
        min(result, key=len).extend(short)
    return [crew[: lengths[-1]] for crew in result]
