"""What a layer takes of its device's memory, as the allocator counts it: what it keeps for its backward pass, and for how long."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kintsugi.runtime.measuring.allocator import MemoryMeter, Section
from kintsugi.runtime.models import Activations, Batch, TrainingJob, loss_of, run_layer, train_layer
from kintsugi.runtime.workers.backward import PassedStage
from kintsugi.runtime.workers.demands import norms, scale
from restorer.transport import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """One layer's, in bytes; a micro-batch at a time."""

    activation_bytes: int = 0
    """Kept from the forward to the backward pass."""
    entry_bytes: int = 0
    """What is kept of the input besides, where a stage begins with the layer."""
    temporary_bytes: int = 0
    """The most that a forward pass takes beyond what it keeps, or a backward pass beyond what was kept for it."""
    first_temporary_bytes: int = 0
    """The same of a step's first micro-batch, with the gradients that are made in it: none are there before."""
    deferred_bytes: int = 0
    """Kept from the input part of a backward pass to its weight part."""
    input_temporary_bytes: int = 0
    """The most that the input part takes beyond `activation_bytes`, with what it keeps for the weight part."""
    weight_temporary_bytes: int = 0
    """The most that the weight part takes beyond `deferred_bytes`; 0 where the backward pass cannot be split."""
    first_weight_temporary_bytes: int = 0
    """The same of a step's first weight part, with the gradients that are made in it."""
    optimizer_temporary_bytes: int = 0
    """The most that an update takes beyond what was there before."""
    is_divisible: bool = False
    """Whether the backward pass has parts."""


