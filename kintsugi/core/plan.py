"""What runs where: the plan, and the views of it that everybody needs."""

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.layout import IdleWorker, Pipeline, Policy, Reduction, Round, Route, Schedule, Slot, Stage
from kintsugi.core.profile import PYDANTIC_CONFIG

__all__ = ["IdleWorker", "Pipeline", "Plan", "Policy", "Reduction", "Round", "Route", "Schedule", "Slot", "Stage"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An execution plan: immutable, named by its generation."""

    __pydantic_config__ = PYDANTIC_CONFIG

    generation: int = 0
    policy: Policy = Policy.FAULT_FREE
    schedule: Schedule = Schedule.ONE_F_ONE_B
    pipelines: tuple[Pipeline, ...]
    routes: tuple[Route, ...] = ()
    rounds: tuple[Round, ...] = ()
    """Reductions of one round run at the same time: no worker takes part in two of them."""
    idle_workers: tuple[IdleWorker, ...] = ()

    def __post_init__(self) -> None:
        checks.non_negative("generation", self.generation)
        checks.not_empty("pipelines", self.pipelines)
        self._check_pipelines()
        checks.microbatches("pipelines", self.num_microbatches, len(self.pipeline_of))
        self._check_routes()
        self._check_rounds()
        self._check_idle()

    def _check_idle(self) -> None:
        taken = self.pipeline_of
        for index, idle in enumerate(self.idle_workers):
            if idle.worker in taken:
                raise InvalidInputError("is not idle: it holds a stage", field=f"idle_workers[{index}].worker", value=idle.worker)
        checks.distinct([idle.worker for idle in self.idle_workers], lambda index: f"idle_workers[{index}].worker")

    def _check_pipelines(self) -> None:
        seats = self._seats()
        names = [self.pipelines[p].stages[s].worker or "" for p, s in seats]
        checks.distinct(names, lambda index: "pipelines[{}].stages[{}].worker".format(*seats[index]))
        for index, pipeline in enumerate(self.pipelines):
            self._check_turns(pipeline, f"pipelines[{index}]")
            if pipeline.num_layers != self.num_layers:
                raise InvalidInputError(
                    f"holds {pipeline.num_layers} layers where pipelines[0] holds {self.num_layers}",
                    field=f"pipelines[{index}]",
                    value=pipeline.num_layers,
                )

    def _seats(self) -> list[tuple[int, int]]:
        """Pipeline and stage of every place that takes a worker of its own, and has one."""
        is_round = self.schedule.is_interleaved
        return [
            (p, s)
            for p, pipeline in enumerate(self.pipelines)
            for s, stage in enumerate(pipeline.stages[: self._lengths[p] if is_round else None])
            if stage.worker is not None
        ]

    def _check_turns(self, pipeline: Pipeline, field: str) -> None:
        """The stages of an interleaved pipeline go round its workers, dead ones included, some whole times."""
        num_workers = pipeline.num_workers
        if num_workers == len(pipeline.stages):
            return
        for s, stage in enumerate(pipeline.stages):
            expected = pipeline.stages[s % num_workers].worker
            if stage.worker != expected:
                raise InvalidInputError(
                    f"must be {expected or 'null'}: the stages go round the {num_workers} workers of the pipeline",
                    field=f"{field}.stages[{s}].worker",
                    value=stage.worker,
                )
        if len(pipeline.stages) % num_workers:
            raise InvalidInputError(
                f"must be a multiple of the {num_workers} workers that the stages go round",
                field=f"{field}.stages",
                value=len(pipeline.stages),
            )

    def _check_routes(self) -> None:
        for index, route in enumerate(self.routes):
            self._check_route(route, f"routes[{index}]")
        keys = [f"{route.pipeline}/{route.stage}/{route.microbatch}" for route in self.routes]
        checks.distinct(keys, lambda index: f"routes[{index}]")
        routed = set(keys)
        for slot in self.dead_slots:
            if any(f"{slot.pipeline}/{slot.stage}/{m}" not in routed for m in self.microbatches_of(slot.pipeline)):
                raise InvalidInputError(
                    "is dead, and not every micro-batch has a route around it",
                    field=f"pipelines[{slot.pipeline}].stages[{slot.stage}]",
                )

    def _check_route(self, route: Route, field: str) -> None:
        if not 0 <= route.pipeline < self.dp or not 0 <= route.stage < len(self.pipelines[route.pipeline].stages):
            raise InvalidInputError("names no slot of the plan", field=field, value=[route.pipeline, route.stage])
        slot = self.pipelines[route.pipeline].stages[route.stage]
        if slot.worker is not None or not self.holds(route.worker, slot):
            raise InvalidInputError(
                "must lead from a dead slot to a worker that holds its layers", field=f"{field}.worker", value=route.worker
            )
        if route.microbatch not in self.microbatches_of(route.pipeline):
            raise InvalidInputError("is no micro-batch of its pipeline", field=f"{field}.microbatch", value=route.microbatch)

    def _check_rounds(self) -> None:
        for r, reductions in enumerate(self.rounds):
            workers = [worker for reduction in reductions for worker in reduction.workers]
            checks.unique(f"rounds[{r}]", workers)
            for worker in workers:
                if worker not in self.pipeline_of:
                    raise InvalidInputError("is no worker of the plan", field=f"rounds[{r}]", value=worker)
            for n, reduction in enumerate(reductions):
                for index, layer in enumerate(reduction.layers):
                    if not 0 <= layer < self.num_layers:
                        message = f"is no layer of the plan; they are numbered from 0 to {self.num_layers - 1}"
                        raise InvalidInputError(message, field=f"rounds[{r}][{n}].layers[{index}]", value=layer)

    def amended(
        self,
        *,
        generation: int | None = None,
        policy: Policy | None = None,
        routes: tuple[Route, ...] | None = None,
        rounds: tuple[Round, ...] | None = None,
        idle_workers: tuple[IdleWorker, ...] | None = None,
    ) -> "Plan":
        """`dataclasses.replace` for what leaves every worker where it is: neither checked nor derived anew but for what changes."""
        changes = {"generation": generation, "policy": policy, "routes": routes, "rounds": rounds, "idle_workers": idle_workers}
        result = copy(self)
        result.__dict__.update({field: value for field, value in changes.items() if value is not None})
        checks.non_negative("generation", result.generation)
        if routes is not None:
            result.__dict__.pop("route_of", None)
            result._check_routes()
        if rounds is not None:
            result._check_rounds()
        if idle_workers is not None:
            result._check_idle()
        return result

    @property
    def dp(self) -> int:
        """Data-parallel degree: number of pipelines."""
        return len(self.pipelines)

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return self.pipelines[0].num_layers

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per step over all pipelines."""
        return sum(pipeline.num_microbatches for pipeline in self.pipelines)

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """Workers that hold a stage, in slot order."""
        return tuple(self.pipeline_of)

    @cached_property
    def pipeline_of(self) -> dict[str, int]:
        """The pipeline that each worker works in, in slot order."""
        return {
            stage.worker: index
            for index, pipeline in enumerate(self.pipelines)
            for stage in pipeline.stages
            if stage.worker is not None
        }

    @cached_property
    def stages_of(self) -> dict[str, tuple[Stage, ...]]:
        """The stages that each worker holds, ascending: one, or several of one pipeline under an interleaved schedule."""
        return {
            stage.worker: pipeline.stages[place::length]
            for pipeline, length in zip(self.pipelines, self._lengths, strict=True)
            for place, stage in enumerate(pipeline.stages[:length])
            if stage.worker is not None
        }

    @cached_property
    def layers_of(self) -> dict[str, tuple[int, ...]]:
        """The layers that each worker holds, ascending; workers that hold the same share one tuple."""
        ranges_of = {worker: tuple([stage.layers for stage in stages]) for worker, stages in self.stages_of.items()}
        layers = {ranges: tuple(chain.from_iterable(ranges)) for ranges in set(ranges_of.values())}
        return {worker: layers[ranges] for worker, ranges in ranges_of.items()}

    @cached_property
    def slots_of(self) -> dict[str, tuple[Slot, ...]]:
        """The slots that each worker holds, ascending: one, or several of one pipeline under an interleaved schedule."""
        return {
            stage.worker: tuple(Slot(pipeline=p, stage=s) for s in range(place, len(pipeline.stages), length))
            for p, (pipeline, length) in enumerate(zip(self.pipelines, self._lengths, strict=True))
            for place, stage in enumerate(pipeline.stages[:length])
            if stage.worker is not None
        }

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        """`num_workers` of every pipeline."""
        return tuple(pipeline.num_workers for pipeline in self.pipelines)

    @cached_property
    def dead_slots(self) -> tuple[Slot, ...]:
        """Slots without a worker, in order."""
        return tuple(
            Slot(pipeline=p, stage=s)
            for p, pipeline in enumerate(self.pipelines)
            for s, stage in enumerate(pipeline.stages)
            if stage.worker is None
        )

    @cached_property
    def holders(self) -> tuple[tuple[str, ...], ...]:
        """Workers that hold each layer, in slot order. Shape [layers][replicas]."""
        starts = sorted({stage.layer_start for pipeline in self.pipelines for stage in pipeline.stages})
        place_of = {start: place for place, start in enumerate([*starts, self.num_layers])}
        result: list[list[str]] = [[] for _ in starts]
        for worker, stages in self.stages_of.items():
            for stage in stages:
                for own in result[place_of[stage.layer_start] : place_of[stage.layer_stop]]:
                    own.append(worker)
        widths = [stop - start for start, stop in pairwise([*starts, self.num_layers])]
        alike = ((tuple(own),) * width for own, width in zip(result, widths, strict=True))
        return tuple(chain.from_iterable(alike))

    @cached_property
    def num_holders(self) -> tuple[int, ...]:
        """How many workers hold each layer. Shape [layers]."""
        result = [self.dp] * self.num_layers
        for slot in self.dead_slots:
            for layer in self.pipelines[slot.pipeline].stages[slot.stage].layers:
                result[layer] -= 1
        return tuple(result)

    @cached_property
    def _first_microbatches(self) -> tuple[int, ...]:
        firsts, total = [], 0
        for pipeline in self.pipelines:
            firsts.append(total)
            total += pipeline.num_microbatches
        return (*firsts, total)

    @cached_property
    def route_of(self) -> dict[tuple[int, int], str]:
        """Worker that takes (micro-batch, stage) of a dead slot."""
        return {(route.microbatch, route.stage): route.worker for route in self.routes}

    def microbatches_of(self, pipeline: int) -> range:
        """Numbers of the micro-batches that enter a pipeline."""
        return range(self._first_microbatches[pipeline], self._first_microbatches[pipeline + 1])

    def holds(self, worker: str, stage: Stage) -> bool:
        """Whether a worker holds all layers of a stage, of whichever pipeline it is."""
        return any(held.holds(stage) for held in self.stages_of.get(worker, ()))

    def worker_for(self, microbatch: int, pipeline: int, stage: int) -> str:
        """The worker that computes one stage of one micro-batch, by its slot or by its route."""
        return self.pipelines[pipeline].stages[stage].worker or self.route_of[microbatch, stage]

    def require_layers(self, num_layers: int) -> None:
        """Refuse this plan for a model of another number of layers.

        Raises:
            InvalidInputError: it holds more or fewer.
        """
        if self.num_layers != num_layers:
            message = f"holds {self.num_layers} layers where the profile has {num_layers}"
            raise InvalidInputError(message, field="plan", value=self.num_layers)

    def require_workers(self, known: Collection[str]) -> None:
        """Refuse this plan on a cluster that lacks workers of it.

        Raises:
            InvalidInputError: a worker of the plan is not `known`.
        """
        if unknown := next((worker for worker in self.workers if worker not in known), None):
            raise InvalidInputError("is a worker of the plan, but not of the cluster", field="plan", value=unknown)
