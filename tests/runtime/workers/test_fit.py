"""A checkpoint is not gone on from by another model than the one that it is of."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from kintsugi.core.decision import StateKind
from kintsugi.runtime.checkpoints.snapshots import layer_entries, layer_part, read_layers, write_part
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import NamedParameters, TrainingJob
from kintsugi.runtime.optimizer_state import are_alike, kind_of
from kintsugi.runtime.workers.fit import UPDATED_BY
from kintsugi.runtime.workers.state import ModelState
from restorer.staging import ArrivedState
from tests.core.refusals import refuses
from tests.runtime.jobs import momentum, odd_job, stateless

Change = Callable[[nn.Module], object]


class Gain(nn.Module):
    """A parameter of one number, one of two by two and a buffer; and then a change of them."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((1,), 0.5))
        self.mix = nn.Parameter(torch.ones(2, 2))
        self.register_buffer("scale", torch.ones(1))
        change(self)


def adamw(parameters: NamedParameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for _, p in parameters], lr=0.01)


def unchanged(_: nn.Module) -> None:
    """As it is."""


def gain_job(change: Change = unchanged, optimizer=momentum) -> TrainingJob:
    layers = [Layer(name="gain", build=lambda: Gain(change))]
    return replace(odd_job(), layers=layers, optimizer=optimizer)


def written(folder, job: TrainingJob) -> ArrivedState:
    """A layer's state after an update, as it is read from a checkpoint."""
    state = ModelState.initial(job, [0])
    for parameter in state.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    state.update(0)
    write_part(folder, layer_part(0), layer_entries(state, 0))
    return read_layers(folder, [0])


def wider(module: nn.Module) -> None:
    module.gain = nn.Parameter(torch.full((12,), 0.5))


def of_whole_numbers(module: nn.Module) -> None:
    module.scale = torch.ones(1, dtype=torch.int64)


def longer_buffer(module: nn.Module) -> None:
    module.scale = torch.ones(12)


def frozen(module: nn.Module) -> None:
    module.mix.requires_grad_(False)


def without(module: nn.Module) -> None:
    del module.mix


def extended(module: nn.Module) -> None:
    module.more = nn.Parameter(torch.zeros(3))


CHANGES = {
    wider: ("gain.gain", "parameter 'gain.gain' was (1,) float64 and is (12,) float64"),
    longer_buffer: ("gain.scale", "buffer 'gain.scale' was (1,) float64 and is (12,) float64"),
    of_whole_numbers: ("gain.scale", "buffer 'gain.scale' was (1,) float64 and is (1,) int64"),
    without: ("gain.mix", "parameter 'gain.mix' was (2, 2) float64 and is not there"),
    extended: ("gain.more", "parameter 'gain.more' was not there and is (3,) float64"),
    frozen: ("gain.mix", "parameter 'gain.mix' was trained by SGD and is not trained"),
}


@pytest.mark.parametrize(("change", "value", "told"), [(change, *told) for change, told in CHANGES.items()])
def test_another_layer_is_refused_with_what_differs(tmp_path, change, value, told):
    arrived = written(tmp_path, gain_job())
    with refuses("layers", value, f"layer 'gain' is not as it was when its state was written: {told}; train on"):
        ModelState(gain_job(change), {}, {}).rebuilt([0], arrived)


def test_a_parameter_that_was_not_trained_is_not_trained_on(tmp_path):
    arrived = written(tmp_path, gain_job(frozen))
    with refuses("layers", "gain.mix", "was not trained and is trained by SGD"):
        ModelState(gain_job(), {}, {}).rebuilt([0], arrived)


def test_another_kind_of_optimizer_is_refused_and_other_settings_of_the_same_are_not(tmp_path):
    arrived = written(tmp_path, gain_job())
    with refuses("layers", "gain.gain", "was trained by SGD and is trained by AdamW"):
        ModelState(gain_job(optimizer=adamw), {}, {}).rebuilt([0], arrived)
    ModelState(gain_job(optimizer=stateless), {}, {}).rebuilt([0], arrived)


def several(*parts: tuple[type[torch.optim.Optimizer], str]):
    """Each updates the parameter that is called so."""

    def optimizer(parameters: NamedParameters) -> list[torch.optim.Optimizer]:
        named = dict(parameters)
        return [kind([named[f"gain.{name}"]], lr=0.01) for kind, name in parts]

    return optimizer


SGD, ADAMW, RADAM = torch.optim.SGD, torch.optim.AdamW, torch.optim.RAdam


@pytest.mark.parametrize(
    ("parts", "name", "told"),
    [
        ([(SGD, "mix"), (RADAM, "gain")], "gain.gain", "was trained by AdamW and is trained by RAdam"),
        ([(ADAMW, "mix"), (SGD, "gain")], "gain.gain", "was trained by AdamW and is trained by SGD"),
        ([(SGD, "mix")], "gain.gain", "was trained by AdamW and is not trained"),
    ],
    ids=["another", "moved", "left out"],
)
def test_of_several_optimizers_each_goes_on_where_it_was_itself(tmp_path, parts, name, told):
    arrived = written(tmp_path, gain_job(optimizer=several((SGD, "mix"), (ADAMW, "gain"))))
    with refuses("layers", name, told):
        ModelState(gain_job(optimizer=several(*parts)), {}, {}).rebuilt([0], arrived)


@pytest.mark.parametrize("is_lone", [True, False])
def test_one_optimizer_may_be_given_alone_or_in_a_list(tmp_path, is_lone):
    lone, listed = gain_job(optimizer=adamw), gain_job(optimizer=lambda parameters: [adamw(parameters)])
    arrived = written(tmp_path, lone if is_lone else listed)
    found = ModelState(listed if is_lone else lone, {}, {}).rebuilt([0], arrived)
    exported = found.export(0, StateKind.OPTIMIZER)
    assert torch.equal(exported["gain.mix", "exp_avg"], arrived[0, StateKind.OPTIMIZER]["gain.mix", "exp_avg"])


def test_what_earlier_versions_wrote_of_several_optimizers_is_read(tmp_path):
    job = gain_job(optimizer=several((SGD, "mix"), (ADAMW, "gain")))
    arrived = written(tmp_path, job)
    of_layer = arrived[0, StateKind.PARAMETER]
    before = {place: "Combined" if place[1] == UPDATED_BY else value for place, value in of_layer.items()}
    ModelState(job, {}, {}).rebuilt([0], arrived | {(0, StateKind.PARAMETER): before})


def test_what_earlier_versions_wrote_is_read(tmp_path):
    job = gain_job()
    arrived = written(tmp_path, job)
    before = {place: value for place, value in arrived[0, StateKind.PARAMETER].items() if place[1] != UPDATED_BY}
    assert len(before) == len(arrived[0, StateKind.PARAMETER]) - 2
    found = ModelState(job, {}, {}).rebuilt([0], arrived | {(0, StateKind.PARAMETER): before})
    assert torch.equal(found.parameters["gain.mix"], before["gain.mix", "parameter"])


def test_an_optimizer_goes_on_from_one_that_its_class_is_derived_from():
    adam, adamw, sgd = (kind_of(kind([torch.ones(1)])) for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD))
    assert are_alike(adam, adamw)
    assert are_alike(adamw, adam)
    assert not are_alike(adam, sgd)
    assert not are_alike(None, sgd)
