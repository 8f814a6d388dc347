"""One layer of a model, the unit that stages are cut at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError


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

    def __post_init__(self) -> None:
        checks.name("name", self.name)
        if isinstance(self.build, nn.Module):
            told = f"of layer {self.name!r} is a module; give what makes one, as its class"
            raise InvalidInputError(told, field="build", value=self.name)
        if not callable(self.build):
            told = f"of layer {self.name!r} is a {type(self.build).__name__}; give a function that makes a module"
            raise InvalidInputError(told, field="build", value=self.name)
        if isinstance(self.inputs, str) or not all(isinstance(name, str) for name in self.inputs):
            message = f"must be names of fields, as in inputs=('tokens',), not {self.inputs!r}"
            raise InvalidInputError(f"of layer {self.name!r} {message}", field="inputs", value=repr(self.inputs))
        checks.instance("tied", self.tied, Mapping, hint="say tied={'weight': 'embedding.weight'}")
