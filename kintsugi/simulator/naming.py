"""Names of workers: which of them may be exchanged, and plans under other names."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Reduction, Route, Stage


@dataclass(frozen=True)
class Twins:
    """Which pipelines of a plan are alike, so that it does not matter which of them is hit."""

    plan: Plan

    @cached_property
    def kind_of(self) -> tuple[object, ...]:
        """Equal for pipelines that may be exchanged; those that give or take micro-batches stand alone. Shape [pipelines]."""
        slots = self.plan.slots_of
        busy = {route.pipeline for route in self.plan.routes} | {slots[route.worker][0].pipeline for route in self.plan.routes}
        return tuple(
            index if index in busy else (p.num_microbatches, p.num_workers, tuple(s.layers for s in p.stages))
            for index, p in enumerate(self.plan.pipelines)
        )

    @cached_property
    def members(self) -> Mapping[object, tuple[int, ...]]:
        """Pipelines of each kind, in order."""
        result: dict[object, list[int]] = defaultdict(list)
        for index, kind in enumerate(self.kind_of):
            result[kind].append(index)
        return {kind: tuple(indices) for kind, indices in result.items()}

    def exchange(self, lost: Sequence[str]) -> dict[str, str]:
        """Names to exchange so that of alike pipelines the first ones are hit, by the stages they lose."""
        hit: dict[int, list[int]] = defaultdict(list)
        for name in lost:
            slot = self.plan.slots_of[name][0]
            hit[slot.pipeline].append(slot.stage)
        moved: dict[int, int] = {}
        taken: Counter[object] = Counter()
        for index in sorted(hit, key=lambda index: (sorted(hit[index]), index)):
            kind = self.kind_of[index]
            moved[index] = self.members[kind][taken[kind]]
            taken[kind] += 1
        return self._names(_closed(moved))

    def _names(self, moved: Mapping[int, int]) -> dict[str, str]:
        result = {}
        for source, target in moved.items():
            old, new = self.plan.pipelines[source].stages, self.plan.pipelines[target].stages
            for before, after in zip(old, new, strict=True):
                if before.worker is not None and after.worker is not None:
                    result[before.worker] = after.worker
        return result


def _closed(moved: Mapping[int, int]) -> dict[int, int]:
    """A permutation: whoever is displaced takes the place that a chain of moves leaves free."""
    result = dict(moved)
    back = {target: source for source, target in moved.items()}
    for target in moved.values():
        if target not in moved:
            free = target
            while free in back:
                free = back[free]
            result[target] = free
    return {source: target for source, target in result.items() if source != target}


def renamed_plan(plan: Plan, names: Mapping[str, str]) -> Plan:
    """The plan with other names for its workers."""
    return replace(
        plan,
        pipelines=tuple(
            Pipeline(
                num_microbatches=pipeline.num_microbatches,
                stages=tuple(
                    Stage(layer_start=s.layer_start, layer_stop=s.layer_stop, worker=None if s.worker is None else names[s.worker])
                    for s in pipeline.stages
                ),
            )
            for pipeline in plan.pipelines
        ),
        routes=tuple(
            Route(microbatch=r.microbatch, pipeline=r.pipeline, stage=r.stage, worker=names[r.worker]) for r in plan.routes
        ),
        rounds=tuple(
            tuple(
                Reduction(layers=r.layers, workers=tuple(names[worker] for worker in r.workers), num_bytes=r.num_bytes)
                for r in reductions
            )
            for reductions in plan.rounds
        ),
        idle_workers=tuple(IdleWorker(worker=names[idle.worker], reason=idle.reason) for idle in plan.idle_workers),
    )
