"""What is reduced of a replica, and what it becomes with the mean of all."""

import copy
import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.trained import TrainedState
from tests.core.refusals import refuses
from tests.runtime.overlay.replicas import trained


def test_gradients_are_weighted_and_missing_ones_are_zero():
    state = trained(0, "sgd", averages_buffers=False)
    state.model[3].bias.grad = torch.full((16,), 3.0)
    vector = state.gathered(2.0)
    gradients, had_one = np.split(vector, [-len(list(state.model.parameters()))])
    assert gradients.sum() == 16 * 6.0
    assert sorted(set(gradients.tolist())) == [0.0, 6.0]
    assert sorted(had_one.tolist()) == [0.0] * (had_one.size - 1) + [2.0]


def test_buffers_are_averaged_and_counters_stay_whole():
    state = trained(0, "sgd")
    state.model(torch.randn(8, 2, 6))
    vector = state.gathered(1.0)
    vector[-1 - len(list(state.model.parameters()))] = 1.75
    state.apply(vector)
    assert state.model[1].num_batches_tracked.item() == 2
    assert state.model[1].num_batches_tracked.dtype == torch.int64


class Halves(nn.Module):
    """Of two layers a pass goes through those that are asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.halves = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, values: torch.Tensor, *asked: int) -> torch.Tensor:
        return sum((self.halves[number](values) for number in asked), torch.zeros(()))


def halves() -> TrainedState:
    model = Halves()
    decaying = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    return TrainedState(model, decaying, OverlayOptions(averages_buffers=False))


def test_what_had_a_gradient_nowhere_is_not_updated_and_what_had_one_somewhere_is_everywhere():
    first, second, values = halves(), halves(), torch.ones(3, 2)
    before = copy.deepcopy(first.model.halves[1].state_dict())
    for state in (first, second):
        state.model(values, 0).sum().backward()
    reduced([first, second], [1.0, 1.0])
    assert all(torch.equal(value, before[name]) for name, value in first.model.halves[1].state_dict().items())
    first.model.halves[0].requires_grad_(False)
    frozen = copy.deepcopy(first.model.halves[0].state_dict())
    second.model.halves[0].requires_grad_(False)
    first.model(values, 0, 1).sum().backward()
    second.model(values)
    reduced([first, second], [1.0, 1.0])
    assert all(torch.equal(value, frozen[name]) for name, value in first.model.halves[0].state_dict().items())
    assert not torch.equal(first.model.halves[1].weight, before["weight"])
    assert first.digest() == second.digest()


class Buffered(nn.Module):
    """Constants that no mean of 32 bits holds, a counter that is replaced in each pass, and a least value that begins infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("prime", torch.tensor(2**61 - 1))
        self.register_buffer("angles", torch.rand(50, generator=torch.Generator().manual_seed(0)))
        self.register_buffer("turns", torch.polar(torch.ones(5), self.angles[:5]))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.register_buffer("is_seen", torch.tensor([True, False]))
        self.register_buffer("passes", torch.zeros((), dtype=torch.float64))
        self.register_buffer("least", torch.tensor(torch.inf))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.passes = self.passes + 1
        self.least = torch.minimum(self.least, values.min())
        return self.weight * values


def reduced(states: Sequence[TrainedState], weights: Sequence[float]) -> None:
    """All step with the weighted mean of what each has."""
    total = sum(torch.from_numpy(state.gathered(weight).copy()) for state, weight in zip(states, weights, strict=True))
    for state in states:
        state.apply((total / sum(weights)).numpy())


def test_what_the_forward_pass_does_not_change_stays_to_the_bit_and_what_it_replaces_is_averaged():
    states = [TrainedState(m := Buffered(), torch.optim.SGD(m.parameters(), 0.1), OverlayOptions()) for _ in range(3)]
    constants = ("prime", "angles", "turns", "mask", "is_seen")
    for number in range(20):
        for rank, state in enumerate(states):
            state.model(torch.full((3,), 1.0 + rank - number)).sum().backward()
        reduced(states, [1.0, 3.0 + number, 7.0])
        assert len({state.digest() for state in states}) == 1
    model, fresh = states[0].model, Buffered()
    assert all(torch.equal(getattr(model, name), getattr(fresh, name)) for name in constants)
    assert model.passes == 20
    assert torch.isfinite(model.least)


