"""State that arrives from elsewhere lies where torch's optimizers keep it; memory without content stands in for a device."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from kintsugi.core.decision import StateKind
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.measuring.profiler import profile_layers
from kintsugi.runtime.mixed_precision import mixed_precision_adamw
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.optimizer_state import OptimizerState, flat, groups_by_parameter, kept, load_exactly, nested
from kintsugi.runtime.overlay.flat_state import FlatState
from kintsugi.runtime.workers.state import ModelState
from restorer.packing import StateEntries, pack, unpack
from tests.core.refusals import refuses
from tests.runtime.jobs import odd_job

DEVICE = torch.device("meta")
ON_DEVICE = {"fused": {"fused": True}, "capturable": {"capturable": True}, "both": {"fused": True, "capturable": True}}


class Scaled(nn.Module):
    """A matrix and a single number that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(2, 3))
        self.scale = nn.Parameter(torch.tensor(1.0))


def stepped(parameters, make=torch.optim.AdamW, **options) -> torch.optim.Optimizer:
    """An optimizer after one step."""
    optimizer = make(parameters, **options)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def scaled_job(device: str, **options) -> TrainingJob:
    layers = [Layer(name="scaled", build=Scaled)]
    return replace(
        odd_job(),
        layers=layers,
        device=device,
        dtype=torch.float32,
        optimizer=lambda named: torch.optim.AdamW([parameter for _, parameter in named], **options),
    )


def migrated(**options) -> list[dict[str, torch.Tensor]]:
    """Optimizer state by parameter after a move from the CPU, where it is updated plainly, to the device."""
    source = ModelState.initial(scaled_job("cpu"), [0])
    for parameter in source.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    source.update(0)
    kinds = (StateKind.PARAMETER, StateKind.OPTIMIZER)
    arrived = {(0, kind): unpack(*pack(source.export(0, kind))) for kind in kinds}
    moved = ModelState(scaled_job(str(DEVICE), **options), {}, {}).rebuilt([0], arrived)
    return [moved.optimizers["scaled"].state[parameter] for parameter in moved.parameters.values()]


def joined(**options) -> list[dict[str, torch.Tensor]]:
    """The same after joining others, whose groups say what theirs do."""
    model, others = Scaled().to(DEVICE), Scaled()
    optimizer, source = torch.optim.AdamW(model.parameters()), stepped(others.parameters())
    source.param_groups[0] |= options
    arrived = unpack(*pack(FlatState(model=others, optimizer=source).entries(1)))
    FlatState(model=model, optimizer=optimizer).load(arrived)
    return [optimizer.state[parameter] for parameter in model.parameters()]


@pytest.mark.parametrize("moved", [migrated, joined])
@pytest.mark.parametrize("options", ON_DEVICE.values(), ids=ON_DEVICE)
def test_counters_of_fused_and_capturable_updates_lie_beside_their_parameters(moved, options):
    for state in moved(**options):
        assert {key: value.device.type for key, value in state.items()} == dict.fromkeys(state, "meta")
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("moved", [migrated, joined])
def test_counters_of_plain_updates_stay_in_host_memory(moved):
    """Of a parameter that is a single number itself, too."""
    for state in moved():
        assert {key: value.device.type for key, value in state.items()} == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}
        assert state["step"].item() == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, torch.float64),
        ({"fused": True}, torch.float32),
        ({"capturable": True}, torch.float64),
        (ON_DEVICE["both"], torch.float32),
    ],
)
def test_fused_updates_count_in_fp32_and_nothing_else_is_converted(options, expected):
    """As torch begins them where the default type is fp64."""
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    assert kept("step", torch.tensor(3.0, dtype=torch.float64), parameter, options).dtype is expected
    assert kept("exp_avg", torch.zeros(2), parameter, options).dtype is torch.float32
    assert kept("mu_product", torch.tensor(1.0, dtype=torch.float64), parameter, options).dtype is torch.float64
    assert kept("step", 3, parameter, options) == 3


def test_factored_moments_lie_beside_their_parameter():
    """Adafactor's have another shape than it."""
    parameter = nn.Parameter(torch.zeros(3, 4))
    state = stepped([parameter], torch.optim.Adafactor).state[parameter]
    devices = {key: kept(key, value, parameter.to(DEVICE), {}).device.type for key, value in state.items()}
    assert devices == {"step": "cpu", "row_var": "meta", "col_var": "meta"}


@pytest.mark.parametrize("is_capturable", [True, False])
def test_other_single_numbers_lie_where_counters_do(is_capturable):
    """NAdam's product of momenta."""
    parameter = nn.Parameter(torch.zeros(3))
    state = stepped([parameter], torch.optim.NAdam).state[parameter]
    product = kept("mu_product", state["mu_product"], parameter.to(DEVICE), {"capturable": is_capturable})
    assert product.device.type == ("meta" if is_capturable else "cpu")


