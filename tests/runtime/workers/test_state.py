"""A worker's layers: the same initial values everywhere, ties, and what moves when layers change hands."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from kintsugi.core.decision import StateKind
from kintsugi.core.errors import ReconfigurationError
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import TrainingJob, canonical_name
from kintsugi.runtime.workers.state import ModelState
from tests.runtime.jobs import langevin_job, odd_job, tiny_gpt, twice_named_job


def dotted_job() -> TrainingJob:
    """The odd job's layers under names with dots, of which some are the beginnings of others; ties go with them."""
    job, names = odd_job(), {"entry": "enc", "mixer0": "enc.0", "mixer1": "enc.1.0", "mixer3": "enc.1"}
    layers = [
        replace(layer, name=names.get(layer.name, layer.name), tied={own: _renamed(to, names) for own, to in layer.tied.items()})
        for layer in job.layers
    ]
    return replace(job, layers=layers)


def _renamed(target: str, names: dict[str, str]) -> str:
    owner, _, parameter = target.partition(".")
    return f"{names[owner]}.{parameter}"


JOBS = {
    "gpt": tiny_gpt,
    "odd": odd_job,
    "stateless": partial(odd_job, "stateless"),
    "averaging": partial(odd_job, "averaging"),
    "dotted": dotted_job,
    "twice named": twice_named_job,
}


@pytest.fixture(params=JOBS, name="job")
def any_job(request) -> TrainingJob:
    return JOBS[request.param]()


def layers_of(job: TrainingJob) -> range:
    return range(len(job.layers))


def trained(job: TrainingJob, layers: range) -> ModelState:
    """A state after two updates with gradients that depend on the parameter's name alone."""
    state = ModelState.initial(job, layers)
    for step in range(2):
        for name, parameter in state.parameters.items():
            generator = torch.Generator().manual_seed(step + sum(name.encode()))
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        state.set_learning_rate(step)
        state.update(step)
    return state


def exported(state: ModelState, layers: range):
    return {(layer, kind): state.export(layer, kind) for layer in layers for kind in (StateKind.PARAMETER, StateKind.OPTIMIZER)}


def copied(entries):
    return {
        place: {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in named.items()}
        for place, named in entries.items()
    }


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for place, named in one.items():
        assert named.keys() == other[place].keys(), place
        for key, value in named.items():
            found = other[place][key]
            assert torch.equal(value, found) if isinstance(value, torch.Tensor) else value == found, (place, key)


def test_layers_start_alike_wherever_they_are(job):
    whole = ModelState.initial(job, layers_of(job))
    for layer in layers_of(job):
        alone = ModelState.initial(job, range(layer, layer + 1))
        assert_equal({layer: alone.export(layer, StateKind.PARAMETER)}, {layer: whole.export(layer, StateKind.PARAMETER)})


def test_tied_parameters_are_one_object_and_stand_once(job):
    state = ModelState.initial(job, layers_of(job))
    assert len({id(parameter) for parameter in state.parameters.values()}) == len(state.parameters)
    for index, layer in enumerate(job.layers):
        for name, parameter in state.modules[index].named_parameters():
            assert parameter is state.parameters[canonical_name(layer, name)]


def test_a_tie_reaches_a_parameter_under_each_of_its_names():
    job = twice_named_job()
    truth = copied(exported(trained(job, layers_of(job)), layers_of(job)))
    last = len(job.layers) - 1
    for state in (
        ModelState.initial(job, layers_of(job)),
        ModelState.initial(job, [last]),
        trained(job, [last]).rebuilt([0, last], truth),
        trained(job, [0]).rebuilt([0, last], truth),
    ):
        for module in state.modules.values():
            names = dict(module.named_parameters(remove_duplicate=False))
            assert names["inner.weight"] is names.get("weight", names["inner.weight"])


def test_the_optimizer_gets_what_is_trained(job):
    state = ModelState.initial(job, layers_of(job))
    given = {id(p) for optimizer in state.optimizers.values() for group in optimizer.param_groups for p in group["params"]}
    assert given == {id(p) for p in state.parameters.values() if p.requires_grad}


def test_every_layer_has_an_optimizer_of_its_own_under_its_whole_name():
    job = dotted_job()
    state = ModelState.initial(job, layers_of(job))
    assert set(state.optimizers) == {layer.name for layer in job.layers}
    for layer in job.layers:
        own = [p for name, p in state.parameters.items() if p.requires_grad and own_layer(job, name) == layer.name]
        given = [p for group in state.optimizers[layer.name].param_groups for p in group["params"]]
        assert {id(p) for p in given} == {id(p) for p in own}


def own_layer(job: TrainingJob, parameter: str) -> str:
    """Of the layers whose names it begins with, the one with the longest."""
    return max((layer.name for layer in job.layers if parameter.startswith(f"{layer.name}.")), key=len)


def test_the_same_layers_need_nothing(job):
    state = trained(job, range(2, 5))
    before = copied(exported(state, range(2, 5)))
    new = state.rebuilt(range(2, 5), {})
    assert_equal(exported(new, range(2, 5)), before)


