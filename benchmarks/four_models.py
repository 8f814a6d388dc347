"""Four models of different shapes of gradients, small enough for one core: what data parallelism has to reduce in practice."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

OptimizerOf = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model with a batch and the optimizer that it is usually trained with."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    optimizer: OptimizerOf

    def loss(self) -> Tensor:
        """Mean loss over the batch."""
        outputs: Tensor = self.model(self.inputs)
        return nn.functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), self.labels.reshape(-1))


class Residual(nn.Module):
    """Two convolutions around which the input passes by (He et al. 2016), with group instead of batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_convolution(width, width), nn.ReLU(), *_convolution(width, width))

    def forward(self, images: Tensor) -> Tensor:
        """[B, width, H, W] to the same."""
        return torch.relu(images + self.body(images))


class Decoder(nn.Module):
    """A causal transformer over tokens: [B, T] to [B, T, vocabulary]."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every place."""
        hidden = self.tokens(tokens) + self.places
        logits: Tensor = self.head(self.blocks(hidden, mask=self.mask, is_causal=True))
        return logits


def _convolution(entering: int, leaving: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(entering, leaving, 3, padding=1), nn.GroupNorm(8, leaving)


def _momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def _adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def _images(model: nn.Module, batch: int, size: int) -> Workload:
    return Workload(model, torch.randn(batch, 3, size, size), torch.randint(10, (batch,)), _momentum)


def decoder() -> Workload:
    """4 blocks of width 192."""
    tokens = torch.randint(512, (8, 64))
    return Workload(Decoder(512, 64, 192, 4), tokens, tokens, _adam)


def residual_network() -> Workload:
    """7 blocks in three widths: many small gradients."""
    layers: list[nn.Module] = [*_convolution(3, 32), nn.ReLU()]
    for entering, leaving in ((32, 32), (32, 64), (64, 128)):
        if entering != leaving:
            layers += [nn.AvgPool2d(2), *_convolution(entering, leaving), nn.ReLU()]
        layers += [Residual(leaving), Residual(leaving)]
    return _images(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), 16, 24)


def vgg_like() -> Workload:
    """Few convolutions, and dense layers that hold nine tenths of the parameters (Simonyan and Zisserman 2014)."""
    convolutions = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    dense = [nn.Flatten(), nn.Linear(64 * 36, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return _images(nn.Sequential(*convolutions, nn.MaxPool2d(2), *dense), 64, 24)


def perceptron() -> Workload:
    """Dense layers alone: little computing per gradient."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1728, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return _images(model, 256, 24)


MODELS: dict[str, Callable[[], Workload]] = {
    "small decoder": decoder,
    "residual network": residual_network,
    "VGG-like": vgg_like,
    "multi-layer perceptron": perceptron,
}
