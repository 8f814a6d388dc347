"""Rounds that came with a plan from outside: replicas stay equal where every gradient is summed once, over all that hold it."""

from collections.abc import Iterator

from estimator.costs import Costs
from kintsugi.core.errors import InvalidInputError, some
from kintsugi.core.plan import Plan, Reduction
from kintsugi.core.profile import Profile
from restorer.rounds import colour_rounds

WAY_OUT = "leave rounds out to have them made"


def with_rounds(plan: Plan, costs: Costs) -> Plan:
    """`plan` as it is where its rounds keep replicas equal, and with rounds of ours where it has none.

    Raises:
        InvalidInputError: it has others.
    """
    if not plan.rounds:
        return plan.amended(rounds=colour_rounds(plan, costs.profile, costs))
    require_summed(plan, costs.profile)
    return plan


def require_summed(plan: Plan, profile: Profile) -> None:
    """Require that a plan reduces each layer once, over all that hold it or a layer that shares its parameters.

    O(L * D) for L layers with D holders each.

    Raises:
        InvalidInputError: it does not, or tells other bytes than the profile.
    """
    reductions = {layer: (field, reduction) for field, layer, reduction in _reduced_layers(plan)}
    for group in profile.tie_groups:
        holders = {worker: layer for layer in reversed(group) for worker in plan.holders[layer]}
        for layer in group:
            if layer in reductions:
                _require_holders(*reductions[layer], layer, holders)
            elif len(holders) > 1:
                message = f"do not reduce layer {layer}, which {some(holders)} have to; {WAY_OUT}"
                raise InvalidInputError(message, field="plan.rounds", value=layer)
        _require_together(group, reductions)
    for field, reduction in reductions.values():
        _require_bytes(field, reduction, profile)


def _reduced_layers(plan: Plan) -> Iterator[tuple[str, int, Reduction]]:
    """Every layer with its reduction, and the field that this is.

    Raises:
        InvalidInputError: a layer stands twice.
    """
    seen: dict[int, str] = {}
    for r, reductions in enumerate(plan.rounds):
        for n, reduction in enumerate(reductions):
            field = f"plan.rounds[{r}][{n}]"
            for index, layer in enumerate(reduction.layers):
                if layer in seen:
                    message = f"is reduced by {seen[layer]} already; {WAY_OUT}"
                    raise InvalidInputError(message, field=f"{field}.layers[{index}]", value=layer)
                seen[layer] = field
                yield field, layer, reduction


def _require_holders(field: str, reduction: Reduction, layer: int, holders: dict[str, int]) -> None:
    """`holders`: who takes part, each with the layer that it holds."""
    workers = set(reduction.workers)
    for worker, held in holders.items():
        if worker not in workers:
            raise InvalidInputError(f"lack {worker}, which holds layer {held}; {WAY_OUT}", field=f"{field}.workers", value=worker)
    for worker in reduction.workers:
        if worker not in holders:
            message = f"hold {worker}, which has no part in layer {layer}; {WAY_OUT}"
            raise InvalidInputError(message, field=f"{field}.workers", value=worker)


def _require_together(group: tuple[int, ...], reductions: dict[int, tuple[str, Reduction]]) -> None:
    fields = {reductions[layer][0]: layer for layer in group if layer in reductions}
    if len(fields) > 1:
        (_, one), (field, other) = list(fields.items())[:2]
        message = f"must reduce layer {other} in one with layer {one}, for they share parameters; {WAY_OUT}"
        raise InvalidInputError(message, field=f"{field}.layers", value=other)


def _require_bytes(field: str, reduction: Reduction, profile: Profile) -> None:
    expected = sum(profile.layers[layer].gradient_bytes for layer in reduction.layers)
    if reduction.num_bytes != expected:
        message = f"must be {expected}, the gradient_bytes of its layers in the profile; {WAY_OUT}"
        raise InvalidInputError(message, field=f"{field}.num_bytes", value=reduction.num_bytes)
