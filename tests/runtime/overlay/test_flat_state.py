"""What a joining worker gets is all that training depends on: the replica goes on bit for bit."""

import copy
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError, ReconfigurationError
from kintsugi.runtime.overlay.coordinator import Coordinator
from kintsugi.runtime.overlay.flat_state import FlatState, atomic_shard_bytes
from kintsugi.runtime.overlay.options import OverlayOptions, Replicated
from kintsugi.runtime.overlay.trained import TrainedState
from kintsugi.runtime.values import from_plain, to_plain
from restorer.packing import PackedState, pack
from tests.core.refusals import refuses
from tests.runtime.overlay.crew import OPTIONS
from tests.runtime.overlay.desk import Desk


def network(dtype=torch.float32) -> nn.Module:
    """Convolution, normalisation with running statistics, and a tied pair."""
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    model[5].weight = model[3].weight
    return model.to(dtype)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, dampening=0.1),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
    "fused": lambda parameters: torch.optim.AdamW(parameters, 0.01, fused=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01, centered=True),
}


class Recent(torch.optim.Optimizer):
    """Steps with the mean of the last gradients, which it keeps in a list, and its settings in a dictionary with a tensor."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"rates": {"lr": torch.tensor(0.1)}})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["recent"] = [*state.get("recent", []), parameter.grad.clone()][-3:]
                state["seen"] = {"last": (parameter.grad.sum(), None), 3: [True]}
                parameter.sub_(group["rates"]["lr"] * torch.stack(state["recent"]).mean(0))


class Decay:
    """A schedule whose state is a tensor."""

    def __init__(self, optimizer) -> None:
        self.optimizer, self.factor = optimizer, torch.ones(1)

    def step(self) -> None:
        self.factor *= 0.5
        for group in self.optimizer.param_groups:
            group["rates"]["lr"].mul_(self.factor.item())

    def state_dict(self) -> dict:
        return {"factor": self.factor}

    def load_state_dict(self, state: dict) -> None:
        self.factor = state["factor"]


def trained(seed: int, kind: str, dtype=torch.float32, **options) -> TrainedState:
    torch.manual_seed(seed)
    model = network(dtype)
    if kind == "lists":
        optimizer = Recent(model.parameters())
        return TrainedState(model, optimizer, OverlayOptions(**options), schedules=[Decay(optimizer)])
    optimizer = OPTIMIZERS[kind](model.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 4])
    return TrainedState(model, optimizer, OverlayOptions(**options), schedules=[schedule])


def step(state: TrainedState, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8, 2, 6, generator=generator).to(next(state.model.parameters()).dtype)
    state.model(inputs).float().square().mean().backward()
    state.apply(state.gathered(1.0).copy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [*OPTIMIZERS, "lists"])
@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_joiner_goes_on_bit_for_bit(kind, dtype, num_steps):
    source, joiner = trained(0, kind, dtype), trained(1, kind, dtype)
    for seed in range(num_steps):
        step(source, seed)
    header, content = pack(source.packed().entries)
    arrived = PackedState.blank(header)
    arrived.write(0, content)
    joiner.load(arrived)
    assert joiner.digest() == source.digest()
    assert joiner.steps == source.steps == num_steps
    for seed in range(10, 13):
        step(source, seed)
        step(joiner, seed)
        assert joiner.digest() == source.digest()


@pytest.mark.parametrize("kind", ["momentum", "adam", "lists"])
def test_nothing_of_an_earlier_life_stays_where_the_others_keep_nothing_yet(kind):
    source, joiner = trained(0, kind), trained(1, kind)
    step(joiner, 0)
    joiner.load(source.packed())
    assert joiner.digest() == source.digest()


def test_gradients_of_an_earlier_life_are_dropped():
    earlier = trained(0, "sgd")
    earlier.model(torch.ones(8, 2, 6)).sum().backward()
    later = TrainedState(earlier.model, earlier.optimizer, OverlayOptions(averages_buffers=False))
    assert not later.gathered(1.0).any()


def test_tensors_of_groups_stay_where_they_are_and_those_of_whoever_holds_them():
    def with_rate(value: float) -> tuple[Tensor, TrainedState]:
        model, rate = nn.Linear(4, 4), torch.tensor(value)
        return rate, TrainedState(model, torch.optim.AdamW(model.parameters(), lr=rate), OverlayOptions())

    (_, source), (rate, joiner) = with_rate(0.1), with_rate(0.2)
    arrived = PackedState.blank(source.packed().header)
    arrived.write(0, pack(source.packed().entries)[1])
    joiner.load(arrived)
    assert joiner.optimizer.param_groups[0]["lr"] is rate
    assert rate == torch.tensor(0.1)
    assert joiner.digest() == source.digest()


def test_what_arrives_for_an_expanded_buffer_has_room():
    def masked(value: float) -> TrainedState:
        model = nn.Linear(4, 4)
        model.register_buffer("mask", torch.full((1, 4), value).expand(4, 4))
        return TrainedState(model, torch.optim.SGD(model.parameters(), 0.1), OverlayOptions())

    source, joiner = masked(1.0), masked(2.0)
    joiner.load(source.packed())
    assert joiner.digest() == source.digest()
    source.apply(source.gathered(1.0).copy())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_size_of_a_state_is_known_before_the_optimizer_has_stepped(kind):
    state = trained(0, kind)
    expected = state.state_bytes
    step(state, 0)
    assert state.packed().num_bytes == expected


def test_the_size_of_a_state_is_known_of_updates_that_only_devices_capture():
    model = network()
    plain, capturable = (torch.optim.AdamW(model.parameters(), capturable=is_capturable) for is_capturable in (False, True))
    expected = FlatState(model=model, optimizer=plain).expected_bytes()
    assert FlatState(model=model, optimizer=capturable).expected_bytes() == expected


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (nn.Linear(2048, 2048, bias=False), 8192),
        (nn.Linear(2048, 2048, bias=False).bfloat16(), 4096),
        (nn.Sequential(nn.Linear(2048, 2048), nn.LayerNorm(1024)), 4096),
        (nn.Linear(2048, 1), 256),
        (nn.ParameterList([nn.Parameter(torch.zeros(2**22))]), 16384),
        (nn.ParameterList([nn.Parameter(torch.zeros(()))]), 16384),
    ],
    ids=["rows", "half", "norms", "least", "one vector", "none"],
)
def test_a_shard_has_the_size_of_the_smallest_vector_where_the_state_has_enough_of_them(model, size):
    assert atomic_shard_bytes(model, 2**24) == size
    assert atomic_shard_bytes(model, 1) == 256


def test_only_what_is_trained_is_reduced_and_sent():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))
    model[0].requires_grad_(False)
    before = copy.deepcopy(model[0].state_dict())
    adapters = torch.optim.Adam(model[1].parameters(), 0.01)
    state = TrainedState(model, adapters, OverlayOptions(replicated=Replicated.TRAINABLE))
    assert state.num_elements == 64 * 2 + 2
    model(torch.ones(3, 64)).sum().backward()
    state.apply(state.gathered(1.0))
    assert state.packed().num_bytes < 3 * 4 * 130 + 100
    assert all(torch.equal(value, before[name]) for name, value in model[0].state_dict().items())


def test_a_parameter_that_comes_to_be_trained_later_is_refused_before_anything_is_reduced():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Coordinator(model, optimizer, service=Desk(), job="job", worker="a", options=OPTIONS) as coordinator:
        model(torch.ones(1, 2)).sum().backward()
        coordinator.update()
        model[0].requires_grad_(True)
        model(torch.ones(1, 2)).sum().backward()
        with refuses("optimizer", "0.weight", "came to be trained after the coordinator was made"):
            coordinator.update()
        assert coordinator.step == 1


def test_another_model_is_refused():
    one, other = trained(0, "adam"), trained(0, "adam")
    other.model[3] = nn.Linear(16, 17)
    with pytest.raises(ReconfigurationError, match=r"'3.weight' is \(17, 16\) .* here and \(16, 16\) .* who train another model"):
        other.load(one.packed())
    with pytest.raises(ReconfigurationError, match=r"^buffer: '1.running_mean' is \(4,\) float64 here and \(4,\) float32 with"):
        trained(0, "adam", torch.float64).load(one.packed())
    smaller = TrainedState(model := nn.Linear(2, 2), torch.optim.SGD(model.parameters(), 0.1), OverlayOptions())
    with pytest.raises(ReconfigurationError, match="another model"):
        smaller.load(one.packed())


def test_an_optimizer_that_computes_the_loss_itself_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(InvalidInputError, match=r"^optimizer: is LBFGS, whose step\(\) needs a closure: .* take another, as"):
        Coordinator(model, torch.optim.LBFGS(model.parameters()), service="http://127.0.0.1:1", job="job")


def way_of_training(*groups, kind=torch.optim.AdamW, num_schedules=1) -> TrainedState:
    """Of two tensors, which the groups name by their numbers."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    tensors = list(model.parameters())
    optimizer = kind([{"params": [tensors[number] for number in group]} for group in groups], 0.1)
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 2) for _ in range(num_schedules)]
    return TrainedState(model, optimizer, OverlayOptions(), schedules=schedules)


