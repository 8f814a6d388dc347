"""Small training jobs that worker processes can import, and the profiles they are planned from."""

import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kintsugi.core.profile import Profile
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.llama import LlamaShape
from kintsugi.runtime.models import Activations, Batch, Dataset, NamedParameters, TrainingJob
from kintsugi.runtime.ties import owner_of
from tests.builders import FREE, layer, profile_of

NUM_MICROBATCHES = 8
NUM_STEPS = 4
WIDTH = 6
TINY_LLAMA = LlamaShape(
    num_blocks=2,
    width=16,
    num_heads=4,
    num_key_value_heads=2,
    feed_forward_width=24,
    vocabulary=11,
    rope_base=1e4,
    sequence_length=8,
)


def tiny_gpt(
    *, num_steps: int = NUM_STEPS, num_blocks: int = 6, dtype: torch.dtype = torch.float64, dropout: float = 0.1
) -> TrainingJob:
    """A decoder of width 16 with dropout, tied embeddings, clipping and AdamW."""
    shape = GptShape(num_blocks=num_blocks, width=16, num_heads=2, sequence_length=8, dropout=dropout)
    return gpt_job(num_microbatches=NUM_MICROBATCHES, num_steps=num_steps, shape=shape, text_bytes=2_000, dtype=dtype)


class Entry(nn.Module):
    """Values [B, width] to (hidden, residual), the residual without a gradient path of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.frozen = nn.Parameter(torch.randn(WIDTH), requires_grad=False)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return functional.linear(values, self.weight) + self.frozen, values


class Mixer(nn.Module):
    """(hidden, residual) to the same, under a mask that comes from the batch; a buffer, a scalar, an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("offset", torch.randn(WIDTH))
        self.register_buffer("count", torch.tensor(3))
        self.dropout = nn.Dropout(0.2)

    def forward(self, hidden: Tensor, residual: Tensor, *, mask: Tensor) -> tuple[Tensor, Tensor]:
        mixed = functional.linear(hidden + self.offset / self.count, self.inner.weight) * self.temperature
        return self.dropout(torch.tanh(mixed)) * mask, residual


class Exit(nn.Module):
    """(hidden, residual) to a prediction [B, width]; its weight is the entry's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return functional.linear(hidden + 0.1 * residual, self.weight, self.bias)


class Vectors:
    """Samples that depend on their index alone."""

    def __init__(self, num_samples: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self._values = torch.randn(num_samples, WIDTH, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        values = self._values[index]
        return {"values": values, "mask": (values > -1).double(), "target": values.flip(0)}


def squared_error(outputs: Activations, batch: Batch) -> Tensor:
    return (outputs[0] - batch["target"]).square().mean()


def counted_error(outputs: Activations, batch: Batch) -> tuple[Tensor, Tensor]:
    """The sum over what the mask leaves, and of how many it is: unequally many from micro-batch to micro-batch."""
    return ((outputs[0] - batch["target"]).square() * batch["mask"]).sum(), batch["mask"].sum()


def momentum(parameters: NamedParameters) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in parameters], lr=0.05, momentum=0.9, weight_decay=0.01)


def stateless(parameters: NamedParameters) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in parameters], lr=0.05)


class OneByOne(torch.optim.Optimizer):
    """Steps every parameter that has a gradient by itself."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group["lr"])

    def _step(self, parameter: nn.Parameter, gradient: Tensor, rate: float) -> None:
        raise NotImplementedError


class Preconditioned(OneByOne):
    """As Shampoo does, it keeps a list with a tensor for each dimension of a parameter; and a pair of plain numbers."""

    def _step(self, parameter: nn.Parameter, gradient: Tensor, rate: float) -> None:
        state = self.state[parameter]
        if not state:
            state["sums"] = [torch.zeros(size, dtype=parameter.dtype) for size in parameter.shape]
            state["counted"] = (0, 0.5)
        for dimension, total in enumerate(state["sums"]):
            total.add_(gradient.square().transpose(0, dimension).flatten(1).sum(1) if gradient.dim() > 1 else gradient.square())
        state["counted"] = (state["counted"][0] + 1, 0.5)
        scale = sum(float(total.mean()) for total in state["sums"]) ** state["counted"][1]
        parameter.add_(gradient, alpha=-rate / (scale + 1e-3))


def preconditioned(parameters: NamedParameters) -> torch.optim.Optimizer:
    return Preconditioned([p for _, p in parameters], lr=0.01)


