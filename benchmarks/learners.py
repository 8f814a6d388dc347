"""What nodes with data of their own learn together: digits, text, and more text on top of what is known (LoRA).

Everything ships with Python or scikit-learn. Each of the nodes holds another part of the data: digits in unequal shares of the
classes, other topics of Python's help texts, other modules of its standard library.
"""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR

from kintsugi.matrix.models import residual_layers
from kintsugi.runtime.gpt import GptShape, gpt_layers

NUM_NODES = 6
DIGITS, TEXT, LORA = "residual network, digits", "decoder, text", "LoRA of the decoder"
MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Data:
    """Samples with targets; `nodes` are the samples of each node, what is left over is held out."""

    inputs: Tensor
    targets: Tensor
    nodes: tuple[Tensor, ...]
    held_out: Tensor


@dataclass(frozen=True, slots=True)
class Learner:
    """One task: data, a model, and how it is trained."""

    data: Callable[[int], Data]
    """By seed."""
    model: Callable[[int], nn.Module]
    """By seed: inputs to logits over the last dimension."""
    learning_rate: float
    batch: int
    """Samples of each node in each step."""
    num_epochs: int
    steps_per_epoch: int

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Of what is trained."""
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=self.learning_rate)

    def schedule(self, optimizer: torch.optim.Optimizer) -> CosineAnnealingLR:
        """From `learning_rate` to nothing over all steps: at a constant rate training ends on the edge of what is stable."""
        return CosineAnnealingLR(optimizer, self.num_epochs * self.steps_per_epoch)


def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy."""
    return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def limit(model: nn.Module) -> None:
    """Scale the gradient down to `MAX_GRADIENT_NORM`: a batch that the model finds strange moves it no further than others."""
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, chosen: Tensor) -> None:
    """One step on these samples."""
    optimizer.zero_grad()
    loss(model, data.inputs[chosen], data.targets[chosen]).backward()
    limit(model)
    optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """In percent, of the targets that are held out."""
    found = model(data.inputs[data.held_out]).argmax(dim=-1)
    return 100.0 * float((found == data.targets[data.held_out]).double().mean())


DIGITS_PER_NODE, CLASS_SKEW, NUM_HELD_OUT_DIGITS = 60, 0.5, 800


def _digits(seed: int) -> Data:
    from sklearn.datasets import load_digits  # here, for it takes as long to import as everything else of this module

    digits, generator = load_digits(), np.random.default_rng(seed)
    order = generator.permutation(len(digits.target))
    held_out, rest = order[:NUM_HELD_OUT_DIGITS], list(order[NUM_HELD_OUT_DIGITS:])
    nodes = []
    for _ in range(NUM_NODES):
        shares = generator.dirichlet([CLASS_SKEW] * 10)
        weights = shares[digits.target[rest]] + 1e-9
        chosen = generator.choice(len(rest), DIGITS_PER_NODE, replace=False, p=weights / weights.sum())
        nodes.append(torch.tensor([int(rest[index]) for index in chosen]))
        rest = [sample for index, sample in enumerate(rest) if index not in set(chosen)]
    pixels = torch.from_numpy(digits.images).float().unsqueeze(1) / 16.0
    return Data(pixels, torch.from_numpy(digits.target), tuple(nodes), torch.from_numpy(held_out))


def _residual(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(*[layer.build() for layer in residual_layers(1, 12)])


SHAPE = GptShape(num_blocks=2, width=48, num_heads=4, sequence_length=32, dropout=0.0)
WINDOWS_PER_NODE, WINDOWS_HELD_OUT = 100, 30


def _text(seed: int, source: Callable[[], bytes]) -> Data:
    """Every node another stretch of a text; every stretch ends with windows that are held out."""
    per_node = WINDOWS_PER_NODE + WINDOWS_HELD_OUT
    length = SHAPE.sequence_length
    values = torch.frombuffer(bytearray(source()), dtype=torch.uint8).long()
    windows = values[: (len(values) - 1) // length * length].view(-1, length)
    following = values[1 : 1 + windows.numel()].view(-1, length)
    order = torch.randperm(len(windows) // per_node, generator=torch.Generator().manual_seed(seed))[:NUM_NODES]
    starts = [int(stretch) * per_node for stretch in order]
    nodes = tuple(torch.arange(start, start + WINDOWS_PER_NODE) for start in starts)
    held_out = torch.cat([torch.arange(start + WINDOWS_PER_NODE, start + per_node) for start in starts])
    return Data(windows, following, nodes, held_out)


def _topics() -> bytes:
    """Python's help texts, topics in alphabetical order."""
    return "\n".join(topics[name] for name in sorted(topics)).encode()


@cache
def _sources() -> bytes:
    """Python's standard library, modules in alphabetical order."""
    return b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")))[:2_000_000]


class Decoder(nn.Module):
    """The runtime's decoder as one module, its head tied to the embedding. [B, T] to [B, T, bytes]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[layer.build() for layer in gpt_layers(SHAPE)])
        self.layers[-1].register_parameter("weight", self.layers[0].get_parameter("tokens.weight"))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte."""
        logits: Tensor = self.layers(tokens)
        return logits


def _decoder(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Decoder()


RANK, PRETRAINING_STEPS, PRETRAINING_BATCH = 4, 400, 24


class LowRank(nn.Module):
    """A linear layer that stays as it is, and a product of two thin matrices beside it that learns (Hu et al. 2021)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Parameter(torch.randn(RANK, linear.in_features) / linear.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        result: Tensor = self.linear(hidden) + hidden @ self.down.T @ self.up.T
        return result


@cache
def _known(seed: int) -> dict[str, Tensor]:
    """The decoder after it learnt the help texts."""
    model = _decoder(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data, generator = _text(seed, _topics), torch.Generator().manual_seed(seed)
    for _ in range(PRETRAINING_STEPS):
        learn(model, optimizer, data, torch.randint(len(data.inputs), (PRETRAINING_BATCH,), generator=generator))
    return model.state_dict()


def _adapted(seed: int) -> nn.Module:
    model = _decoder(seed)
    model.load_state_dict(_known(seed))
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, LowRank(child))
    return model


LEARNERS = {
    DIGITS: Learner(_digits, _residual, learning_rate=1e-2, batch=10, num_epochs=250, steps_per_epoch=6),
    TEXT: Learner(partial(_text, source=_topics), _decoder, learning_rate=3e-3, batch=5, num_epochs=60, steps_per_epoch=20),
    LORA: Learner(partial(_text, source=_sources), _adapted, learning_rate=3e-3, batch=5, num_epochs=20, steps_per_epoch=20),
}
