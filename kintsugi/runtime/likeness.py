"""What a worker tells of its job, and how the jobs of two workers differ: who would train another one must not take part.

What may differ from worker to worker is left out: the device and what follows from it, how samples are read, whether activations
are computed again, and functions (the loss, the factor on the learning rate), of which nothing can be told.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from kintsugi.runtime.combined import updater_of
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import ModelShape, NamedParameters, TrainingJob, canonical_name, optimizer_for
from restorer.packing import type_name
from restorer.transport import TensorSpec

Traits = Mapping[str, str]
"""What has to be the same for all workers of a job: what it is called, and how it is, in words."""

_MOST_TOLD = 3
"""Differences; the others are counted."""
_OPTIMIZER = "optimizer of "
_OF_DEVICES = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""What parameter groups hold beside hyperparameters."""


def traits(job: TrainingJob, shape: ModelShape) -> Traits:
    """Everything that a job's numbers follow from, as far as it can be told."""
    told = {name: str(getattr(job, name)) for name in ("num_microbatches", "microbatch_size", "num_steps", "seed", "max_grad_norm")}
    told |= {"dtype": type_name(job.dtype), "number of samples": str(len(job.dataset))}
    for index, layer in enumerate(job.layers):
        told |= _of_layer(layer, index, shape)
    for shapes in shape.parameters:
        told |= _of_optimizer(job, shapes)
    return told


@dataclass(slots=True)
class Pattern:
    """The job as the first worker told it, beside which all others are held."""

    _first: str = ""
    _traits: Traits = field(default_factory=dict)

    def differences(self, worker: str, theirs: Traits) -> str:
        """How a worker's job differs, in words; empty where it does not, or where nobody told of one before."""
        if not self._first:
            self._first, self._traits = worker, theirs
        found = differences(theirs, self._traits)
        return found and f"unlike that of {self._first}: {found}"


def differences(theirs: Traits, ours: Traits) -> str:
    """How a worker's job differs from that of the others, in words; empty where it does not."""
    found = list(_differences(theirs, ours))
    left = len(found) - _MOST_TOLD
    return "; ".join(found[:_MOST_TOLD]) + (f"; and {left:,} more" if left > 0 else "")


def _differences(theirs: Traits, ours: Traits) -> Iterator[str]:
    for name in dict.fromkeys([*ours, *theirs]):
        if name.startswith(_OPTIMIZER) and (name not in theirs or name not in ours):
            continue  # its parameter is told, or it could not be made here or there
        if name not in theirs:
            yield f"{name} is missing"
        elif name not in ours:
            yield f"{name} ({theirs[name]}) is not known to the others"
        elif theirs[name] != ours[name]:
            yield f"{name} is {theirs[name]}, not {ours[name]}"


def _of_layer(layer: Layer, index: int, shape: ModelShape) -> Traits:
    told = {f"layer {layer.name}": f"number {index}, takes {', '.join(layer.inputs) or 'no fields'}"}
    told[f"output of layer {layer.name}"] = ", ".join(map(_tensor, shape.boundaries[index + 1]))
    for name, spec in shape.tensors[index].items():
        tie = f", tied to {canonical_name(layer, name)}" if name in layer.tied else ""
        told[f"{layer.name}.{name}"] = _tensor(spec) + tie
    return told


def _of_optimizer(job: TrainingJob, shapes: Mapping[str, tuple[int, ...]]) -> Traits:
    """How each of a layer's parameters is updated; nothing where the optimizer cannot be made of parameters without values."""
    value = torch.zeros((), device=job.device, dtype=job.dtype)
    parameters: NamedParameters = [(name, nn.Parameter(value.expand(shape))) for name, shape in shapes.items()]
    if not parameters:
        return {}
    try:
        optimizer = optimizer_for(job, parameters)
    except Exception:  # the user's code: told to the user when it is called with the parameters themselves
        return {}
    kinds = {
        id(one): text
        for group in optimizer.param_groups
        if group["params"]
        for text in [group_told(updater_of(optimizer, group["params"][0]) or optimizer, group)]
        for one in group["params"]
    }
    return {f"{_OPTIMIZER}{name}": kinds.get(id(one), "none") for name, one in parameters}


def group_told(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> str:
    """An optimizer's class and the hyperparameters of one of its groups, in words."""
    values = ", ".join(f"{name}={worded(value)}" for name, value in sorted(group.items()) if name not in _OF_DEVICES)
    return sys.intern(f"{type(optimizer).__name__}({values})")  # told once for all its parameters


def worded(value: object) -> str:
    """A hyperparameter in words that are the same in every process; of tensors of several numbers their form."""
    if isinstance(value, Tensor):
        return worded(value.item()) if value.numel() == 1 else f"{type_name(value.dtype)} of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(worded, value))})"
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def _tensor(spec: TensorSpec) -> str:
    return f"{tuple(spec.shape)} {type_name(spec.dtype)}" + ("" if spec.requires_grad else " without a gradient")