def test_a_fused_optimizer_goes_on_bit_for_bit_from_what_was_kept():
    whole, moved = Scaled(), Scaled()
    source = stepped(whole.parameters(), fused=True)
    moved.load_state_dict(whole.state_dict())
    optimizer = torch.optim.AdamW(moved.parameters(), fused=True)
    groups = groups_by_parameter(optimizer.param_groups)
    for parameter, other in zip(moved.parameters(), whole.parameters(), strict=True):
        wide = {**source.state[other], "step": source.state[other]["step"].double()}
        optimizer.state[parameter] = {key: kept(key, value.clone(), parameter, groups[parameter]) for key, value in wide.items()}
    for each, own in ((whole, source), (moved, optimizer)):
        for parameter in each.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        own.step()
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), moved.parameters(), strict=True))


def test_counters_of_mixed_precision_lie_beside_their_parameters():
    parameters = [("matrix", nn.Parameter(torch.zeros(2, 2))), ("scale", nn.Parameter(torch.zeros(())))]
    groups = groups_by_parameter(mixed_precision_adamw(parameters).param_groups)
    for _, parameter in parameters:
        assert kept("step", torch.tensor(1.0), parameter.to(DEVICE), groups[parameter]).device == DEVICE


def updated(state: ModelState) -> ModelState:
    for parameter in state.parameters.values():
        parameter.grad = torch.full_like(parameter, 0.5)
    state.update(0)
    return state


def test_lists_of_tensors_move_and_training_goes_on_the_same():
    job = odd_job("preconditioned")
    state = updated(ModelState.initial(job, [1]))
    kinds = (StateKind.PARAMETER, StateKind.OPTIMIZER)
    arrived = {(1, kind): unpack(*pack(state.export(1, kind))) for kind in kinds}
    moved = ModelState(job, {}, {}).rebuilt([1], arrived)
    updated(state), updated(moved)
    for name, parameter in moved.parameters.items():
        assert torch.equal(parameter, state.parameters[name])
        own = moved.optimizers["mixer0"].state[parameter]
        assert own["counted"] == (2, 0.5)
        assert [tuple(total.shape) for total in own["sums"]] == [(size,) for size in parameter.shape]


def test_what_a_state_holds_comes_back():
    state = {"step": 3, "rows": [torch.ones(2), None, {"deep": (torch.zeros(()), 1)}], "exp_avg": torch.ones(1)}
    found = nested(flat(state))
    assert found["step"] == 3
    assert found["exp_avg"] is state["exp_avg"]
    assert found["rows"][0] is state["rows"][0]
    assert found["rows"][2]["deep"] == (torch.zeros(()), 1)