def test_any_change_of_layers_keeps_every_bit(job):
    whole = trained(job, layers_of(job))
    truth = copied(exported(whole, layers_of(job)))
    for start, stop in ((0, 3), (2, 6), (5, 8)):
        held = ModelState(job, {}, {}).rebuilt(range(start, stop), truth)
        for new_start, new_stop in ((0, 8), (0, 2), (3, 7), (7, 8)):
            wanted = range(new_start, new_stop)
            arrived = {place: copied({0: named})[0] for place, named in truth.items() if place[0] not in range(start, stop)}
            moved = held.rebuilt(wanted, arrived)
            assert_equal(exported(moved, wanted), {place: truth[place] for place in truth if place[0] in wanted})
            assert_equal(exported(held, range(start, stop)), {p: truth[p] for p in truth if p[0] in range(start, stop)})


def test_staging_and_giving_up_changes_nothing(job):
    """A tied layer arrives beside its partner; the present state must go on as if nothing had been."""
    whole = trained(job, layers_of(job))
    truth = copied(exported(whole, layers_of(job)))
    last = range(len(job.layers) - 1, len(job.layers))
    held = ModelState(job, {}, {}).rebuilt(last, truth)
    objects = {name: id(parameter) for name, parameter in held.modules[last.start].named_parameters()}
    held.rebuilt(layers_of(job), truth)
    assert {name: id(parameter) for name, parameter in held.modules[last.start].named_parameters()} == objects
    again = held.rebuilt(last, {})
    assert_equal(exported(again, last), {place: truth[place] for place in truth if place[0] in last})


class Expanded(nn.Module):
    """One number stands for many in its tensors, as `expand` has it; a parameter and a whole-numbered buffer of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, 1, dtype=torch.float64).expand(3, 2))
        self.frozen = nn.Parameter(torch.full((1,), 2.0).expand(4), requires_grad=False)
        self.register_buffer("position", torch.arange(4).unsqueeze(0).expand(2, -1))
        self.register_buffer("again", self.position)


def test_state_that_arrives_for_expanded_tensors_has_room():
    job = replace(odd_job(), layers=[Layer(name="expanded", build=Expanded)])
    whole = trained(job, range(1))
    truth = copied(exported(whole, range(1)))
    truth[0, StateKind.PARAMETER]["expanded.position", "buffer"].view(-1)[1] = 7
    moved = ModelState(job, {}, {}).rebuilt([0], truth)
    assert_equal(exported(moved, range(1)), truth)
    assert moved.modules[0].again is moved.modules[0].position
    assert len(set(moved.parameters["expanded.gain"].flatten().tolist())) == 6, "each is trained as the one that it is"


@pytest.mark.parametrize("optimizer", ["momentum", "averaging", "combined"])
def test_training_goes_on_the_same_after_a_move(optimizer):
    job = odd_job(optimizer)
    whole, held = trained(job, layers_of(job)), trained(job, range(3))
    moved = held.rebuilt(layers_of(job), copied(exported(whole, range(3, len(job.layers)))))
    for state in (whole, moved):
        for parameter in state.parameters.values():
            parameter.grad = torch.ones_like(parameter)
        state.set_learning_rate(2)
        state.update(2)
    assert_equal(exported(moved, layers_of(job)), exported(whole, layers_of(job)))


def test_a_layer_that_nobody_sent_is_named(job):
    with pytest.raises(ReconfigurationError, match="layer 3 is new here, and nobody sent"):
        trained(job, range(3)).rebuilt(range(4), {})


def test_buffers_travel_under_their_layers_name():
    state = trained(odd_job(), range(1, 3))
    assert {key[0] for key in state.export(1, StateKind.BUFFER)} == {"mixer0.offset", "mixer0.count"}
    assert {key[0] for key in state.export(2, StateKind.BUFFER)} == {"mixer1.offset", "mixer1.count"}


def test_the_learning_rate_follows_the_step():
    state = ModelState.initial(odd_job(), range(2))
    rates = []
    for step in (0, 1, 2, 5):
        state.set_learning_rate(step)
        rates.append([group["lr"] for optimizer in state.optimizers.values() for group in optimizer.param_groups])
    assert len(rates[0]) == 2  # of both layers
    assert [rate for own in rates for rate in own] == pytest.approx([0.05 / 3] * 2 + [0.1 / 3] * 2 + [0.05] * 4)


def test_what_an_optimizer_draws_depends_on_step_and_layer_alone():
    job = langevin_job()

    def updated(layers: range, step: int, scramble: int) -> dict[str, torch.Tensor]:
        state = ModelState.initial(job, layers)
        before = {name: parameter.detach().clone() for name, parameter in state.parameters.items()}
        for parameter in state.parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        torch.manual_seed(scramble), random.seed(scramble)
        state.update(step)
        return {name: state.parameters[name] - value for name, value in before.items() if state.parameters[name].requires_grad}

    whole, part, later = updated(layers_of(job), 0, 1), updated(range(2, 5), 0, 2), updated(range(2, 5), 1, 2)
    for name, moved in part.items():
        assert torch.equal(moved, whole[name])
        assert not torch.equal(moved, later[name])
    assert not torch.equal(part["mixer1.inner.weight"], part["mixer2.inner.weight"])


def test_layers_apart_are_updated_as_all_together():
    job = odd_job()
    apart, together = (ModelState.initial(job, layers_of(job)) for _ in range(2))
    optimizer = job.optimizer([(name, p) for name, p in together.parameters.items() if p.requires_grad])
    for number in range(3):
        for state in (apart, together):
            for name, parameter in state.parameters.items():
                generator = torch.Generator().manual_seed(number + sum(name.encode()))
                parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        apart.update(number)
        optimizer.step()
    assert all(torch.equal(apart.parameters[name], parameter) for name, parameter in together.parameters.items())