@pytest.mark.parametrize(
    ("joiner", "field", "why"),
    [
        (way_of_training([0, 1], kind=torch.optim.SGD), "optimizer", "is SGD, and the others train with AdamW"),
        (way_of_training([0, 1], kind=torch.optim.Adam), "optimizer", "is Adam, and the others train with AdamW"),
        (way_of_training([0], [1]), "optimizer", "parameter 'bias' is in group 1 here and in group 0 with the others"),
        (way_of_training([0]), "optimizer", "parameter 'bias' is in no group here and in group 0 with the others"),
        (way_of_training([0, 1], num_schedules=0), "schedules", "are 0 here and 1 with the others"),
    ],
)
def test_another_way_of_training_is_refused(joiner, field, why):
    before = copy.deepcopy(joiner.model.state_dict())
    source = way_of_training([0, 1])
    source.model(torch.ones(1, 2)).sum().backward()
    source.apply(source.gathered(1.0))
    with pytest.raises(ReconfigurationError, match=why) as caught:
        joiner.load(source.packed())
    assert caught.value.field == field
    assert all(torch.equal(value, before[name]) for name, value in joiner.model.state_dict().items())


def partly_trained(frozen: int, *, averages_buffers: bool = True, is_turned: bool = False) -> TrainedState:
    """Of layers that are alike; one of them is frozen, though the optimizer knows of it."""
    torch.manual_seed(0)
    model = nn.Module()
    for name in ("second", "first") if is_turned else ("first", "second"):
        model.add_module(name, nn.BatchNorm1d(4))
    list(model.children())[frozen].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return TrainedState(model, optimizer, OverlayOptions(averages_buffers=averages_buffers))


