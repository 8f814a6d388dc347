"""Trains a whole model step by step, as the executor trains a stage, and times every layer within.

A step has two micro-batches: the first one after an update takes longer than all that follow. A device is given their passes
before anybody waits for one, as in training, and the host waits for the norm of the gradients before it gives it the first update.
It is given both early enough that the host is hardly ever late, and what the host takes is measured by itself: which of them
decides is known of whole models alone, of which a sweep may pass but one layer of every kind.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from kintsugi.runtime.brought import as_announced, require_dense_gradients
from kintsugi.runtime.measuring.descent import Descent
from kintsugi.runtime.measuring.footprint import Footprint, apply, footprints, take_norm
from kintsugi.runtime.measuring.marks import Marks
from kintsugi.runtime.models import (
    Activations,
    Batch,
    TrainingJob,
    batch_of,
    canonical_name,
    loss_of,
    model_shape,
    optimizer_for,
    sampler_of,
    seed_generators,
    train_layer,
)
from kintsugi.runtime.workers.demands import Watch
from kintsugi.runtime.workers.state import ModelState, state_of

WARMUP = 3
"""Sweeps over the model before the first one that counts."""


@dataclass(slots=True)
class Times:
    """What was seen of one layer, in seconds."""

    first_forward: list[float] = field(default_factory=list)
    """Of a step's first micro-batch, as the next one; every sweep."""
    first_backward: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    """Of its second one, as all others; every sweep."""
    backward: list[float] = field(default_factory=list)
    """Sweeps that run the whole backward pass alone, as the executor does."""
    backward_input: list[float] = field(default_factory=list)
    """The other sweeps."""
    norm: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    """Once the norm is known."""
    accumulation: list[float] = field(default_factory=list)
    """As many bytes added as a backward pass adds to the layer's own gradients."""


KINDS = tuple(own.name for own in fields(Times))


@dataclass(slots=True)
class Samples:
    """What was seen of one layer: seconds, one per sweep, and bytes."""

    device: Times = field(default_factory=Times)
    """What it takes the device to do, given early enough."""
    host: Times = field(default_factory=Times)
    """What it takes the host to give it to the device; the same where processors compute."""
    footprint: Footprint = field(default_factory=Footprint)
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    tied_bytes: int = 0
    optimizer_bytes: int = 0

    def without_times(self) -> "Samples":
        """The bytes alone."""
        return replace(self, device=Times(), host=Times())

    @property
    def spread_ratio(self) -> float:
        """Interquartile ranges of forward and backward pass over their medians."""
        own = self.device
        middle = statistics.median(own.forward) + statistics.median(own.backward)
        return (_interquartile_range(own.forward) + _interquartile_range(own.backward)) / middle if middle else 0.0


@dataclass(frozen=True, slots=True)
class _Timed:
    """A layer's part of something in a sweep."""

    layer: int
    kind: str
    mark: int
    """At which it begins; it lasts to the next."""


