"""Activation recomputation: what autograd saves in a forward pass is let go at once, and computed again when it is asked for.

Only inputs stay (Chen et al., Training deep nets with sublinear memory cost). `torch.utils.checkpoint` computes again for every
call of autograd, and the weight part of a split backward pass is one call per operation with a weight; here what was computed
again stays for as long as the graph asks for it, so that both parts together compute it once.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from kintsugi.core.errors import InvalidInputError

Tensors = tuple[Tensor, ...]
Forward = Callable[[Tensors], Tensors]

_proven: WeakSet[nn.Module] = WeakSet()
"""Modules that once gave the same output again."""


class Place:
    """Stands in the graph for a saved tensor; when the graph lets go of it, so does the recomputation."""

    is_read_once = False
    """Whether the recomputation may let go of it once it has been asked for."""


class _EnoughError(Exception):
    """Everything that was saved is there again; what the module computes after it nobody needs."""


def recomputed(
    run: Callable[[Tensors], Tensors], inputs: Tensors, *, module: nn.Module, name: str, device: torch.device
) -> Tensors:
    """A module's outputs, of which autograd keeps no more than the inputs.

    The first time that a module is computed again, its outputs are compared with the first ones, bit for bit.

    Args:
        run: the forward pass; it must give the same whenever the same inputs come, and so seeds what it draws from.
        inputs: its inputs.
        module: what `run` runs.
        name: of the module, for errors.
        device: that it computes on.

    Raises:
        InvalidInputError: later, in the backward pass: the module does not give the same again.
    """
    recomputation = _Recomputation(run, inputs, name, device)
    with saved_tensors_hooks(recomputation.let_go, recomputation.found):
        outputs = run(inputs)
    if module not in _proven:
        recomputation.expect(module, outputs)
    return outputs


class _Recomputation:
    """One forward pass that can be made again."""

    def __init__(self, run: Forward, inputs: Tensors, name: str, device: torch.device) -> None:
        self._run = run
        self._inputs = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs)
        self._versions = [tensor._version for tensor in inputs]
        self._name = name
        self._devices = [device] if device.type == "cuda" else []
        self._places: list[ref[Place]] = []
        self._tensors: WeakKeyDictionary[Place, tuple[Tensor, int]] = WeakKeyDictionary()
        """With the version that each had when it was saved."""
        self._expected: tuple[nn.Module, Tensors] | None = None

    def expect(self, module: nn.Module, outputs: Tensors) -> None:
        """Compare what comes next time; outputs without their graph, which holds this object."""
        self._expected = module, tuple(tensor.detach() for tensor in outputs)

    def let_go(self, _: Tensor) -> Place:
        """In the forward pass: what the graph holds in a tensor's place."""
        place = Place()
        self._places.append(ref(place))
        return place

    def found(self, place: Place) -> Tensor:
        """In the backward pass: the tensor of a place."""
        if place not in self._tensors:
            self._compute()
        tensor, version = self._tensors.pop(place) if place.is_read_once else self._tensors[place]
        if tensor._version != version:  # autograd looks only at what it keeps itself
            raise self._refused("changes in place what its own backward pass needs")
        return tensor

    def _compute(self) -> None:
        if [tensor._version for tensor in self._inputs] != self._versions:
            raise self._refused("changes its inputs in place")
        num_saved = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal num_saved
            bare = tensor.detach()  # with its graph an operation's own output would keep that graph for ever
            place = self._places[num_saved]() if num_saved < len(self._places) else None
            num_saved += 1
            if place is not None:
                self._tensors[place] = bare, bare._version
            if is_enough():
                raise _EnoughError
            return bare

        def is_enough() -> bool:
            return num_saved == len(self._places) and self._expected is None

        outputs: Tensors = ()
        try:
            with torch.random.fork_rng(self._devices), torch.enable_grad(), saved_tensors_hooks(keep, _same):
                outputs = self._run(self._inputs)
        except Exception:
            if not is_enough():  # TorchScript makes an error of its own of it
                raise
        if num_saved != len(self._places) or not self._is_expected(outputs):
            raise self._refused("did not compute the same again (it draws from a generator of its own, or keeps state)")

    def _is_expected(self, outputs: Tensors) -> bool:
        """Whether the outputs are the first ones; where they are, nobody looks at this module's again."""
        if self._expected is None:
            return True
        module, expected = self._expected
        if not all(map(_is_same, outputs, expected)):
            return False
        _proven.add(module)
        self._expected = None
        return True

    def _refused(self, why: str) -> InvalidInputError:
        return InvalidInputError(
            f"layer {self._name!r} {why}, so its activations cannot be recomputed; change the layer, or keep activations",
            field="recomputes_activations",
            value=self._name,
        )


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Equal numbers, or none at both."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124


def _same(tensor: Tensor) -> Tensor:
    return tensor