class Strange(torch.optim.SGD):
    """Keeps an object of its own for every parameter."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["helper"] = object()


def strange_job() -> TrainingJob:
    return replace(odd_job(), optimizer=lambda named: Strange([parameter for _, parameter in named], lr=0.1))


def test_what_cannot_be_sent_is_refused_after_the_first_update():
    with refuses("optimizer.helper", fragment="holds a object, which cannot go on in another process"):
        updated(ModelState.initial(strange_job(), [1]))


def test_what_cannot_be_sent_is_refused_before_training_where_the_job_is_measured():
    with refuses("optimizer.helper"):
        profile_layers(strange_job(), repeats=1)


def test_lists_of_tensors_count_in_the_profile():
    mixer = profile_layers(odd_job("preconditioned"), repeats=1).profiles[1]
    assert mixer.optimizer_bytes == 8 * (2 * 6 + 2)


class Holding(torch.optim.SGD):
    """Puts into its groups what it is given, in the place of what was there when it was made."""

    def __init__(self, parameters, *, made, put):
        super().__init__(parameters, lr=0.1)
        self.put = put
        for group in self.param_groups:
            group["own"] = made

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["own"] = self.put


def holding_job(made: object, put: object) -> TrainingJob:
    return replace(odd_job(), optimizer=lambda named: Holding([parameter for _, parameter in named], made=made, put=put))


def test_what_cannot_be_sent_is_refused_where_an_optimizer_puts_it_into_a_group():
    with refuses("optimizer.param_groups.own", fragment="holds a object, which cannot go on in another process"):
        updated(ModelState.initial(holding_job(0, object()), [1]))


class Tallying(torch.optim.SGD):
    """Counts its steps beside what it keeps of its parameters."""

    def step(self, closure=None):
        super().step(closure)
        self.state["tally"] = self.state.get("tally", 0) + 1


def test_state_that_belongs_to_no_parameter_is_refused():
    job = replace(odd_job(), optimizer=lambda named: Tallying([parameter for _, parameter in named], lr=0.1))
    with refuses("optimizer", fragment="is Tallying, whose state['tally'] belongs to no parameter"):
        updated(ModelState.initial(job, [1]))
    model = Scaled()
    with refuses("optimizer", fragment="state['tally']"):
        FlatState(model=model, optimizer=stepped(model.parameters(), Tallying)).entries(1)


def test_settings_of_groups_stay_those_of_the_job():
    helper = object()
    state = updated(ModelState.initial(holding_job(helper, helper), [1]))
    assert state.export(1, StateKind.OPTIMIZER) == {}


@pytest.mark.parametrize(
    ("made", "put"),
    [(0, 1), (0, False), (0.0, -0.0), (1.0, float("nan")), ((1,), [1]), (None, torch.ones(2)), (torch.zeros(1), torch.ones(1))],
)
def test_whatever_an_optimizer_changes_in_a_group_moves(made, put):
    job = holding_job(made, put)
    state = updated(ModelState.initial(job, [1]))
    arrived = {(1, kind): unpack(*pack(state.export(1, kind))) for kind in (StateKind.PARAMETER, StateKind.OPTIMIZER)}
    (group,) = ModelState(job, {}, {}).rebuilt([1], arrived).optimizers["mixer0"].param_groups
    assert repr(group["own"]) == repr(put)


def test_tensors_that_are_changed_in_place_in_a_group_move():
    job = odd_job("averaging")
    state = updated(updated(ModelState.initial(job, [1])))
    arrived = {(1, kind): unpack(*pack(state.export(1, kind))) for kind in (StateKind.PARAMETER, StateKind.OPTIMIZER)}
    moved = ModelState(job, {}, {}).rebuilt([1], arrived)
    told = [[(g["count"], float(g["total"]), g["seen"]) for g in own.optimizers["mixer0"].param_groups] for own in (state, moved)]
    assert told[0] == told[1]
    assert [count for count, _, _ in told[0]] == [2, 2]


def test_an_optimizer_that_keeps_numbers_alone_has_bytes_in_the_profile():
    """Else plans would send nothing of it."""
    assert {own.optimizer_bytes for own in profile_layers(holding_job(0, 1), repeats=1).profiles} == {1}


def test_groups_that_share_a_tensor_share_it_where_they_go_on():
    def counting() -> tuple[nn.Parameter, torch.optim.Optimizer, OptimizerState]:
        parameter, total = nn.Parameter(torch.zeros(2)), torch.zeros(1)
        groups = [{"params": [parameter], "total": total}, {"params": [nn.Parameter(torch.zeros(1))], "total": total}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        return parameter, optimizer, OptimizerState(optimizer)

    (parameter, optimizer, state), (other, moved, moved_state) = counting(), counting()
    optimizer.param_groups[0]["total"].add_(3)
    moved_state.load(other, *state.export([parameter]))
    assert [group["total"].item() for group in moved.param_groups] == [3, 3]


class Wide(torch.optim.Optimizer):
    """Keeps fp32 beside whatever its parameters are."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"sum": torch.rand(parameter.shape), "recent": [(torch.rand(()), 1)], "name": "wide", "step": 1}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make", [torch.optim.NAdam, torch.optim.ASGD, torch.optim.AdamW, Wide])
def test_what_is_kept_in_another_type_than_its_parameter_is_loaded_as_it_was(make, dtype):
    def state(optimizer):
        return pack({(str(index), key): one for index, kept in told(optimizer).items() for key, one in flat(kept).items()})

    def told(optimizer):
        return optimizer.state_dict()["state"]

    def parameters():
        return list(Scaled().to(dtype).parameters())

    optimizer = stepped(parameters(), make)
    other = make(parameters())
    load_exactly(other, optimizer.state_dict())
    assert state(other)[0] == state(optimizer)[0]
    assert torch.equal(state(other)[1], state(optimizer)[1])
    before = state(optimizer)[1]
    for kept_there in told(other).values():
        for one in flat(kept_there).values():
            if isinstance(one, torch.Tensor):
                one.zero_()
    assert torch.equal(state(optimizer)[1], before), "they are copies"


@pytest.mark.parametrize("kind", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9)])
def test_moments_lie_in_the_order_of_their_parameters_numbers(kind):
    """Fused updates pass over memory as it lies: moments in another order would be those of other numbers."""

    def step(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in layer.parameters():
            parameter.grad = torch.empty_like(parameter).copy_(torch.arange(parameter.numel()).view(parameter.shape))
        optimizer.step()

    whole, moved = (nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last) for _ in range(2))
    source, target = (kind(layer.parameters(), lr=1e-3, fused=True) for layer in (whole, moved))
    step(whole, source)
    moved.load_state_dict(whole.state_dict())
    state, arrived = OptimizerState(target), OptimizerState(source).export(whole.parameters())
    for parameter, entries in zip(moved.parameters(), arrived, strict=True):
        state.load(parameter, {key: value for (_, key), value in sent(entries).items()})
    assert {value.stride() for value in target.state[moved.weight].values() if value.dim()} == {whole.weight.stride()}
    step(whole, source)
    step(moved, target)
    assert torch.equal(whole.weight, moved.weight)


def sent(entries: Mapping[str, Any]) -> StateEntries:
    return unpack(*pack({("", key): value for key, value in entries.items()}))