class Averaging(torch.optim.Optimizer):
    """As schedule-free optimizers do, it counts in its groups, and weighs with that; nothing else has what it keeps there."""

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().__init__([{**group, "total": torch.zeros((), dtype=torch.float64)} for group in groups], {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            group["total"].add_(group["lr"])
            group["seen"] = [*group.get("seen", ()), group["lr"]][-2:]
            for parameter in group["params"]:
                self._step(parameter, group)

    def _step(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> None:
        fast = self.state[parameter].setdefault("fast", parameter.clone()) if group["averages"] else parameter
        fast.sub_(parameter.grad, alpha=group["lr"] / (1 + float(group["total"]) + sum(group["seen"])))
        parameter.lerp_(fast, 1 / group["count"])


def averaging(parameters: NamedParameters) -> torch.optim.Optimizer:
    """Two groups for each layer that has both, and for one of them nothing beside its parameters."""
    matrices = [p for _, p in parameters if p.dim() > 1]
    others = [p for _, p in parameters if p.dim() <= 1]
    groups = [{"params": matrices, "averages": True}, {"params": others, "averages": False, "lr": 0.1}]
    return Averaging([group for group in groups if group["params"]], lr=0.2)


def combined(parameters: NamedParameters) -> list[torch.optim.Optimizer]:
    """Muon takes matrices alone."""
    parts = [(make, [p for _, p in parameters if (p.dim() == 2) is of_matrices]) for make, of_matrices in _PARTS]
    return [make(own, lr=0.01) for make, own in parts if own]


_PARTS = ((torch.optim.Muon, True), (torch.optim.AdamW, False))
OPTIMIZERS = {
    "momentum": momentum,
    "stateless": stateless,
    "preconditioned": preconditioned,
    "averaging": averaging,
    "combined": combined,
}


def odd_layers() -> list[Layer]:
    """Eight layers; the exit is tied to the entry, the second mixer to the later fourth."""
    tied = {"inner.weight": "mixer3.inner.weight"}
    mixers = [Layer(name=f"mixer{n}", build=Mixer, inputs=("mask",), tied=tied if n == 1 else {}) for n in range(6)]
    return [
        Layer(name="entry", build=Entry, inputs=("values",)),
        *mixers,
        Layer(name="exit", build=Exit, tied={"weight": "entry.weight"}),
    ]


def odd_job(optimizer: str = "momentum", *, num_steps: int = NUM_STEPS) -> TrainingJob:
    """Tuples between stages, a mask that skips them, buffers, frozen, scalar and unused parameters, ties both ways."""
    return TrainingJob(
        layers=odd_layers(),
        optimizer=OPTIMIZERS[optimizer],
        loss=squared_error,
        dataset=Vectors(100),
        microbatch_size=2,
        num_microbatches=NUM_MICROBATCHES,
        num_steps=num_steps,
        seed=5,
        max_grad_norm=0.5,
        learning_rate_factor=_warm_up,
        dtype=torch.float64,
    )


class TwiceNamedEntry(Entry):
    """Its weight has another name in a module of its own, and counts under both."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.weight = self.weight

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        hidden, residual = super().forward(values)
        return functional.linear(hidden, self.inner.weight), residual


class TwiceNamedExit(Exit):
    """As the entry's: each of the two layers has two names for the weight that they share."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.weight = self.weight

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return super().forward(functional.linear(hidden, self.inner.weight), residual)


def twice_named_job() -> TrainingJob:
    """The odd job with two names in entry and exit for the one weight that they share."""
    job = odd_job()
    layers = [*job.layers]
    layers[0] = replace(layers[0], build=TwiceNamedEntry)
    layers[-1] = replace(layers[-1], build=TwiceNamedExit)
    return replace(job, layers=layers)


class FrozenEntry(nn.Module):
    """Nothing to train, so that nothing before the first mixer needs a gradient."""

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values * 2, values


def frozen_job() -> TrainingJob:
    """The odd model behind an entry without parameters."""
    job = odd_job()
    layers = list(job.layers)
    layers[0] = Layer(name="entry", build=FrozenEntry, inputs=("values",))
    layers[-1] = Layer(name="exit", build=Exit)
    return replace(job, layers=layers)


def _warm_up(step: int) -> float:
    return min(1.0, (step + 1) / 3)


class Raising(nn.Module):
    """Raises in its forward pass, once real data comes by."""

    def forward(self, hidden: Tensor) -> Tensor:
        if not hidden.is_meta:
            raise ZeroDivisionError("the user's own mistake")
        return hidden


class Leaving(nn.Module):
    """Ends its process in its forward pass, once real data comes by."""

    def forward(self, hidden: Tensor) -> Tensor:
        if not hidden.is_meta:
            sys.exit("the user's own exit")
        return hidden


class Ending(nn.Module):
    """Its process ends in its forward pass, once real data comes by, and nothing in Python learns of it."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__()
        self.end = end

    def forward(self, hidden: Tensor) -> Tensor:
        if not hidden.is_meta:
            self.end()
        return hidden


def exit_at_once() -> None:
    os._exit(3)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def ending_job(end: Callable[[], None]) -> TrainingJob:
    """A decoder whose process ends in its middle."""
    return raising_job(partial(Ending, end))


class RaisesBack(torch.autograd.Function):
    """Nothing, but for its backward pass."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(*_: Any) -> Tensor:
        raise ZeroDivisionError("the user's own mistake")


class RaisingBack(nn.Module):
    """Raises in its backward pass."""

    def forward(self, hidden: Tensor) -> Tensor:
        return RaisesBack.apply(hidden)


class RaisingData(Vectors):
    """Raises at every sample but the first, which is looked at to know the others by."""

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        if index:
            raise ZeroDivisionError("the user's own mistake")
        return super().__getitem__(index)


class RaisingOptimizer(OneByOne):
    """Raises at its first step."""

    def _step(self, parameter: nn.Parameter, gradient: Tensor, rate: float) -> None:
        raise ZeroDivisionError("the user's own mistake")


def raising_optimizer(parameters: NamedParameters) -> torch.optim.Optimizer:
    return RaisingOptimizer([p for _, p in parameters], lr=0.01)


def job_raising_in(place: str) -> TrainingJob:
    """Raises in its data set, in a backward pass, or in its optimizer."""
    if place == "backward":
        return raising_job(RaisingBack)
    return replace(odd_job(), dataset=RaisingData(100)) if place == "data" else replace(odd_job(), optimizer=raising_optimizer)


def raising_job(layer: Callable[[], nn.Module] = Raising) -> TrainingJob:
    """A decoder with a layer in its middle that raises."""
    job = tiny_gpt()
    layers = list(job.layers)
    layers[4] = Layer(name=layers[4].name, build=layer)
    return replace(job, layers=layers)


def unbuildable_job() -> TrainingJob:
    """Raises before there is a job."""
    raise LookupError("no such data set")


def profile_for(job: TrainingJob, *, optimizer_bytes: int = 400_000_000) -> Profile:
    """Equal layers with the job's names and ties, on links without latency."""
    names = {own.name for own in job.layers}
    layers = [
        layer(
            own.name,
            optimizer_bytes=optimizer_bytes,
            tied_to=next((owner_of(name, names) for name in own.tied.values()), None),
        )
        for own in job.layers
    ]
    return profile_of(layers, inter_host=FREE, intra_host=FREE)


@dataclass
class Drawing:
    """A data set whose samples gain noise of torch's, Python's and NumPy's generators, and bring along what they drew."""

    inner: Dataset

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        sample = self.inner[index]
        drawn = torch.tensor([torch.rand(()).item(), random.random(), np.random.random()]).double().repeat(WIDTH // 3)
        return {**sample, "values": sample["values"] + drawn, "drawn": drawn}


class DrawingMixer(Mixer):
    """Its initial values are drawn from NumPy's generator, and every pass draws from that and from Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = nn.Parameter(torch.from_numpy(np.random.standard_normal(WIDTH)))

    def forward(self, hidden: Tensor, residual: Tensor, *, mask: Tensor) -> tuple[Tensor, Tensor]:
        drawn = hidden * (0.5 + random.random()) + self.noise * float(np.random.random())
        return super().forward(drawn, residual, mask=mask)


def squared_error_of_drawn(outputs: Activations, batch: Batch) -> Tensor:
    """Against what the samples drew, with dropout and weights of its own."""
    weight = 0.5 + random.random() + float(np.random.random())
    return functional.dropout((outputs[0] - batch["drawn"]).square(), 0.1).mean() * weight


def drawing_job() -> TrainingJob:
    """The odd job, on samples that draw their input and what is to be told of it; some layers and the loss draw, too."""
    job = odd_job()
    layers = [replace(layer, build=DrawingMixer) if layer.name in ("mixer2", "mixer4") else layer for layer in job.layers]
    return replace(job, layers=layers, dataset=Drawing(Vectors(100)), loss=squared_error_of_drawn)


class Langevin(OneByOne):
    """Descends by the gradient and by noise, from torch's generator and from Python's."""

    def _step(self, parameter: nn.Parameter, gradient: Tensor, rate: float) -> None:
        parameter.sub_(gradient, alpha=rate).add_(torch.randn_like(parameter), alpha=0.01 * random.random())


def langevin(parameters: NamedParameters) -> torch.optim.Optimizer:
    return Langevin([p for _, p in parameters], lr=0.05)


def langevin_job() -> TrainingJob:
    """The odd job without ties, under an optimizer that draws."""
    job = odd_job()
    return replace(job, layers=[replace(layer, tied={}) for layer in job.layers], optimizer=langevin)


def counted_job() -> TrainingJob:
    """The odd job, with a loss that counts what the mask leaves."""
    return replace(odd_job(), loss=counted_error)