@pytest.mark.parametrize(
    ("joiner", "why"),
    [
        (partly_trained(1), "'first.weight' is reduced here where the others reduce 'second.weight': train and average the same"),
        (partly_trained(0, averages_buffers=False), "nothing more is reduced here where the others reduce 'first.running_mean'"),
        (partly_trained(1, is_turned=True), "'second.running_mean' is reduced here where the others reduce 'first.running_mean'"),
    ],
)
def test_another_vector_is_refused_though_it_may_be_as_long(joiner, why):
    with pytest.raises(ReconfigurationError, match=why) as caught:
        joiner.load(partly_trained(0).packed())
    assert caught.value.field == "model"


def test_a_vector_that_is_cut_into_other_pieces_is_refused():
    with pytest.raises(ReconfigurationError, match="are 512 here and 1024 with the others: say the same") as caught:
        trained(1, "sgd", chunk_bytes=512).load(trained(0, "sgd", chunk_bytes=1024).packed())
    assert caught.value.field == "chunk_bytes"


def test_what_is_frozen_later_is_still_reduced():
    source, joiner = partly_trained(0), partly_trained(0)
    source.model.second.requires_grad_(False)
    joiner.load(source.packed())
    assert joiner.num_elements == source.num_elements


def test_a_schedule_that_keeps_what_cannot_be_sent_is_refused_before_anything_is_trained():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = Decay(optimizer)
    schedule.factor = {1.0}
    with pytest.raises(InvalidInputError, match=r"^schedules\.0: holds a set"):
        Coordinator(model, optimizer, service="http://127.0.0.1:1", job="job", schedules=[schedule])


def test_gradients_are_weighted_and_missing_ones_are_zero():
    state = trained(0, "sgd", averages_buffers=False)
    state.model[3].bias.grad = torch.full((16,), 3.0)
    vector = state.gathered(2.0)
    assert vector.sum() == 16 * 6.0
    assert sorted(set(vector.tolist())) == [0.0, 6.0]


def test_buffers_are_averaged_and_counters_stay_whole():
    state = trained(0, "sgd")
    state.model(torch.randn(8, 2, 6))
    vector = state.gathered(1.0)
    vector[-1] = 1.75
    state.apply(vector)
    assert state.model[1].num_batches_tracked.item() == 2
    assert state.model[1].num_batches_tracked.dtype == torch.int64


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


def test_complex_parameters_are_trained_by_both_parts_of_their_gradient():
    model = nn.ParameterList([torch.ones(3, dtype=torch.complex64)])
    state = TrainedState(model, torch.optim.SGD(model.parameters(), 0.5), OverlayOptions())
    (model[0] * torch.tensor([1.0, 1j, 1 + 1j])).sum().imag.backward()
    reduced([state], [3.0])
    assert torch.equal(model[0], torch.tensor([1 - 0.5j, 0.5 + 0j, 0.5 - 0.5j]))


def test_an_optimizer_must_train_something():
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(InvalidInputError, match="steps no parameter"):
        TrainedState(model, torch.optim.SGD(model.parameters(), 0.1), OverlayOptions())


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain)
def test_plain_values_come_back(value):
    assert from_plain(to_plain(value, "x")) == value


def test_counters_come_back_and_other_values_are_refused():
    found = from_plain(to_plain(Counter({3: 2}), "milestones"))
    assert isinstance(found, Counter)
    assert found == Counter({3: 2})
    with pytest.raises(InvalidInputError, match="holds a set"):
        to_plain({1}, "x")


def test_tensors_stand_by_their_numbers_where_somebody_takes_them():
    one, other, taken = torch.ones(2), torch.zeros(()), []
    value = {"rows": [one, None, (other, 3)]}
    found = from_plain(to_plain(value, "x", taken), taken)
    assert found["rows"][0] is one
    assert found["rows"][2] == (other, 3)
    with pytest.raises(InvalidInputError, match="holds a Tensor"):
        to_plain(value, "x")
