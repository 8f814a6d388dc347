"""What a user's own functions give, checked where it comes in: an error names them and the way out, not an operation of torch."""

import inspect
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from multiprocessing.process import ORIGINAL_DIR  # type: ignore[attr-defined]
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pickle import PicklingError
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.combined import Combined
from restorer.transport import TensorSpec

RATE = "lr"
"""What a parameter group calls its learning rate."""


def require_importable(make_job: Callable[[], object]) -> None:
    """Refuse a function that worker processes cannot be given.

    Raises:
        InvalidInputError: it is a lambda, defined within another function or in what is no file, or this process is a worker
            that imports the script.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        message = 'workers import this script, and would train in their turn: call train under `if __name__ == "__main__":`'
        raise InvalidInputError(message, field="make_job")
    try:
        _require_file(bytes(ForkingPickler.dumps(make_job)))
    except (PicklingError, AttributeError, TypeError) as error:
        raise InvalidInputError(
            f"cannot be given to worker processes ({error}): define it at the top level of a module, with `def`",
            field="make_job",
            value=repr(make_job),
        ) from error


def _require_file(pickled: bytes) -> None:
    """Refuse a main module that workers need and cannot import.

    Raises:
        InvalidInputError: it was typed in, or read from standard input.
    """
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return
    file = getattr(main, "__file__", None)
    is_needed = b"__main__" in pickled if file is None else not Path(ORIGINAL_DIR or "", file).exists()
    if is_needed:
        message = "stands in what was typed in or read from standard input, which workers cannot import: write it into a file"
        raise InvalidInputError(message, field="make_job")


def stacked(samples: Sequence[Any]) -> dict[str, Tensor]:
    """Every field of some samples as one tensor. Each gains a leading dimension of len(samples).

    Raises:
        InvalidInputError: a sample is no mapping, lacks a field, or has one that is no tensor or of another shape.
    """
    for sample in samples:
        if not isinstance(sample, Mapping):
            kind = type(sample).__name__
            raise InvalidInputError(
                f"gives a {kind} as a sample; return a mapping of names to tensors, such as {{'input': ...}}",
                field="dataset",
                value=kind,
            )
    return {name: _field(name, samples) for name in dict.fromkeys(chain.from_iterable(samples))}


def _field(name: str, samples: Sequence[Mapping[str, Any]]) -> Tensor:
    tensors = [_tensor(name, sample) for sample in samples]
    if len(shapes := {tuple(tensor.shape) for tensor in tensors}) > 1:
        found = " and ".join(map(str, sorted(shapes)))
        raise InvalidInputError(
            f"gives {name!r} in shapes {found} within one micro-batch: pad or cut all samples to one shape",
            field="dataset",
            value=name,
        )
    return torch.stack(tensors)


def _tensor(name: str, sample: Mapping[str, Any]) -> Tensor:
    if name not in sample:
        raise InvalidInputError(f"gives a sample without {name!r}, which others have", field="dataset", value=name)
    try:
        return torch.as_tensor(sample[name])
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(sample[name]).__name__
        raise InvalidInputError(
            f"gives {name!r} as a {kind}, of which torch makes no tensor ({error}): give numbers, or leave it out",
            field="dataset",
            value=name,
        ) from error


_built: WeakSet[nn.Module] = WeakSet()
"""Modules with parameters or buffers that layers were built of."""


def built(name: str, build: Callable[[], object]) -> nn.Module:
    """The module of a layer.

    Raises:
        InvalidInputError: `build` makes none, one that it or another one made before, or one with complex numbers, sparse
            gradients, or parameters without a size.
    """
    module = build()
    if not isinstance(module, nn.Module):
        raise InvalidInputError(f"of layer {name!r} makes a {type(module).__name__}, no module", field="build", value=name)
    _require_new(name, module)
    _require_sizes(name, module)
    _require_real(name, module)
    _require_dense(name, module)
    return module


def _require_new(name: str, module: nn.Module) -> None:
    """Every process builds a layer several times, to look at it, to measure it, and to begin anew: each time as it is to begin."""
    for path, part in module.named_modules():
        if not part._parameters and not part._buffers:
            continue
        if part in _built:
            what = f"{path!r}, a module that" if path else "a module that"
            raise InvalidInputError(
                f"of layer {name!r} gives {what} was built before, for this layer or another one: give a new one each time, "
                "such as copy.deepcopy of a part of a model",
                field="build",
                value=name,
            )
        _built.add(part)


def _require_sizes(name: str, module: nn.Module) -> None:
    """What has its size from its first pass only is nothing that state could be moved into before."""
    for key, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise InvalidInputError(
                f"layer {name!r} makes {key!r} in its first pass: say its sizes when it is built (nn.Linear, not nn.LazyLinear)",
                field="layers",
                value=key,
            )


def _require_real(name: str, module: nn.Module) -> None:
    """The job's type of numbers is real; torch would drop the imaginary parts, with no more than a warning."""
    for what, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for key, tensor in tensors:
            if tensor.is_complex():
                raise InvalidInputError(
                    f"layer {name!r} has a complex {what}, {key!r}, whose imaginary part would be lost: "
                    f"keep both parts as real numbers (torch.view_as_real), and put them together in forward",
                    field="layers",
                    value=key,
                )


