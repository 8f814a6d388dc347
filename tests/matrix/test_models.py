import time

import pytest
import torch
from torch import nn

from kintsugi.matrix.models import AveragingAdamW, class_loss, emulated, residual_layers


def test_the_optimizer_updates_as_adamw_does_and_keeps_the_latest_weights():
    torch.manual_seed(0)
    start = torch.randn(5, dtype=torch.float64)
    mine, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    keeping = AveragingAdamW([("w", mine)], learning_rate=0.1, num_kept=3)
    plain = torch.optim.AdamW([other], lr=0.1)
    history = []
    for _ in range(5):
        for parameter, optimizer in ((mine, keeping), (other, plain)):
            optimizer.zero_grad()
            parameter.square().sum().backward()
            optimizer.step()
        history.append(other.detach().clone())
    assert torch.equal(mine, other)
    kept = {tuple(row.tolist()) for row in keeping.state[mine]["kept"]}
    assert kept == {tuple(row.tolist()) for row in history[-3:]}


def test_the_state_is_as_many_copies_of_the_weights_as_asked_beside_adams_two():
    parameter = nn.Parameter(torch.zeros(100))
    optimizer = AveragingAdamW([("w", parameter)], learning_rate=0.1, num_kept=7)
    parameter.sum().backward()
    optimizer.step()
    values = sum(value.numel() for value in optimizer.state[parameter].values() if value.numel() > 1)
    assert values == (2 + 7) * 100


def test_a_residual_network_learns_a_batch():
    torch.manual_seed(0)
    modules = [layer.build() for layer in residual_layers(2, 8)]
    pixels, labels = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    optimizer = torch.optim.Adam([p for module in modules for p in module.parameters()], lr=1e-2)
    losses = []
    for _ in range(30):
        hidden = pixels
        for module in modules:
            hidden = module(hidden)
        assert hidden.shape == (16, 10)
        loss = class_loss((hidden,), {"label": labels})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_an_emulated_accelerator_takes_its_time_without_the_processor_and_changes_no_number(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    results = []
    for layers in (residual_layers(1, 4), emulated(residual_layers(1, 4), 0.3)):
        torch.manual_seed(0)
        modules = [layer.build() for layer in layers]
        hidden = torch.ones(2, 1, 8, 8)
        for module in modules:
            hidden = module(hidden)
        results.append(hidden)
    assert torch.equal(*results)
    assert slept == [0.3 / 3] * 3


def test_shapes_are_found_without_waiting(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    with torch.device("meta"):
        emulated(residual_layers(1, 4), 0.3)[0].build()(torch.ones(2, 1, 8, 8))
