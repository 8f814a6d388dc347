"""What is trained: residual networks and decoders of two depths each, and an optimizer whose state is as large as one likes."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kintsugi.runtime.gpt import GptShape, gpt_layers
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import Activations, Batch, NamedParameters

NUM_CLASSES = 10
_GROUPS = 4


class Stem(nn.Module):
    """Pixels [B, 1, H, W] to [B, width, H, W]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(_GROUPS, width)

    def forward(self, pixels: Tensor) -> Tensor:
        """Features of the images."""
        return functional.relu(self.norm(self.convolution(pixels)))


class Residual(nn.Module):
    """Two convolutions that are added to what comes in (He et al., 2016); with group norm, whose result no replica changes.

    [B, width, H, W] to the same.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(_GROUPS, width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(_GROUPS, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """One block."""
        inner = functional.relu(self.first_norm(self.first(hidden)))
        return functional.relu(hidden + self.second_norm(self.second(inner)))


class Classes(nn.Module):
    """Mean over the image, and a projection to classes. [B, width, H, W] to logits [B, 10]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, NUM_CLASSES)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits."""
        result: Tensor = self.project(hidden.mean(dim=(2, 3)))
        return result


def residual_layers(num_blocks: int, width: int) -> list[Layer]:
    """A residual network; with its stem and its last projection it is 2 * num_blocks + 2 layers deep."""
    blocks = [Layer(name=f"block{index}", build=partial(Residual, width)) for index in range(num_blocks)]
    return [
        Layer(name="stem", build=partial(Stem, width), inputs=("pixels",)),
        *blocks,
        Layer(name="classes", build=partial(Classes, width)),
    ]


def class_loss(outputs: Activations, batch: Batch) -> Tensor:
    """Mean cross entropy over the images of a micro-batch."""
    (logits,) = outputs
    return functional.cross_entropy(logits, batch["label"])


def decoder_layers(num_blocks: int, width: int, sequence_length: int) -> list[Layer]:
    """A decoder over bytes."""
    return gpt_layers(GptShape(num_blocks=num_blocks, width=width, num_heads=4, sequence_length=sequence_length))


def emulated(layers: list[Layer], seconds: float) -> list[Layer]:
    """The same layers on an emulated accelerator: a micro-batch takes `seconds` more, in which the processor is free.

    Every layer sleeps its share in its forward pass; what it computes stays bit for bit the same.
    """
    share = seconds / len(layers)
    return [replace(layer, build=partial(_waiting, layer.build, share)) for layer in layers] if seconds else layers


def _waiting(build: Callable[[], nn.Module], seconds: float) -> nn.Module:
    module = build()
    module.register_forward_pre_hook(partial(_wait, seconds))
    return module


def _wait(seconds: float, module: nn.Module, _: Any) -> None:
    if not any(parameter.is_meta for parameter in module.parameters()):
        time.sleep(seconds)


class AveragingAdamW(torch.optim.AdamW):
    """AdamW that keeps the weights of its latest updates, to be averaged (Kaddour, *Stop Wasting My Time!*, 2022).

    That makes its state as large as one likes at the price of one copy of the weights per update.
    """

    def __init__(self, parameters: NamedParameters, *, learning_rate: float, num_kept: int) -> None:
        """`num_kept` updates are kept; each costs as many bytes as the weights."""
        super().__init__([parameter for _, parameter in parameters], lr=learning_rate)
        self._num_kept = num_kept

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update, and keep the weights in the place of the oldest that are kept."""
        loss = super().step(closure)
        for parameter, state in self.state.items():
            if "kept" not in state:
                state["kept"] = parameter.detach().expand(self._num_kept, *parameter.shape).clone()
            state["kept"][int(state["step"]) % self._num_kept].copy_(parameter)
        return loss