def _require_dense(name: str, module: nn.Module) -> None:
    """Gradients are summed over workers, and clipped, as they would be in one piece of memory."""
    for path, part in module.named_modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse:
            key = f"{path}.weight" if path else "weight"
            raise InvalidInputError(
                f"layer {name!r} has sparse gradients, of {key!r}: say sparse=False of its {type(part).__name__}",
                field="layers",
                value=key,
            )


def require_dense_gradients(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse gradients that hold some rows alone, of functions that `built` cannot see.

    Raises:
        InvalidInputError: with the parameter.
    """
    for name, parameter in parameters.items():
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise InvalidInputError(
                f"has a parameter with sparse gradients, {name!r}: say sparse=False of the function that looks it up",
                field="layers",
                value=name,
            )


def with_own_memory(module: nn.Module) -> nn.Module:
    """A module, each number of whose parameters and buffers has memory of its own: of what is expanded, one stands for many.

    The values stay. Nothing could be copied into such a tensor, as state that arrives is, nor could it be updated in place.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if is_expanded(tensor):
            tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    return module


def is_expanded(tensor: Tensor) -> bool:
    """Whether one number in memory stands for many."""
    if is_lazy(tensor) or tensor.layout is not torch.strided:  # neither has strides
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def output_tensors(output: object, name: str) -> tuple[Tensor, ...]:
    """A layer's output as a tuple of tensors.

    Raises:
        InvalidInputError: it is anything else.
    """
    tensors = (output,) if isinstance(output, Tensor) else output
    if isinstance(tensors, (tuple, list)) and all(isinstance(tensor, Tensor) for tensor in tensors):
        return tuple(tensors)
    kind = type(output).__name__
    if isinstance(output, (tuple, list)):
        kind += f" of {', '.join(type(one).__name__ for one in output)}"
    raise InvalidInputError(
        f"layer {name!r} returns a {kind}; return a tensor or a tuple of tensors from its forward", field="layers", value=name
    )


def as_announced(outputs: Sequence[Tensor], specs: Sequence[TensorSpec], name: str) -> tuple[Tensor, ...]:
    """A layer's outputs as they cross a boundary; the gradient of one that needs none this time comes, and goes nowhere.

    Raises:
        InvalidInputError: numbers, shapes or types of tensors depend on values or samples, or a gradient would not come.
    """
    found, expected = [(tuple(t.shape), t.dtype) for t in outputs], [(tuple(spec.shape), spec.dtype) for spec in specs]
    if found != expected:
        raise InvalidInputError(
            f"layer {name!r} returns {_shapes_and_types(found)} here and {_shapes_and_types(expected)} of the first sample: "
            f"all micro-batches must have the same shapes and types",
            field="layers",
            value=name,
        )
    if any(t.requires_grad and not spec.requires_grad for t, spec in zip(outputs, specs, strict=True)):
        raise InvalidInputError(
            f"layer {name!r} returns a tensor here that needs a gradient, and of the first sample one that needs none: "
            "have what it returns always depend on what is trained, if only times 0",
            field="layers",
            value=name,
        )
    return tuple(
        t.detach().requires_grad_() if spec.requires_grad and not t.requires_grad else t
        for t, spec in zip(outputs, specs, strict=True)
    )


def _shapes_and_types(tensors: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return ", ".join(f"{shape} {str(dtype).removeprefix('torch.')}" for shape, dtype in tensors) or "nothing"


def counted_loss(made: object) -> tuple[Tensor, Tensor]:
    """The loss of one micro-batch, and of how many a sum is (fp64): 1 where it is a mean.

    Raises:
        InvalidInputError: it is no single number with a gradient, or what it comes with is no number.
    """
    if not isinstance(made, tuple) or len(made) != 2:
        return _scalar_loss(made), torch.ones((), dtype=torch.float64)
    loss, count = made
    if isinstance(count, Tensor) and (count.dim() > 0 or count.requires_grad or count.is_complex()):
        what = f"a tensor of shape {tuple(count.shape)}" + (" with a gradient" if count.requires_grad else "")
    elif not isinstance(count, (Tensor, int, float)):
        what = f"a {type(count).__name__}"
    else:
        return _scalar_loss(loss), torch.as_tensor(count, dtype=torch.float64)
    raise InvalidInputError(
        f"returns a pair of which the second is {what}; return a sum and of how many tokens or samples it is", field="loss"
    )


def _scalar_loss(loss: object) -> Tensor:
    if not isinstance(loss, Tensor):
        why = f"returns a {type(loss).__name__}; return the tensor, without float() or .item()"
    elif loss.dim() > 0:
        why = f"returns a tensor of shape {tuple(loss.shape)}; return one number, such as its mean()"
    elif not loss.requires_grad:
        why = "returns a number without a gradient; compute it from the outputs, without detach(), and train a layer before it"
    else:
        return loss
    raise InvalidInputError(why, field="loss")


def optimizer_of(made: object) -> torch.optim.Optimizer:
    """What the job's optimizer function made: an optimizer, or several as one.

    Raises:
        InvalidInputError: that is no optimizer, one that computes the loss itself, or one with state that could not move.
    """
    if isinstance(made, (list, tuple)) and made:
        return Combined([optimizer_of(one) for one in made])
    if not isinstance(made, torch.optim.Optimizer):
        kind = type(made).__name__
        raise InvalidInputError(
            f"returns a {kind}; return a torch.optim.Optimizer of the parameters, or several", field="optimizer", value=kind
        )
    require_plain_steps(made)
    _require_movable(made)
    return made


def _require_movable(optimizer: torch.optim.Optimizer) -> None:
    """Refuse what changes with the steps elsewhere than where state moves from."""
    kind = type(optimizer).__name__
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise InvalidInputError(
            f"is {kind} under a schedule of torch.optim.lr_scheduler, which would begin anew where a layer moves: "
            "give learning_rate_factor, a function of the step",
            field="optimizer",
            value=kind,
        )
    if (name := _inner_optimizer(optimizer)) is not None:
        raise InvalidInputError(
            f"is {kind}, whose {name!r} is another optimizer, with state that would not move with the parameters: "
            "return all of them as a list, or share one state",
            field="optimizer",
            value=name,
        )


def _inner_optimizer(optimizer: torch.optim.Optimizer) -> str | None:
    """The attribute by which an optimizer holds others with state of their own; null where it holds none."""
    for name, value in vars(optimizer).items():
        held = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(one, torch.optim.Optimizer) and one.state is not optimizer.state for one in held):
            return name
    return None


def require_plain_steps(optimizer: torch.optim.Optimizer) -> None:
    """Require that an optimizer steps with the gradients that are there.

    Raises:
        InvalidInputError: it computes the loss again itself.
    """
    kind = type(optimizer).__name__
    try:
        inspect.signature(type(optimizer).step).bind(optimizer)  # of the class: schedules wrap that of the instance
    except TypeError as error:
        message = f"is {kind}, whose step() needs a closure: no worker can compute the loss of all again; take another, as AdamW"
        raise InvalidInputError(message, field="optimizer", value=kind) from error


def base_rates(optimizers: Iterable[torch.optim.Optimizer]) -> list[Any]:
    """The learning rates that a factor is for, of all groups.

    Raises:
        InvalidInputError: a group has none.
    """
    rates = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if RATE not in group:
                kind = type(optimizer).__name__
                raise InvalidInputError(
                    f"is a factor on {RATE!r}, which the parameter groups of {kind} do not have; leave it out (None)",
                    field="learning_rate_factor",
                    value=kind,
                )
            rates.append(group[RATE])
    return rates


def finite_factor(factor: Any, step: int, field: str = "learning_rate_factor") -> Any:
    """The factor on the learning rates in a step, or the learning rate itself.

    Raises:
        InvalidInputError: it is no finite number.
    """
    try:
        is_finite = math.isfinite(factor)
    except (TypeError, ValueError):
        is_finite = False
    if not is_finite:
        raise InvalidInputError(
            f"returns {factor!r} for step {step}; return a finite number for every step",
            field=field,
            value=repr(factor),
        )
    return factor