class GradientSource(torch.autograd.Function):
    """A scalar that stands for all that follows some outputs: it keeps none of them, and brings them random gradients.

    As in a stage, nobody but autograd holds those.
    """

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        """Remember shapes alone."""
        ctx.specs = [(tensor.shape, tensor.dtype, tensor.device) for tensor in outputs]
        return outputs[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        """Gradients of all outputs."""
        return tuple(torch.randn(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.specs)


def footprints(
    job: TrainingJob,
    modules: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer | None],
    boundaries: Sequence[tuple[TensorSpec, ...]],
    batch: Batch,
) -> list[Footprint]:
    """Run each layer forward and backward in the middle of a stage, whole and in parts, and update it once.

    Optimizer state is there before, and gradients are but for the first of the passes; they change.

    Args:
        job: whose layers these are.
        modules: of its layers. Shape [layers].
        optimizers: of its layers; None where nothing is trained. Shape [layers].
        boundaries: what enters each layer, and what leaves the last. Shape [layers + 1].
        batch: one micro-batch.
    """
    for module in modules:
        module.zero_grad(set_to_none=True)
    arrived: Activations = ()
    are_divisible = []
    with MemoryMeter(job.device) as meter:
        for index, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            entering = tuple(t.requires_grad_(spec.requires_grad) for t, spec in zip(arrived, boundaries[index], strict=True))
            run = partial(_root, job, index, module, batch)
            _first_pass(meter, run, module, entering, str(index))
            _pass(meter, run, entering, str(index))
            are_divisible.append(_parts(meter, run, entering, str(index)))
            module.zero_grad(set_to_none=True)
            _parts(meter, run, entering, f"first {index}")
            _complete_gradients(module)
            if optimizer is not None:
                with meter.section(f"update {index}"):
                    update(job, module, optimizer)
            with torch.no_grad():
                arrived = run_layer(job.layers[index], module, arrived, batch)
    return [_footprint(meter.sections, index, is_divisible=it) for index, it in enumerate(are_divisible)]


def update(job: TrainingJob, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What a step does to a layer once its gradients are there, as the executor does it: their norm, clipping, the optimizer."""
    take_norm(module)
    apply(job, module, optimizer)


def take_norm(module: nn.Module) -> None:
    """Its first part: the norms, which the host waits for, as one number of all layers, before anything is updated."""
    norms(_gradients(module))


def apply(job: TrainingJob, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The rest of it, which begins on a device that has nothing left to do."""
    if job.max_grad_norm is not None:
        scale(_gradients(module), 1.0)
    optimizer.step()


def _gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def _first_pass(
    meter: MemoryMeter, run: Callable[[Activations], Tensor | None], module: nn.Module, arrived: Activations, name: str
) -> None:
    """A forward and a backward pass of a module without gradients; afterwards all its parameters have them."""
    module.zero_grad(set_to_none=True)  # those that it shares, too
    root = run(tuple(tensor.clone() for tensor in arrived))
    with meter.section(f"first {name}"):
        if root is not None:
            torch.autograd.backward(root)
    _complete_gradients(module)


def _complete_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _pass(meter: MemoryMeter, run: Callable[[Activations], Tensor | None], arrived: Activations, name: str) -> None:
    """A forward and a backward pass whose inputs nobody holds who does not save them, and one forward pass whose inputs stay.

    The first is as between two layers of a stage, the other as at its beginning.
    """
    with meter.section(f"forward {name}"):
        root = run(tuple(tensor.clone() for tensor in arrived))
    with meter.section(f"backward {name}"):
        if root is not None:
            torch.autograd.backward(root)
    del root
    with meter.section(f"entered {name}"):
        inputs = tuple(tensor.clone() for tensor in arrived)
        kept = inputs, run(inputs)
    del inputs, kept


def _parts(meter: MemoryMeter, run: Callable[[Activations], Tensor | None], arrived: Activations, name: str) -> bool:
    """A forward pass as between two layers of a stage, and both parts of a backward pass; whether it has two."""
    root = run(tuple(tensor.clone() for tensor in arrived))
    passed = PassedStage.of(arrived, (), root)
    is_trained = root is not None
    del root
    with meter.section(f"input {name}"):
        if is_trained:
            passed.backward_input(())
    with meter.section(f"weight {name}"):
        if is_trained:
            passed.backward_weight()
    return passed.is_parted


def _root(job: TrainingJob, index: int, module: nn.Module, batch: Batch, inputs: Activations) -> Tensor | None:
    """A scalar to go back from, which keeps no output alive; None where nothing in the layer is trained or needs a gradient."""
    outputs = train_layer(job, index, module, inputs, batch, step=0, microbatch=0)
    if index + 1 == len(job.layers):
        return loss_of(job, outputs, batch)[0]
    return what_follows(outputs)


def what_follows(outputs: Activations) -> Tensor | None:
    """A scalar in the place of the layers behind some outputs and of the loss; None where no output needs a gradient."""
    wanted = [tensor for tensor in outputs if tensor.requires_grad]
    root: Tensor | None = GradientSource.apply(*wanted) if wanted else None  # type: ignore[no-untyped-call]
    return root


def _footprint(sections: Mapping[str, Section], index: int, *, is_divisible: bool) -> Footprint:
    first, forward, backward, entered = (sections[f"{part} {index}"] for part in ("first", "forward", "backward", "entered"))
    input_part, weight_part, first_weight = (sections[f"{part} {index}"] for part in ("input", "weight", "weight first"))
    update = sections.get(f"update {index}")
    return Footprint(
        activation_bytes=forward.kept_bytes,
        entry_bytes=max(entered.kept_bytes - forward.kept_bytes, 0),
        temporary_bytes=max(forward.rise_bytes - forward.kept_bytes, backward.rise_bytes),
        first_temporary_bytes=max(forward.rise_bytes - forward.kept_bytes, first.rise_bytes),
        deferred_bytes=max(forward.kept_bytes + input_part.kept_bytes, 0),
        input_temporary_bytes=input_part.rise_bytes,
        weight_temporary_bytes=weight_part.rise_bytes,
        first_weight_temporary_bytes=first_weight.rise_bytes,
        optimizer_temporary_bytes=update.rise_bytes if update is not None else 0,
        is_divisible=is_divisible,
    )
