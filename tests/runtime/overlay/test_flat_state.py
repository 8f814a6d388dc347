"""What a joining worker gets is all that training depends on: the replica goes on bit for bit."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from kintsugi.core.errors import InvalidInputError, ReconfigurationError
from kintsugi.runtime.overlay.coordinator import Coordinator
from kintsugi.runtime.overlay.flat_state import FlatState, atomic_shard_bytes
from kintsugi.runtime.overlay.options import OverlayOptions, Replicated
from kintsugi.runtime.overlay.trained import TrainedState
from restorer.packing import PackedState, pack
from tests.core.refusals import refuses
from tests.runtime.overlay.crew import OPTIONS
from tests.runtime.overlay.desk import Desk
from tests.runtime.overlay.replicas import OPTIMIZERS, Decay, network, step, trained


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


def plain_kinds() -> list[type[torch.optim.Optimizer]]:
    """All of torch's optimizers, less those that want a closure or sparse gradients."""
    kinds = [one for one in vars(torch.optim).values() if isinstance(one, type) and issubclass(one, torch.optim.Optimizer)]
    return [one for one in kinds if one not in (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", plain_kinds())
def test_the_size_of_a_state_is_known_of_all_that_torch_steps_with(kind, dtype):
    model = nn.Sequential(network(dtype), nn.Linear(16, 16, dtype=dtype), nn.LayerNorm(16, dtype=dtype).requires_grad_(False))
    matrices, others = ([one for one in model.parameters() if (one.dim() == 2) is is_matrix] for is_matrix in (True, False))
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.1}]
    optimizer = kind(groups[:1] if kind.__name__ == "Muon" else groups, lr=0.01)
    state = FlatState(model=model, optimizer=optimizer)
    before, expected = copy.deepcopy(model.state_dict()), state.expected_bytes()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(torch.ones(8, 2, 6, dtype=dtype)).sum().backward()
    optimizer.step()
    assert PackedState(state.entries(0)).num_bytes == expected


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
    assert state.num_elements == 64 * 2 + 2 + 2  # and which of both had a gradient
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


def way_of_training(*groups, kind=torch.optim.AdamW, num_schedules=1, schedule=StepLR) -> TrainedState:
    """Of two tensors, which the groups name by their numbers."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    tensors = list(model.parameters())
    optimizer = kind([{"params": [tensors[number] for number in group]} for group in groups], 0.1)
    schedules = [schedule(optimizer, 2) for _ in range(num_schedules)]
    return TrainedState(model, optimizer, OverlayOptions(), schedules=schedules)


@pytest.mark.parametrize(
    ("joiner", "field", "why"),
    [
        (way_of_training([0, 1], kind=torch.optim.SGD), "optimizer", "is SGD, and the others train with AdamW"),
        (way_of_training([0, 1], kind=torch.optim.Adam), "optimizer", "is Adam, and the others train with AdamW"),
        (way_of_training([0], [1]), "optimizer", "parameter 'bias' is in group 1 here and in group 0 with the others"),
        (way_of_training([0]), "optimizer", "parameter 'bias' is in no group here and in group 0 with the others"),
        (way_of_training([0, 1], schedule=CosineAnnealingLR), "schedules", "are CosineAnnealingLR here and StepLR with the others"),
        (way_of_training([0, 1], num_schedules=0), "schedules", "are none here and StepLR with the others"),
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


def test_an_optimizer_must_train_something():
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(InvalidInputError, match="steps no parameter"):
        TrainedState(model, torch.optim.SGD(model.parameters(), 0.1), OverlayOptions())
