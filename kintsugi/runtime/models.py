"""What a user brings: an ordered list of layers, an optimizer, a loss and a data set."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError, some
from kintsugi.runtime.brought import (
    built,
    counted_loss,
    optimizer_of,
    output_tensors,
    stacked,
    with_own_memory,
)
from kintsugi.runtime.following import followed
from kintsugi.runtime.generators import mixed, seed, seed_host
from kintsugi.runtime.given import function, gradient_limit, real_type
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.recomputation import recomputed
from kintsugi.runtime.sampler import Sampler
from kintsugi.runtime.ties import own_name, owner_of, require_ties
from restorer.transport import TensorSpec

Batch = Mapping[str, Tensor]
Activations = tuple[Tensor, ...]
Loss = Tensor | tuple[Tensor, Tensor | float]
NamedParameters = list[tuple[str, nn.Parameter]]

_OF_DATASETS = {"__len__": "a length", "__getitem__": "samples by their index"}
"""What a map-style data set has, in words."""


class Dataset(Sized, Protocol):
    """A map-style data set whose samples are mappings of field name to tensor.

    A micro-batch is read by every worker whose layers or loss look at it, and again when its step is run again; on a CUDA device
    the first of a step is read before the step before is committed. What a sample draws (masks, augmentation) from torch's,
    Python's and NumPy's generators is the same each time: they are seeded for every micro-batch of every step. Generators of its
    own, and whatever else it remembers, must not make a difference.
    """

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """One sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """Everything a worker needs to train its part of the model; made anew in every process by a module-level function."""

    layers: Sequence[Layer]
    optimizer: Callable[[NamedParameters], torch.optim.Optimizer | Sequence[torch.optim.Optimizer]]
    """Called for each layer that a worker holds, with its trained parameters by canonical name (`layer.parameter`); of several
    optimizers each takes some of them."""
    loss: Callable[[Activations, Batch], Loss]
    """Mean loss of one micro-batch from the last layer's output; or a sum and of how many it is, such as tokens without padding.

    Of means a step takes the mean; sums it adds up and divides by the count of all its micro-batches: tokens count alike.
    """
    dataset: Dataset
    microbatch_size: int
    num_microbatches: int
    """Per step, over all pipelines."""
    num_steps: int
    seed: int = 0
    max_grad_norm: float | None = None
    """Clip the global gradient norm to this."""
    learning_rate_factor: Callable[[int], float] | None = None
    """Step -> factor on the optimizer's own learning rates."""
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    recomputes_activations: bool = False
    """Keep only what enters each layer until its backward pass, and compute the rest again there: less memory, more time, the
    same numbers. A layer must give the same whenever it is given the same and draws the same."""

    def __post_init__(self) -> None:
        if not isinstance(self.layers, Sequence):
            kind = type(self.layers).__name__
            message = f"must be a list of kintsugi.Layer(name=..., build=...), not a {kind}; build makes the module of one layer"
            raise InvalidInputError(message, field="layers", value=kind)
        for index, layer in enumerate(self.layers):
            checks.instance(f"layers[{index}]", layer, Layer, hint="say kintsugi.Layer(name=..., build=...)")
        names = [layer.name for layer in self.layers]
        if not names or len(set(names)) != len(names):
            raise InvalidInputError("must be at least one layer, each with a name of its own", field="layers", value=names)
        for name in ("microbatch_size", "num_microbatches", "num_steps"):
            checks.count(name, getattr(self, name))
        self._check_values()
        lacking = [what for name, what in _OF_DATASETS.items() if not hasattr(self.dataset, name)]
        if lacking:
            kind = type(self.dataset).__name__
            message = f"is a {kind} without {lacking[0]}; give a map-style one (__len__, __getitem__): lost steps are run again"
            raise InvalidInputError(message, field="dataset", value=kind)
        if len(self.dataset) < self.global_batch_size:
            raise InvalidInputError(
                f"has {len(self.dataset)} samples, fewer than one global batch of {self.global_batch_size}", field="dataset"
            )
        for layer in self.layers:
            for target in layer.tied.values():
                self._check_tie(layer, target)

    def _check_values(self) -> None:
        checks.whole("seed", self.seed)
        checks.flag("recomputes_activations", self.recomputes_activations)
        gradient_limit(self.max_grad_norm)
        real_type(self.dtype)
        function("optimizer", self.optimizer)
        function("loss", self.loss)
        if self.learning_rate_factor is not None:
            function("learning_rate_factor", self.learning_rate_factor)

    def _check_tie(self, layer: Layer, target: str) -> None:
        layers = {other.name: other for other in self.layers}
        owner = layers.get(name := owner_of(target, layers))
        if owner is None or owner is layer or not own_name(target, name) or own_name(target, name) in owner.tied:
            raise InvalidInputError(
                f"layer {layer.name!r} is tied to {target!r}, which is no own parameter of another layer",
                field="tied",
                value=target,
            )

    @property
    def global_batch_size(self) -> int:
        """Samples per step."""
        return self.microbatch_size * self.num_microbatches


