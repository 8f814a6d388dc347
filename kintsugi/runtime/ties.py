"""Parameters that layers share: whose own a parameter is, and that ties name parameters that there are."""

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from kintsugi.core.errors import InvalidInputError, some
from kintsugi.runtime.layer import Layer

Parameters = Mapping[str, Tensor]
"""A layer's parameters by their names in its module; one that has several stands there under each, the first is its own."""


def owner_of(parameter: str, layers: Collection[str]) -> str:
    """The layer whose own parameter it is, by its canonical name (`layer.parameter`); empty where no layer is named so.

    Layers' names may have dots, too: the longest one that the parameter's name begins with counts.
    """
    owner = parameter.rpartition(".")[0]
    while owner and owner not in layers:
        owner = owner.rpartition(".")[0]
    return owner


def own_name(parameter: str, owner: str) -> str:
    """A parameter's name in its owner's module."""
    return parameter[len(owner) + 1 :]


def require_ties(layers: Sequence[Layer], parameters: Sequence[Parameters]) -> None:
    """Refuse ties of parameters that are not there, or that cannot be one.

    Args:
        layers: of the model.
        parameters: of each layer's module. Shape [layers].

    Raises:
        InvalidInputError: with the parameters that the layer has.
    """
    by_layer = {layer.name: own for layer, own in zip(layers, parameters, strict=True)}
    for layer, own in zip(layers, parameters, strict=True):
        _require_unambiguous(layer, own, by_layer)
        for name, target in layer.tied.items():
            owner = owner_of(target, by_layer)
            _require_there(layer, name, own, layer.name)
            _require_there(layer, own_name(target, owner), by_layer[owner], owner)
            _require_alike(layer, name, own[name], by_layer[owner][own_name(target, owner)])


def _require_unambiguous(layer: Layer, own: Parameters, layers: Collection[str]) -> None:
    for name in _first_names(own).values():
        canonical = f"{layer.name}.{name}"
        if name not in layer.tied and (other := owner_of(canonical, layers)) != layer.name:
            raise InvalidInputError(
                f"{canonical!r} could be a parameter of layer {layer.name!r} or of layer {other!r}: give one of them another name",
                field="layers",
                value=layer.name,
            )


def _require_there(layer: Layer, name: str, parameters: Parameters, owner: str) -> None:
    if name not in parameters:
        known = f"it has {some(parameters)}" if parameters else "it has none"
        raise InvalidInputError(
            f"layer {layer.name!r} has a tie that names {name!r}, which is no parameter of layer {owner!r}; {known}",
            field="tied",
            value=name,
        )
    if (first := _first_names(parameters)[id(parameters[name])]) != name:
        raise InvalidInputError(
            f"layer {layer.name!r} has a tie that names {name!r}, which layer {owner!r} has as {first!r}, too: say {first!r}, "
            "which goes for both",
            field="tied",
            value=name,
        )


def _first_names(parameters: Parameters) -> dict[int, str]:
    """By the identity of a parameter the first of its names, which it has everywhere but in its module."""
    first: dict[int, str] = {}
    for name, parameter in parameters.items():
        first.setdefault(id(parameter), name)
    return first


def _require_alike(layer: Layer, name: str, own: Tensor, owners: Tensor) -> None:
    target = layer.tied[name]
    if own.shape != owners.shape:
        why = f"are of different shapes, {tuple(own.shape)} and {tuple(owners.shape)}"
    elif own.requires_grad != owners.requires_grad:
        why = "cannot be one, for only one of them is trained: have both require a gradient, or none"
    else:
        return
    raise InvalidInputError(f"{layer.name}.{name} and {target}, which layer {layer.name!r} ties, {why}", field="tied", value=target)