class Sweeper:
    """Runs micro-batches through the whole model, forward and backward, as one stage, and updates it layer by layer."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._boundaries = model_shape(job).boundaries
        self._state = ModelState.initial(job, range(len(job.layers)))
        self._watches = [Watch(layer.name, module) for layer, module in zip(job.layers, self._state.modules.values(), strict=True)]
        self._optimizers = [self._optimizer(index) for index in range(len(job.layers))]
        self._optimizer_states = [state_of(job, optimizer) if optimizer is not None else None for optimizer in self._optimizers]
        self._sampler = sampler_of(job)
        self._num_sweeps = 0
        self._reader = next((index for index, layer in enumerate(job.layers) if layer.inputs), len(job.layers) - 1)
        """The layer whose stage makes its batches between its passes; those of later ones, while they wait for what arrives."""
        self._makes_batch_ahead = torch.device(job.device).type == "cuda"
        """A step's first one, as the executor does there."""
        self._is_divisible = False
        """Whether all layers' backward passes have parts; autograd refuses those of some functions."""
        self._marks = Marks(job.device)
        self._timed: list[_Timed] = []

    def warmed_up(self) -> list[Samples]:
        """Every layer's bytes, after some sweeps that do not count; times are to come. Shape [layers]."""
        for _ in range(WARMUP):
            self._sweep([Samples() for _ in self._job.layers], is_split=False)
        samples = self._measured_bytes()
        answered = [any(spec.requires_grad for spec in specs) for specs in self._boundaries]
        self._is_divisible = all(own.footprint.is_divisible for own, is_wanted in zip(samples, answered, strict=False) if is_wanted)
        return samples

    def sweep(self, samples: list[Samples]) -> None:
        """Add what two sweeps see, shape [layers]: one times whole backward passes, one their part for the inputs' gradients."""
        self._sweep(samples, is_split=False)
        self._sweep(samples, is_split=True)

    def _sweep(self, samples: list[Samples], *, is_split: bool) -> None:
        """Two micro-batches through all layers and back, and one update of each layer.

        Args:
            samples: take what is seen. Shape [layers].
            is_split: time the part of the second backward pass that the inputs' gradients need, in the place of the whole; the
                whole where that of any layer cannot be split.
        """
        number, self._num_sweeps = self._num_sweeps, self._num_sweeps + 1
        self._marks.clear()
        ahead = self._batch(number) if self._makes_batch_ahead else None
        self._marks.let_host_lead()
        descent = Descent(self._marks, len(self._job.layers))
        loss, _ = self._forward("first_forward", number, descent, ahead)
        self._backward(descent, "first_backward", partial(torch.autograd.backward, [loss]))
        descent = Descent(self._marks, len(self._job.layers))
        loss, inputs = self._forward("forward", number, descent)
        if is_split and self._is_divisible:
            part = partial(torch.autograd.grad, [loss], inputs, retain_graph=True, allow_unused=True)
            self._backward(descent, "backward_input", part if inputs else _nothing)
            torch.autograd.backward([loss])
        else:
            kind = "backward_input" if is_split else "backward"
            self._backward(descent, kind, partial(torch.autograd.backward, [loss]))
        require_dense_gradients(self._state.parameters)
        self._update(number)
        self._marks.let_host_lead()
        for index in range(len(self._job.layers)):
            self._time(index, "accumulation", partial(_accumulate, self._own_parameters(index)))
        self._take_times(samples, left_out="backward" if is_split else "backward_input")
        for parameter in self._state.parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def _forward(
        self, kind: str, number: int, descent: Descent, batch: Batch | None = None
    ) -> tuple[GradientEdge, list[GradientEdge]]:
        """The loss of one micro-batch, and what layers take whose gradients are asked for; all layers are passed."""
        fields: Batch = batch or {}
        values: Activations = ()
        edges: list[GradientEdge] = []
        for index, layer in enumerate(self._job.layers):
            self._begin(index, kind)
            if index == self._reader and batch is None:
                fields = self._batch(number)
            with self._watches[index].unchanged():
                values = train_layer(self._job, index, self._state.modules[index], values, fields, step=number, microbatch=0)
            if index + 1 < len(self._job.layers):
                self._marks.add()
                as_announced(values, self._boundaries[index + 1], layer.name)
                descent.watch(index, values)
                edges += [get_gradient_edge(tensor) for tensor in values if tensor.requires_grad]
        loss = loss_of(self._job, values, fields)[0] / self._job.num_microbatches
        self._marks.add()
        return get_gradient_edge(loss), list(dict.fromkeys(edges))

    def _backward(self, descent: Descent, kind: str, passing: Callable[[], object]) -> None:
        for index, span in enumerate(descent.run(passing)):
            if span is not None and (kind != "backward_input" or any(spec.requires_grad for spec in self._boundaries[index])):
                self._timed.append(_Timed(index, kind, span[0]))

    def _update(self, number: int) -> None:
        """As around a commit point: all norms, for which the host waits, and then the updates, one after the other."""
        layers = list(enumerate(zip(self._state.modules.values(), self._optimizers, strict=True)))
        trained = [(index, module, optimizer) for index, (module, optimizer) in layers if optimizer is not None]
        for index, module, _ in trained:
            self._time(index, "norm", partial(take_norm, module))
        self._marks.wait()
        for index, module, optimizer in trained:
            self._time(index, "update", partial(self._apply, index, module, optimizer, number))

    def _apply(self, index: int, module: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        seed_generators(self._job, 4, number, index)
        apply(self._job, module, optimizer)

    def _batch(self, number: int) -> Batch:
        return batch_of(self._job, self._sampler, number, 0)

    def _time(self, index: int, kind: str, action: Callable[[], object]) -> None:
        """Do it; its seconds are taken at the end of the sweep."""
        self._begin(index, kind)
        action()
        self._marks.add()

    def _begin(self, index: int, kind: str) -> None:
        self._timed.append(_Timed(index, kind, self._marks.add()))

    def _take_times(self, samples: list[Samples], *, left_out: str) -> None:
        """Of what was timed in a sweep; 0 where there was nothing to do.

        Args:
            samples: take them. Shape [layers].
            left_out: what was not done in it.
        """
        device, host = self._marks.seconds, self._marks.host_seconds
        marks = {(timed.layer, timed.kind): timed.mark for timed in self._timed}
        self._timed.clear()
        for index, sample in enumerate(samples):
            for kind in KINDS:
                if kind != left_out:
                    mark = marks.get((index, kind))
                    getattr(sample.device, kind).append(0.0 if mark is None else device[mark])
                    getattr(sample.host, kind).append(0.0 if mark is None else host[mark])

    def _optimizer(self, index: int) -> torch.optim.Optimizer | None:
        layer, module = self._job.layers[index], self._state.modules[index]
        trained = [(canonical_name(layer, name), p) for name, p in module.named_parameters() if p.requires_grad]
        return optimizer_for(self._job, trained) if trained else None

    def _measured_bytes(self) -> list[Samples]:
        """Every layer's bytes, once its optimizer has made a step; times are to come. Shape [layers]."""
        modules = list(self._state.modules.values())
        found = footprints(self._job, modules, self._optimizers, self._boundaries, self._batch(0))
        return [self._samples(index, module, found[index]) for index, module in enumerate(modules)]

    def _parameter_bytes(self, module: nn.Module) -> int:
        """Of parameters and buffers. Empty ones alone count one: else nobody would be told of them."""
        tensors = [*module.parameters(), *module.buffers()]
        return _total_bytes(*tensors) or int(bool(tensors))

    def _optimizer_bytes(self, index: int, module: nn.Module) -> int:
        """What a layer's optimizer keeps, one byte at least: else numbers alone would not be sent, nor what it keeps later on."""
        state = self._optimizer_states[index]
        if state is None:
            return 0
        state.require_by_parameter()
        state.require_nothing_beside()
        kept = [value for own in state.export(module.parameters()) for value in own.values()]
        return _total_bytes(*(value for value in kept if isinstance(value, Tensor))) or 1

    def _own_parameters(self, index: int) -> list[nn.Parameter]:
        """Those of a layer that are trained, but for what it shares: who owns that adds to it first, or after it."""
        tied, module = self._job.layers[index].tied, self._state.modules[index]
        return [parameter for name, parameter in module.named_parameters() if parameter.requires_grad and name not in tied]

    def _samples(self, index: int, module: nn.Module, footprint: Footprint) -> Samples:
        tied = self._job.layers[index].tied
        shared = {module.get_parameter(name) for name in tied}
        return Samples(
            footprint=footprint,
            parameter_bytes=self._parameter_bytes(module),
            gradient_bytes=_total_bytes(*self._own_parameters(index)),
            tied_bytes=_total_bytes(*shared),
            optimizer_bytes=self._optimizer_bytes(index, module),
        )


def _nothing() -> None:
    pass


def _accumulate(parameters: Iterable[nn.Parameter]) -> None:
    """Move as many bytes as adding to gradients does: the values stand for those of the pass, and no other memory is taken."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach())


def _interquartile_range(values: list[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (0.0, 0.0, 0.0)
    return high - low


def _total_bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