def canonical_name(layer: Layer, parameter: str) -> str:
    """Name of a parameter over the whole model: `layer.parameter`, the owner's for a tied one."""
    return layer.tied.get(parameter, f"{layer.name}.{parameter}")


def seed_for(job: TrainingJob, *parts: int) -> int:
    """A seed that depends on the job's seed and on `parts` alone (63 bits)."""
    return mixed(job.seed & 0xFFFFFFFF, *parts)


def sampler_of(job: TrainingJob) -> Sampler:
    """Which samples every micro-batch of every step of a job is of."""
    return Sampler(
        num_samples=len(job.dataset),
        microbatch_size=job.microbatch_size,
        num_microbatches=job.num_microbatches,
        seed=seed_for(job, 1),
    )


def seed_generators(job: TrainingJob, *parts: int) -> None:
    """Seed what a job draws from with `seed_for`."""
    seed(seed_for(job, *parts), torch.device(job.device))


def made(make_job: Callable[[], TrainingJob]) -> TrainingJob:
    """The job, for which the function draws the same in every process: which samples are held out, say."""
    seed_host(0)
    return make_job()


def build_layer(job: TrainingJob, index: int) -> nn.Module:
    """The module of layer `index` with its initial values, the same in every process."""
    seed_generators(job, 0, index)
    layer = job.layers[index]
    return with_own_memory(built(layer.name, layer.build).to(device=job.device, dtype=job.dtype))


def batch_of(job: TrainingJob, sampler: Sampler, step: int, microbatch: int) -> dict[str, Tensor]:
    """The fields of a micro-batch of a step, which depend on nothing else.

    The generators are left as its samples leave them, for they are seeded again before every layer.

    Raises:
        InvalidInputError: its samples cannot be stacked.
    """
    seed_generators(job, 3, step, microbatch)
    indices = sampler.indices(step, microbatch)
    with noted(f"in samples {some([*map(str, indices)])} of the data set, for micro-batch {microbatch} of step {step}"):
        return collate([job.dataset[index] for index in indices], job.device)


def collate(samples: Sequence[Mapping[str, Any]], device: str) -> dict[str, Tensor]:
    """Stack samples to a micro-batch. Each field gains a leading dimension of len(samples).

    Raises:
        InvalidInputError: they cannot be stacked.
    """
    return {name: _on_device(field, torch.device(device)) for name, field in stacked(samples).items()}


def _on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """To a CUDA device by way of pinned memory, or the host would wait for all that the device was given before."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Have what is raised in the block say where it was raised, below its traceback."""
    try:
        yield
    except BaseException as error:  # a layer's own exit, too
        error.add_note(where)
        raise


def require_fields(layer: Layer, batch: Batch) -> None:
    """Require the fields that a layer asks for.

    Raises:
        InvalidInputError: the data set does not give one.
    """
    for name in layer.inputs:
        if name not in batch:
            raise InvalidInputError(f"layer {layer.name!r} wants it; the data set gives {', '.join(batch)}", field=name)


def run_layer(layer: Layer, module: nn.Module, activations: Activations, batch: Batch) -> Activations:
    """One layer's forward pass.

    Raises:
        InvalidInputError: the layer asks for a field that the data set does not give, or does not return tensors.
    """
    require_fields(layer, batch)
    return output_tensors(module(*activations, **{name: batch[name] for name in layer.inputs}), layer.name)


def train_layer(
    job: TrainingJob, index: int, module: nn.Module, activations: Activations, batch: Batch, *, step: int, microbatch: int
) -> Activations:
    """One layer's forward pass before a backward pass, which computes it again where the job says so.

    What it draws depends on step, micro-batch and layer alone; what the loss draws after the last layer does so, too.

    Raises:
        InvalidInputError: the layer asks for a field that the data set does not give.
    """
    layer = job.layers[index]

    def run(own: Activations) -> Activations:
        seed_generators(job, 2, step, microbatch, index)
        with noted(f"in layer {layer.name!r}, in the forward pass of micro-batch {microbatch} of step {step}"):
            return run_layer(layer, module, own, batch)

    if not job.recomputes_activations:
        return run(activations)
    return recomputed(run, activations, module=module, name=layer.name, device=torch.device(job.device))


