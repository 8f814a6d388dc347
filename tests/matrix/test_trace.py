from functools import partial

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from kintsugi.matrix import store
from kintsugi.matrix.cell import Variant
from kintsugi.matrix.models import AveragingAdamW
from kintsugi.matrix.trace import TRACE, VALUES_PER_TENSOR, compare, distances, read_trace, traced
from tests.matrix import records


def optimizer_of(folder, every: int, *parameters: nn.Parameter) -> torch.optim.Optimizer:
    factory = partial(AveragingAdamW, learning_rate=0.1, num_kept=2)
    return traced(factory, folder, every, list(zip(("a.weight", "b.bias"), parameters, strict=True)))


def train(folder, *, num_steps: int, every: int, seed: int, shift: float = 0.0) -> list[np.ndarray]:
    """Parameters after every update."""
    torch.manual_seed(seed)
    weight, bias = nn.Parameter(torch.randn(10, 7, dtype=torch.float64) + shift), nn.Parameter(torch.randn(3, dtype=torch.float64))
    optimizer = optimizer_of(folder, every, weight, bias)
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


def test_a_file_that_ended_within_its_first_line_holds_nothing(tmp_path):
    train(tmp_path, num_steps=2, every=1, seed=0)
    whole = read_trace(tmp_path)
    for name, text in (("empty", ""), ("torn", '[["a.weig')):
        (tmp_path / f"{name}.trace").write_text(text)
    assert read_trace(tmp_path).keys() == whole.keys() == {1, 2}


def test_a_full_disk_ends_the_samples_with_one_warning_and_not_the_training(tmp_path):
    weight, bias = nn.Parameter(torch.ones(10, 7)), nn.Parameter(torch.ones(3))
    optimizer = optimizer_of(tmp_path / TRACE, 1, weight, bias)

    def step() -> None:
        weight.grad, bias.grad = torch.ones_like(weight), torch.ones_like(bias)
        optimizer.step()

    step()
    (file,) = (tmp_path / TRACE).iterdir()
    kept = file.rename(tmp_path / file.name)
    file.symlink_to("/dev/full")
    with capture_logs() as told:
        step()
        step()
        file.unlink()  # there is room again, behind a record that may be torn
        step()
    assert [(line["event"], line["reason"]) for line in told] == [
        ("samples of the parameters are not written any more", "No space left on device")
    ]
    assert list((tmp_path / TRACE).iterdir()) == []
    assert read_trace(kept.parent).keys() == {1}


def test_a_comparison_says_that_samples_are_missing(tmp_path):
    mine, reference = records.cell(Variant.MEMORY), records.cell(Variant.REFERENCE)
    store.write_steps(mine, records.steps(mine, distance=None), tmp_path)
    for each, num_steps in ((mine, 4), (reference, 10)):
        train(each.folder(tmp_path) / TRACE, num_steps=num_steps, every=2, seed=0)
    with capture_logs() as told:
        compare(mine, reference, tmp_path)
    assert [(line["cell"], line["missing"], line["sampled"]) for line in told] == [(mine.name, 3, 5)]


def test_a_comparison_that_was_stopped_as_it_removed_samples_keeps_what_it_told(tmp_path):
    mine, reference = records.cell(Variant.MEMORY), records.cell(Variant.REFERENCE)
    store.write_steps(mine, records.steps(mine, distance=None), tmp_path)
    for each, shift in ((mine, 0.5), (reference, 0.0)):
        train(each.folder(tmp_path) / TRACE, num_steps=4, every=2, seed=0, shift=shift)
    compare(mine, reference, tmp_path)
    told = store.read_steps(mine, tmp_path)
    assert [step.global_step for step in told if step.parameter_distance] == [1, 3]
    (mine.folder(tmp_path) / TRACE).mkdir()  # with nothing left in it
    compare(mine, reference, tmp_path)
    assert store.read_steps(mine, tmp_path) == told


def test_updates_of_which_a_part_is_missing_are_left_out(tmp_path):
    whole = {1: {"a": (np.ones(2), 2), "b": (np.ones(2), 2)}}
    assert distances(whole, {1: {"a": (np.ones(2), 2)}}) == {}
    assert distances({}, whole) == {}
