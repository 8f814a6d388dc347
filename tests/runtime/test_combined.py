"""Several optimizers as one, and what an optimizer keeps where it would not move with the parameters."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.brought import optimizer_of
from kintsugi.runtime.measuring.profiler import profile_layers
from kintsugi.runtime.optimizer_state import OptimizerState
from kintsugi.runtime.workers.state import ModelState
from tests.core.refusals import refuses
from tests.runtime.jobs import odd_job


class Scaled(nn.Module):
    """A matrix and a single number that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(2, 3))
        self.scale = nn.Parameter(torch.tensor(1.0))


class Inner(torch.optim.Optimizer):
    """Steps with two others, each of some of the parameters; all have one state, or each its own."""

    def __init__(self, parameters, *, has_one_state: bool) -> None:
        first, *others = parameters
        super().__init__(parameters, {})
        self.inner = [torch.optim.AdamW([first]), torch.optim.AdamW(others)]
        self.param_groups = [group for one in self.inner for group in one.param_groups]
        for one in self.inner if has_one_state else ():
            one.state = self.state

    def step(self, closure=None) -> None:
        for one in self.inner:
            one.step()


class Counting(torch.optim.SGD):
    """Keeps in attributes of its own how often it has updated, or what."""

    def __init__(self, parameters, kept) -> None:
        super().__init__(parameters)
        self.kept, self.is_ready = kept, False

    def step(self, closure=None) -> None:
        super().step()
        self.is_ready = True
        if isinstance(self.kept, list):
            self.kept.append(1)
        elif self.kept is not None:
            self.kept += 1


def under_schedule(parameters) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


@pytest.mark.parametrize(
    ("make", "value", "told"),
    [
        (under_schedule, "SGD", "SGD under a schedule of torch.optim.lr_scheduler, .*: give learning_rate_factor"),
        (partial(Inner, has_one_state=False), "inner", "whose 'inner' is another optimizer, .*: return all of them as a list"),
    ],
)
def test_an_optimizer_whose_state_lies_elsewhere_is_refused_with_the_way_out(make, value, told):
    with pytest.raises(InvalidInputError, match=told) as caught:
        optimizer_of(make(list(Scaled().parameters())))
    assert (caught.value.field, caught.value.value) == ("optimizer", value)


def test_optimizers_within_one_may_share_its_state():
    optimizer = optimizer_of(Inner(list(Scaled().parameters()), has_one_state=True))
    assert isinstance(optimizer, Inner)


def counting(kept, named):
    return Counting([parameter for _, parameter in named], copy.deepcopy(kept))


def counting_beside_another(kept, named):
    first, *others = named
    return [torch.optim.SGD([first[1]]), *([[counting(kept, others)]] if others else [])]


@pytest.mark.parametrize("make", [counting, counting_beside_another])
@pytest.mark.parametrize("kept", [0, 1.5, [], torch.zeros(2)], ids=str)
def test_an_optimizer_that_changes_its_own_attributes_is_refused_after_its_first_update(make, kept):
    job = replace(odd_job(), optimizer=partial(make, kept))
    state = ModelState.initial(job, range(2))
    for parameter in state.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    told = "whose 'kept' changes with its updates and belongs to no parameter, and would stay behind"
    with refuses("optimizer", "kept", told):
        state.update(0)
    with refuses("optimizer", "kept", told):
        profile_layers(job, repeats=1)


def test_a_switch_is_no_state():
    optimizer = Counting([nn.Parameter(torch.ones(2))], None)
    state = OptimizerState(optimizer)
    optimizer.step()
    assert optimizer.is_ready
    state.require_nothing_beside()


def test_optimizers_of_some_parameters_each_step_as_one():
    made = Scaled(), Scaled()
    apart = [torch.optim.Muon([made[0].matrix], lr=0.1), torch.optim.Adagrad([made[0].scale], lr=0.2)]
    together = optimizer_of([torch.optim.Muon([made[1].matrix], lr=0.1), torch.optim.Adagrad([made[1].scale], lr=0.2)])
    for _ in range(3):
        for parameter in (*made[0].parameters(), *made[1].parameters()):
            parameter.grad = parameter.detach().cos()
        for optimizer in (*apart, together):
            optimizer.step()
    assert [group["lr"] for group in together.param_groups] == [0.1, 0.2]
    assert torch.equal(made[0].matrix, made[1].matrix)
    assert torch.equal(made[0].scale, made[1].scale)
    assert set(together.state) == set(made[1].parameters())
    assert len(together.state) == 2
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer_of([torch.optim.SGD(made[0].parameters()), torch.optim.SGD([made[0].scale])])


def in_a_list(*parts):
    return [torch.optim.AdamW(part) for part in parts if part]


def in_lists_within_one(*parts):
    return [[torch.optim.AdamW(part)] for part in parts if part]


def in_a_part(*parts):
    parameters = [parameter for part in parts for parameter in part]
    return [Inner(parameters, has_one_state=True) if len(parameters) > 1 else torch.optim.AdamW(parameters)]


@pytest.mark.parametrize("make", [in_a_list, in_lists_within_one, in_a_part])
def test_state_of_every_part_goes_where_its_parameter_goes(make):
    """However optimizers are held by each other."""

    def optimizer(named):
        parameters = [parameter for _, parameter in named]
        return make([p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() < 2])

    job = replace(odd_job(), optimizer=optimizer, learning_rate_factor=None)
    states = [ModelState.initial(job, range(2)) for _ in range(2)]
    for step in range(4):
        for state in states:
            for number, parameter in enumerate(state.parameters.values()):
                parameter.grad = torch.full_like(parameter, number + step).sin()
            state.update(step)
        states[1] = states[1].rebuilt([0, 1], {})
    for own, moved in zip(states[0].parameters.values(), states[1].parameters.values(), strict=True):
        assert torch.equal(own, moved)