def loss_of(job: TrainingJob, outputs: Activations, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss of one micro-batch, and of how many a sum is (fp64): 1 where it is a mean.

    Raises:
        InvalidInputError: it is no single number with a gradient, or what it comes with is no number.
    """
    try:
        loss = job.loss(outputs, batch)
    except (AttributeError, TypeError) as error:
        error.add_note("the loss takes the last layer's output as a tuple of tensors: outputs[0] is the first")
        raise
    return counted_loss(loss)


def optimizer_for(job: TrainingJob, parameters: NamedParameters) -> torch.optim.Optimizer:
    """The optimizer of these parameters.

    Raises:
        InvalidInputError: the job makes something else.
    """
    try:
        made = job.optimizer(parameters)
    except ValueError as error:
        is_of_none = "empty parameter list" in str(error)  # so torch
        way_out = ": what is not to be trained must not require a gradient" if is_of_none else ""
        error.add_note(f"each layer has an optimizer of its own, here that of {some([name for name, _ in parameters])}{way_out}")
        raise
    return optimizer_of(made)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shapes known before any layer is built here: what crosses each boundary, and every parameter."""

    boundaries: tuple[tuple[TensorSpec, ...], ...]
    """What enters layer i; entry len(layers) is the model's output. Shape [layers + 1][tensors]."""
    parameters: tuple[dict[str, tuple[int, ...]], ...]
    """Trained parameters of each layer by canonical name, with their shapes. Shape [layers]."""
    tensors: tuple[dict[str, TensorSpec], ...]
    """Parameters and buffers of each layer's module by their own names. Shape [layers]."""

    @property
    def owner_layer(self) -> dict[str, int]:
        """The first layer that has each parameter."""
        result: dict[str, int] = {}
        for index, shapes in enumerate(self.parameters):
            for name in shapes:
                result.setdefault(name, index)
        return result


def model_shape(job: TrainingJob) -> ModelShape:
    """Shapes of all boundaries and parameters, from one micro-batch through the model on the meta device.

    Layers that one callable builds and that take tensors alike are followed once; what they draw is the same in every process.

    Raises:
        InvalidInputError: a layer changes what it takes, or a tie names no parameter.
    """
    seed_generators(job, 3, 0, 0)
    batch = collate([job.dataset[0]] * job.microbatch_size, "cpu")
    activations: Activations = ()
    boundaries = [()]  # type: list[tuple[TensorSpec, ...]]
    modules = []
    traced: dict[object, tuple[Layer, nn.Module, Activations]] = {}  # the layers are kept, so that no id comes twice
    for index, layer in enumerate(job.layers):
        key = (id(layer.build), layer.inputs, tuple((_spec(tensor), tensor.stride()) for tensor in activations))
        if key not in traced:
            traced[key] = layer, *_followed(job, index, activations, batch)
        _, module, activations = traced[key]
        boundaries.append(tuple(map(_spec, activations)))
        modules.append(module)
    require_ties(job.layers, [dict(module.named_parameters(remove_duplicate=False)) for module in modules])
    trained = (
        {canonical_name(layer, name): tuple(p.shape) for name, p in module.named_parameters() if p.requires_grad}
        for layer, module in zip(job.layers, modules, strict=True)
    )
    return ModelShape(tuple(boundaries), tuple(trained), tuple(map(_tensors, modules)))


def _followed(job: TrainingJob, index: int, activations: Activations, batch: Batch) -> tuple[nn.Module, Activations]:
    """The module and the outputs of a layer, as shapes alone."""
    layer = job.layers[index]
    require_fields(layer, batch)
    seed_generators(job, 0, index)

    def forward(module: nn.Module, own: Activations, fields: Batch) -> Activations:
        seed_generators(job, 2, 0, 0, index)
        return run_layer(layer, module, own, fields)

    return followed(
        layer.name,
        layer.build,
        forward,
        activations,
        {name: batch[name] for name in layer.inputs},
        dtype=job.dtype,
        device=torch.device(job.device),
    )


def _tensors(module: nn.Module) -> dict[str, TensorSpec]:
    return {name: _spec(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())}


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
