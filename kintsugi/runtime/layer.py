"""One layer of a model, the unit that stages are cut at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a user says of one layer.

    `build` makes the module; its `forward` takes the tensors that the layer before it returned (none for the first layer)
    and, as keywords, the fields of the micro-batch named in `inputs`: tokens, masks, whatever skips stages. It returns
    a tensor or a tuple of tensors.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    """Own parameter name -> `layer.parameter` whose value it shares (an earlier or later layer's own parameter).

    A parameter that a module has under several names is called by the first of them here; the tie goes for all of them.
    """
