"""What has to be the same for all workers of a job is told alike in every process, and named where it is not."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from kintsugi.runtime.layer import Layer
from kintsugi.runtime.likeness import Pattern, differences, traits
from kintsugi.runtime.models import NamedParameters, TrainingJob, model_shape
from tests.runtime.jobs import Exit, Mixer, Vectors, odd_job, stateless, tiny_gpt


def told(job: TrainingJob):
    return traits(job, model_shape(job))


def in_groups(parameters: NamedParameters, rate: float = 0.1) -> torch.optim.Optimizer:
    """No decay for what is called a bias."""
    groups = [
        {"params": [one for name, one in parameters if is_bias == name.endswith("bias")], "weight_decay": decay}
        for is_bias, decay in ((True, 0.0), (False, 0.01))
    ]
    return torch.optim.AdamW(groups, lr=rate)


def unmade(_: NamedParameters) -> torch.optim.Optimizer:
    raise ValueError("only on a full moon")


class Narrow(Mixer):
    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("make_job", [tiny_gpt, odd_job, partial(replace, odd_job(), optimizer=in_groups)])
def test_equal_jobs_are_alike(make_job):
    assert differences(told(make_job()), told(make_job())) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"device": "cpu:0"},
        {"recomputes_activations": True},
        {"learning_rate_factor": None},
        {"loss": max},
        {"dataset": [Vectors(100)[0]] * 100},
        {"optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01, foreach=True)},
    ],
)
def test_what_workers_may_have_of_their_own_is_no_difference(change):
    if "optimizer" in change:
        made = change["optimizer"]
        change = {"optimizer": lambda parameters: made([one for _, one in parameters])}
    assert differences(told(replace(odd_job(), **change)), told(odd_job())) == ""


def _with_layer(index: int, **changed: object) -> list[Layer]:
    layers = list(odd_job().layers)
    layers[index] = replace(layers[index], **changed)
    return layers


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_microbatches": 4, "microbatch_size": 4}, "num_microbatches is 4, not 8; microbatch_size is 4, not 2"),
        ({"num_steps": 3}, "num_steps is 3, not 4"),
        ({"seed": 6}, "seed is 6, not 5"),
        ({"max_grad_norm": None}, "max_grad_norm is None, not 0.5"),
        ({"dtype": torch.float32}, "dtype is float32, not float64"),
        ({"dataset": Vectors(90)}, "number of samples is 90, not 100"),
        ({"layers": _with_layer(1, build=Narrow)}, "mixer0.unused is (3,) float64, not (2,) float64"),
        ({"layers": _with_layer(1, name="other")}, "layer mixer0 is missing"),
        ({"layers": _with_layer(-1, tied={})}, "exit.weight is (6, 6) float64, not (6, 6) float64, tied to entry.weight"),
        ({"optimizer": stateless}, "optimizer of entry.weight is SGD(dampening=0, lr=0.05, maximize=False, momentum=0, "),
    ],
)
def test_what_differs_is_named(change, named):
    assert named in differences(told(replace(odd_job(), **change)), told(odd_job()))


class Heavy(torch.optim.SGD):
    """Has settings as SGD has."""


def test_parts_of_several_optimizers_are_told_by_their_own_classes():
    def job(kind: type[torch.optim.SGD]) -> TrainingJob:
        return replace(odd_job(), optimizer=lambda parameters: [kind([one for _, one in parameters], lr=0.1)])

    found = differences(told(job(Heavy)), told(job(torch.optim.SGD)))
    assert found.startswith("optimizer of entry.weight is Heavy(dampening=0, ")


def test_few_of_many_differences_are_told():
    job = replace(odd_job(), optimizer=in_groups)
    other = replace(job, optimizer=partial(in_groups, rate=0.2))
    found = differences(told(other), told(job))
    assert found.count(";") == 3
    assert "lr=0.2, maximize=False, weight_decay=0.01)" in found
    assert found.endswith("; and 16 more")


class Deeper(Exit):
    """The exit with its bias elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Module()
        self.inner.bias = torch.nn.Parameter(torch.zeros(6))
        del self.bias

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(hidden + 0.1 * residual, self.weight, self.inner.bias)


def test_parameters_that_only_one_has_are_told_once():
    other = replace(odd_job(), layers=_with_layer(-1, build=Deeper))
    expected = "exit.bias is missing; exit.inner.bias ((6,) float64) is not known to the others"
    assert differences(told(other), told(odd_job())) == expected


def test_groups_of_parameters_are_told_apart():
    found = told(replace(odd_job(), optimizer=in_groups))
    assert "weight_decay=0.0)" in found["optimizer of exit.bias"]
    assert "weight_decay=0.01)" in found["optimizer of entry.weight"]


def test_an_optimizer_that_refuses_parameters_without_values_is_not_told():
    assert not any(name.startswith("optimizer") for name in told(replace(odd_job(), optimizer=unmade)))


def test_all_are_held_beside_the_first():
    pattern, own = Pattern(), told(odd_job())
    assert pattern.differences("w03", own) == ""
    assert pattern.differences("w00", own) == ""
    assert pattern.differences("w01", {**own, "seed": "6"}) == "unlike that of w03: seed is 6, not 5"
    assert pattern.differences("w00", own) == ""


def test_frozen_layers_need_no_optimizer():
    layers = [*odd_job().layers[:-1], Layer(name="exit", build=Exit)]
    frozen = replace(odd_job(), layers=layers)
    assert "optimizer of entry.frozen" not in told(frozen)
    assert told(frozen)["entry.frozen"] == "(6,) float64 without a gradient"
