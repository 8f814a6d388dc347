"""Which workers hold a parameter, who answers for it in the norm, and that its gradient is summed over all of them."""

from collections import defaultdict
from collections.abc import Sequence

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Plan, Reduction
from kintsugi.runtime.models import ModelShape


def holders_of_parameters(plan: Plan, shape: ModelShape) -> dict[str, frozenset[str]]:
    """Workers that hold each trained parameter, through any of the layers that share it."""
    holders: dict[str, set[str]] = defaultdict(set)
    for layer, names in enumerate(shape.parameters):
        for name in names:
            holders[name].update(plan.holders[layer])
    return {name: frozenset(workers) for name, workers in holders.items()}


def owned_parameters(worker: str, plan: Plan, shape: ModelShape) -> frozenset[str]:
    """Parameters whose share of the gradient norm this worker gives: those it is the first holder of, in slot order."""
    order = {member: index for index, member in enumerate(plan.workers)}
    holders = holders_of_parameters(plan, shape)
    return frozenset(name for name, workers in holders.items() if min(workers, key=order.__getitem__) == worker)


def require_reduced(plan: Plan, shape: ModelShape, reductions: Sequence[Reduction]) -> None:
    """Require that every parameter with several holders is reduced once, over all of them at least.

    Raises:
        InvalidInputError: one is not, so that replicas would drift apart unnoticed.
    """
    reduced: dict[str, list[frozenset[str]]] = defaultdict(list)
    for reduction in reductions:
        for name in {name for layer in reduction.layers for name in shape.parameters[layer]}:
            reduced[name].append(frozenset(reduction.workers))
    for name, workers in holders_of_parameters(plan, shape).items():
        if len(workers) > 1 and not (len(reduced[name]) == 1 and workers <= reduced[name][0]):
            groups = " and ".join(str(sorted(group)) for group in reduced[name]) or "nobody"
            raise InvalidInputError(
                f"parameter {name} is held by {sorted(workers)}, and the plan reduces it over {groups}; "
                "profile and job must name the same layers and ties",
                field="rounds",
                value=name,
            )
