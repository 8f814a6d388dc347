"""Whether state from a checkpoint or another worker is that of the layer that is to go on from it."""

from collections.abc import Mapping

from torch import Tensor

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.optimizer_state import are_alike
from restorer.packing import StateEntries, type_name

UPDATED_BY = "updated by"
"""Beside a parameter in a checkpoint: the kind of its optimizer; null where it was not trained."""

_ONE_OF_SEVERAL = "Combined"
"""What earlier versions wrote of every parameter where a layer had several optimizers."""


def require_fits(layer: str, own: StateEntries, arrived: StateEntries, kinds: Mapping[str, str | None]) -> None:
    """Refuse what could not be taken over exactly.

    Args:
        layer: name of the layer.
        own: its parameters and buffers, as they are built here.
        arrived: what is to be put into them.
        kinds: of the optimizers of its parameters, by their canonical names; null where one is not trained.

    Raises:
        InvalidInputError: parameters or buffers, their shapes or types, what is trained or the kind of optimizer differ.
    """
    written = {place: value for place, value in arrived.items() if place[1] != UPDATED_BY}
    for name, key in own | written:
        was, now = shape_and_type(written.get((name, key))), shape_and_type(own.get((name, key)))
        if was != now:
            raise _refused(layer, name, f"{key} {name!r} was {was} and is {now}")
    for name, kind in kinds.items():
        before = arrived.get((name, UPDATED_BY), kind)
        if before != _ONE_OF_SEVERAL and not are_alike(before, kind):
            raise _refused(layer, name, f"parameter {name!r} was {_trained(before)} and is {_trained(kind)}")


def _refused(layer: str, name: str, why: str) -> InvalidInputError:
    message = f"layer {layer!r} is not as it was when its state was written: {why}"
    return InvalidInputError(f"{message}; train on what there was, or begin anew in a new folder", field="layers", value=name)


def shape_and_type(value: Tensor | None) -> str:
    """Shape and type of a parameter or buffer, in words."""
    return "not there" if value is None else f"{tuple(value.shape)} {type_name(value.dtype)}"


def _trained(kind: str | None) -> str:
    return "not trained" if kind is None else f"trained by {kind.partition(' ')[0]}"
