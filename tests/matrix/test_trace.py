from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from kintsugi.matrix.models import AveragingAdamW
from kintsugi.matrix.trace import VALUES_PER_TENSOR, distances, read_trace, traced


def train(folder, *, num_steps: int, every: int, seed: int, shift: float = 0.0) -> list[np.ndarray]:
    """Parameters after every update."""
    torch.manual_seed(seed)
    weight, bias = nn.Parameter(torch.randn(10, 7, dtype=torch.float64) + shift), nn.Parameter(torch.randn(3, dtype=torch.float64))
    factory = partial(AveragingAdamW, learning_rate=0.1, num_kept=2)
    optimizer = traced(factory, folder, every, [("a.weight", weight), ("b.bias", bias)])
    seen = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        (weight.square().sum() + bias.sum()).backward()
        optimizer.step()
        seen.append(np.concatenate([weight.detach().numpy().ravel(), bias.detach().numpy()]))
    return seen


def test_the_distance_of_whole_tensors_is_exact(tmp_path):
    mine = train(tmp_path / "mine", num_steps=6, every=2, seed=0, shift=0.5)
    other = train(tmp_path / "other", num_steps=6, every=2, seed=0)
    found = distances(read_trace(tmp_path / "mine"), read_trace(tmp_path / "other"))
    expected = {n: np.linalg.norm(mine[n - 1] - other[n - 1]) / np.linalg.norm(other[n - 1]) for n in (2, 4, 6)}
    assert found == pytest.approx(expected)


def test_a_run_is_no_distance_from_itself(tmp_path):
    for name in ("one", "two"):
        train(tmp_path / name, num_steps=4, every=1, seed=3)
    assert set(distances(read_trace(tmp_path / "one"), read_trace(tmp_path / "two")).values()) == {0.0}


def test_large_tensors_are_estimated_from_a_sample(tmp_path):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(100, 97, generator=generator, dtype=torch.float64)
    noise = torch.randn(100, 97, generator=generator, dtype=torch.float64)
    for name, parameter in {"one": nn.Parameter(values), "two": nn.Parameter(values + 0.01 * noise)}.items():
        optimizer = traced(lambda named: torch.optim.Adam([p for _, p in named], lr=0.0), tmp_path / name, 1, [("a.w", parameter)])
        parameter.square().sum().backward()
        optimizer.step()
    one, two = read_trace(tmp_path / "one"), read_trace(tmp_path / "two")
    assert len(one[1]["a.w"][0]) <= VALUES_PER_TENSOR
    assert distances(two, one)[1] == pytest.approx(0.01, rel=0.2)


def test_updates_of_which_a_part_is_missing_are_left_out(tmp_path):
    whole = {1: {"a": (np.ones(2), 2), "b": (np.ones(2), 2)}}
    assert distances(whole, {1: {"a": (np.ones(2), 2)}}) == {}
    assert distances({}, whole) == {}
