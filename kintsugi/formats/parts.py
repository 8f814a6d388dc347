"""Pipelines of a plan that other systems would describe in the same words."""

from collections.abc import Callable, Hashable, Iterator

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Pipeline, Plan


def require_whole(plan: Plan, system: str) -> None:
    """Require that every stage has a worker.

    Raises:
        InvalidInputError: a slot is dead, and other pipelines' workers stand in for it.
    """
    if plan.dead_slots:
        slot = plan.dead_slots[0]
        raise InvalidInputError(
            f"is dead and its micro-batches are rerouted, which {system} cannot express; export a plan without dead slots "
            f"(policy dynamic_parallelism)",
            field=f"pipelines[{slot.pipeline}].stages[{slot.stage}]",
        )


def alike(plan: Plan, key: Callable[[Pipeline], Hashable]) -> Iterator[tuple[tuple[int, ...], Pipeline]]:
    """Groups of pipelines with equal keys, in order: their indices, and the first of them."""
    groups: dict[Hashable, list[int]] = {}
    for index, pipeline in enumerate(plan.pipelines):
        groups.setdefault(key(pipeline), []).append(index)
    for indices in groups.values():
        yield tuple(indices), plan.pipelines[indices[0]]


def cuts(pipeline: Pipeline) -> tuple[int, ...]:
    """Where the stages end, and how many workers they go round: what tells layouts apart."""
    return (pipeline.num_workers, *(stage.layer_stop for stage in pipeline.stages))
