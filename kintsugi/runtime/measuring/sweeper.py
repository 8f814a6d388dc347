"""Runs micro-batches through a whole model as the executor does, each layer as a stage of its own, and times every layer.

The device is given all passes of a sweep before anybody waits for one, as in training, and the host waits for the norm of the
gradients before it gives it the first update.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from kintsugi.runtime.brought import as_announced, require_dense_gradients
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
from kintsugi.runtime.workers.backward import is_divisible
from kintsugi.runtime.workers.state import ModelState, state_of

WARMUP = 3
"""Sweeps over the model before the first one that counts."""


@dataclass(slots=True)
class Samples:
    """What was seen of one layer: seconds, one per sweep, and bytes."""

    forward: list[float] = field(default_factory=list)
    """Every sweep."""
    backward: list[float] = field(default_factory=list)
    """Sweeps that run the whole backward pass alone, as the executor does."""
    backward_input: list[float] = field(default_factory=list)
    """The other sweeps."""
    optimizer: list[float] = field(default_factory=list)
    accumulation: list[float] = field(default_factory=list)
    """As many bytes added as a backward pass adds to the layer's own gradients."""
    footprint: Footprint = field(default_factory=Footprint)
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    tied_bytes: int = 0
    optimizer_bytes: int = 0

    def without_times(self) -> "Samples":
        """The bytes alone."""
        return replace(self, forward=[], backward=[], backward_input=[], optimizer=[], accumulation=[])

    @property
    def spread_ratio(self) -> float:
        """Interquartile ranges of forward and backward pass over their medians."""
        middle = statistics.median(self.forward) + statistics.median(self.backward)
        return (_interquartile_range(self.forward) + _interquartile_range(self.backward)) / middle if middle else 0.0


@dataclass(slots=True)
class _Passed:
    """One layer's forward pass of one micro-batch."""

    inputs: Activations
    outputs: Activations
    loss: Tensor | None