def test_what_a_pass_changed_in_a_step_to_which_nobody_added_anything_is_undone():
    model = Buffered()
    state = TrainedState(model, torch.optim.SGD(model.parameters(), 0.1), OverlayOptions())
    before = state.digest()
    model(torch.ones(3)).sum().backward()
    assert state.digest() != before
    state.skip()
    assert state.digest() == before
    assert model.weight.grad is None


def test_replicas_say_the_same_whatever_a_pass_did_since_the_last_step_and_one_bit_makes_it_something_else():
    states = [TrainedState(m := Buffered(), torch.optim.Adam(m.parameters(), 0.1), OverlayOptions()) for _ in range(2)]
    for state in states:
        state.model(torch.ones(3)).sum().backward()
    reduced(states, [1.0, 1.0])
    told = states[0].vote()
    states[0].model(torch.full((3,), -1.0))
    assert states[0].vote() == states[1].vote() == told
    own = states[1].optimizer.state[states[1].model.weight]
    for tensor in (states[1].model.weight, own["exp_avg"], own["exp_avg_sq"], own["step"], *states[1]._agreed):
        content = tensor.detach().reshape(-1).view(torch.uint8)
        content[-1] ^= 1
        assert states[1].vote() != told
        content[-1] ^= 1
    assert states[1].vote() == told


class Langevin(torch.optim.SGD):
    """Adds noise to each step, from every generator that there is."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter) + random.random() + np.random.rand())


def test_replicas_stay_equal_under_an_optimizer_that_draws_and_what_others_draw_is_not_disturbed():
    states, drawn, seen = [], [], set()
    for _ in range(2):
        model = Buffered()
        states.append(TrainedState(model, Langevin(model.parameters(), 0.1), OverlayOptions()))
    for number in range(3):
        vectors = [state.gathered(1.0).copy() for state in states]
        for worker, (state, vector) in enumerate(zip(states, vectors, strict=True)):
            torch.manual_seed(worker), random.seed(worker), np.random.seed(worker)
            state.apply(vector)
            drawn.append((worker, torch.rand(1).item(), random.random(), np.random.rand()))
        assert states[0].vote() == states[1].vote()
        seen.add(states[0].vote())
        assert len(seen) == number + 1
    for worker, *found in drawn:
        torch.manual_seed(worker), random.seed(worker), np.random.seed(worker)
        assert found == [torch.rand(1).item(), random.random(), np.random.rand()]


def test_what_cannot_be_sent_is_not_compared_and_buffers_are_not_where_each_has_its_own():
    model = Buffered()
    state = TrainedState(model, torch.optim.SGD(model.parameters(), 0.1), OverlayOptions(averages_buffers=False))
    told = state.vote()
    model(torch.ones(3))
    state.optimizer.state[model.weight]["seen"] = {"what", "holds", "no", "order"}
    assert state.vote() == told


def test_complex_parameters_are_trained_by_both_parts_of_their_gradient():
    model = nn.ParameterList([torch.ones(3, dtype=torch.complex64)])
    state = TrainedState(model, torch.optim.SGD(model.parameters(), 0.5), OverlayOptions())
    (model[0] * torch.tensor([1.0, 1j, 1 + 1j])).sum().imag.backward()
    reduced([state], [3.0])
    assert torch.equal(model[0], torch.tensor([1 - 0.5j, 0.5 + 0j, 0.5 - 0.5j]))


class WarmedUp(torch.optim.SGD):
    """Counts its updates where nobody finds them."""

    count = 0

    def step(self, closure=None) -> None:
        self.count += 1
        super().step()


def test_a_state_that_a_joiner_would_not_get_whole_is_not_sent():
    model = Halves()
    state = TrainedState(model, WarmedUp(model.parameters(), lr=0.1), OverlayOptions(averages_buffers=False))
    state.packed()
    state.apply(state.gathered(1.0))
    with refuses("optimizer", "count", "whose 'count' changes with its updates"):
        state.packed()
    assert state.digest(), "its worker trains on"
