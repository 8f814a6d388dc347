"""A layer may not change what replicas hold alike."""

import pytest
import torch
from torch import nn

from kintsugi.runtime.workers import demands
from kintsugi.runtime.workers.demands import Watch, scale, squared_norm
from tests.core.refusals import refuses
from tests.runtime.operations import Operations


class Renamed(nn.Module):
    """Puts another parameter in the place of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.weight = nn.Parameter(self.weight.detach().clone())
        return values * self.weight


class Counting(nn.Module):
    """Begins to keep a buffer once it is used."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.register_buffer("passes", torch.ones(()))
        return values


class Unseen(nn.Module):
    """Counts in a way that torch does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((2, 2), torch.nan).t())
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.passes.data.add_(1)
        return values


LAYERS = {
    "a norm limit": (lambda: nn.Embedding(8, 4, max_norm=0.1), torch.arange(8), "weight", "parameter 'weight'"),
    "another parameter": (Renamed, torch.ones(3), "weight", "parameter 'weight'"),
    "running state": (lambda: nn.BatchNorm1d(3), torch.ones(4, 3), "num_batches_tracked", "buffer 'num_batches_tracked'"),
    "running state that torch does not see": (Unseen, torch.ones(3), "passes", "buffer 'passes'"),
    "a buffer of its own accord": (Counting, torch.ones(3), "passes", "buffer 'passes'"),
    "a part's norm limit": (
        lambda: nn.Sequential(nn.Identity(), nn.Embedding(8, 4, max_norm=0.1)),
        torch.arange(8),
        "1.weight",
        "parameter '1.weight'",
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_changes_its_state_in_forward_is_refused_with_its_name(name):
    build, values, key, what = LAYERS[name]
    module = build()
    with refuses("layers", key, f"layer 'first' changes its {what}"), Watch("first", module).unchanged():
        module(values)


def test_an_optimizer_may_change_parameters_between_two_passes():
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.ReLU(inplace=True))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    watch = Watch("first", module)
    for _ in range(2):
        with watch.unchanged():
            loss = module(torch.ones(1, 3)).sum()
        loss.backward()
        optimizer.step()


def test_the_norm_is_that_of_all_gradients_in_64_bits(monkeypatch):
    monkeypatch.setattr(demands, "_PIECE", 64)
    numbers = torch.randn(4000, dtype=torch.float64)
    gradients = [numbers[:3000].reshape(50, 60).t(), None, torch.empty(0), numbers[3000:3990].reshape(990, 1), *numbers[3990:]]
    assert squared_norm(gradients).item() == pytest.approx(numbers.square().sum().item(), rel=1e-13)
    narrow = [torch.full((100,), 1e30), torch.full((7,), 3.0, dtype=torch.bfloat16)]
    assert squared_norm(narrow).item() == pytest.approx(100 * narrow[0][0].double().item() ** 2, rel=1e-15)
    assert squared_norm([torch.tensor([1.0, torch.inf])]).item() == torch.inf


def test_where_nothing_is_trained_the_norm_is_zero():
    assert squared_norm([None, torch.empty(0)]).item() == 0.0
    scale([], 2.0)


def test_many_gradients_take_as_many_operations_as_one():
    gradients = [torch.full((3,), float(number)) for number in range(300)]
    with Operations() as operations:
        squared_norm(gradients)
        scale(gradients, 0.5)
    assert operations.names == ["_foreach_norm", "stack", "pow", "sum", "_foreach_mul_"]
    assert all(torch.equal(gradient, torch.full((3,), number / 2)) for number, gradient in enumerate(gradients))