class Sweeper:
    """Runs micro-batches through the whole model, forward and backward, each layer as a stage of its own."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._boundaries = model_shape(job).boundaries
        self._state = ModelState.initial(job, range(len(job.layers)))
        self._optimizers = [self._optimizer(index) for index in range(len(job.layers))]
        self._optimizer_states = [state_of(job, optimizer) if optimizer is not None else None for optimizer in self._optimizers]
        self._sampler = sampler_of(job)
        self._num_sweeps = 0
        self._reader = next((index for index, layer in enumerate(job.layers) if layer.inputs), len(job.layers) - 1)
        """The layer whose stage makes its batches between its passes; those of later ones, while they wait for what arrives."""
        self._fields: Batch = {}
        self._marks = Marks(job.device)
        self._timed: list[tuple[list[float], int, bool]] = []
        """What takes the seconds of what was timed in a sweep, the mark at which that begins, and whether it is the rest of it."""

    def warmed_up(self) -> list[Samples]:
        """Every layer's bytes, after some sweeps that do not count; times are to come. Shape [layers]."""
        for _ in range(WARMUP):
            self._sweep([Samples() for _ in self._job.layers], is_split=True)
        return self._measured_bytes()

    def sweep(self, samples: list[Samples]) -> None:
        """Add what two sweeps see, shape [layers]: one times whole backward passes, one their part for the inputs' gradients."""
        self._sweep(samples, is_split=False)
        self._sweep(samples, is_split=True)

    def _sweep(self, samples: list[Samples], *, is_split: bool) -> None:
        """One micro-batch through all layers and back, and one update of each layer.

        Args:
            samples: take what is seen. Shape [layers].
            is_split: time the part of the backward pass that the inputs' gradients need, in the place of the whole.
        """
        number, self._num_sweeps = self._num_sweeps, self._num_sweeps + 1
        passes: list[_Passed] = []
        self._marks.clear()
        self._marks.let_host_lead()
        for index, sample in enumerate(samples):
            inputs = self._inputs(index, passes)
            self._time(sample.forward, partial(self._forward, passes, inputs, number))
        gradients: Activations = ()
        for passed, sample in zip(reversed(passes), reversed(samples), strict=True):
            gradients = self._backward(passed, gradients, sample, is_split=is_split)
        require_dense_gradients(self._state.parameters)
        self._update(samples, number)
        self._marks.let_host_lead()
        for index, sample in enumerate(samples):
            self._time(sample.accumulation, partial(_accumulate, self._own_parameters(index)))
        self._take_times()
        for parameter in self._state.parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def _update(self, samples: list[Samples], number: int) -> None:
        """As around a commit point: all norms, for which the host waits, and then the updates, one after the other."""
        layers = list(zip(self._state.modules.values(), self._optimizers, samples, strict=True))
        for module, optimizer, sample in layers:
            self._time(sample.optimizer, partial(take_norm, module) if optimizer is not None else None)
        self._marks.wait()
        for index, (module, optimizer, sample) in enumerate(layers):
            if optimizer is not None:
                self._time(sample.optimizer, partial(self._apply, index, module, optimizer, number), is_rest=True)

    def _apply(self, index: int, module: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        seed_generators(self._job, 4, number, index)
        apply(self._job, module, optimizer)

    def _batch(self, number: int) -> Batch:
        return batch_of(self._job, self._sampler, number, 0)

    def _inputs(self, index: int, passes: list[_Passed]) -> Activations:
        arrived = passes[-1].outputs if passes else ()
        specs = self._boundaries[index]
        return tuple(t.detach().requires_grad_(spec.requires_grad) for t, spec in zip(arrived, specs, strict=True))

    def _forward(self, passes: list[_Passed], inputs: Activations, number: int) -> None:
        """Pass through one more layer than `passes` has."""
        index = len(passes)
        if index == self._reader:
            self._fields = self._batch(number)
        outputs = train_layer(self._job, index, self._state.modules[index], inputs, self._fields, step=number, microbatch=0)
        is_last = index + 1 == len(self._job.layers)
        loss = loss_of(self._job, outputs, self._fields)[0] / self._job.num_microbatches if is_last else None
        if loss is None:
            outputs = as_announced(outputs, self._boundaries[index + 1], self._job.layers[index].name)
        passes.append(_Passed(inputs, outputs, loss))

    def _backward(self, passed: _Passed, gradients: Activations, sample: Samples, *, is_split: bool) -> Activations:
        roots = [tensor for tensor in passed.outputs if tensor.requires_grad] if passed.loss is None else [passed.loss]
        grown = list(gradients) if passed.loss is None else None
        wanted = [tensor for tensor in passed.inputs if tensor.requires_grad]
        whole = partial(torch.autograd.backward, roots, grown) if roots else None
        if is_split and roots and wanted and not is_divisible(roots, wanted):
            self._time(sample.backward_input, whole)
        elif is_split:
            part = partial(torch.autograd.grad, roots, wanted, grown, retain_graph=True, allow_unused=True)
            self._time(sample.backward_input, part if roots and wanted else None)
            if whole is not None:
                whole()
        else:
            self._time(sample.backward, whole)
        return tuple(tensor.grad if tensor.grad is not None else torch.zeros_like(tensor) for tensor in wanted)

    def _time(self, into: list[float], action: Callable[[], object] | None, *, is_rest: bool = False) -> None:
        """Do it; `into` takes its seconds at the end of the sweep, 0 where there is nothing to do.

        What is the rest of something is added to what `into` took last.
        """
        if action is None:
            into.append(0.0)
            return
        self._timed.append((into, self._marks.add(), is_rest))
        action()
        self._marks.add()

    def _take_times(self) -> None:
        seconds = self._marks.seconds
        for into, mark, is_rest in self._timed:
            into.append(seconds[mark] + (into.pop() if is_rest else 0.0))
        self._timed.clear()

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
