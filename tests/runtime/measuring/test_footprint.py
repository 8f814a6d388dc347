"""Memory that layers take, against layers whose every allocation is known; and what the allocator is seen to hold."""

import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from kintsugi.runtime.emulation import mean_square
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.measuring.allocator import MemoryMeter, Section
from kintsugi.runtime.measuring.footprint import footprints
from kintsugi.runtime.models import TrainingJob, build_layer, collate, model_shape

MIB = 2**20
WIDTH = MIB // 4
"""Numbers of 32 bits in a mebibyte."""


class _Room(torch.autograd.Function):
    """The input's double; takes rooms of so many mebibytes while it runs, and keeps one for the backward pass."""

    @staticmethod
    def forward(ctx, value, kept, in_forward, in_backward):
        ctx.in_backward = in_backward
        ctx.save_for_backward(torch.empty(kept * WIDTH))
        torch.empty(in_forward * WIDTH)
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        torch.empty(ctx.in_backward * WIDTH)
        return gradient * 2, None, None, None


class Room(nn.Module):
    """[B, WIDTH] to the same: a mebibyte for a sample."""

    def __init__(self, kept: int, in_forward: int, in_backward: int) -> None:
        super().__init__()
        self.rooms = kept, in_forward, in_backward
        self.weight = nn.Parameter(torch.zeros(16))

    def forward(self, hidden=None, *, values=None):
        entered = values.expand(-1, WIDTH).clone().requires_grad_() if hidden is None else hidden
        return _Room.apply(entered, *self.rooms)


class Roomy(torch.optim.SGD):
    """Takes five mebibytes for an update."""

    def step(self, closure=None):
        torch.empty(5 * WIDTH)
        return super().step(closure)


def job_of(*rooms, **changes) -> TrainingJob:
    layers = [Layer(name=f"room{n}", build=partial(Room, *own), inputs=() if n else ("values",)) for n, own in enumerate(rooms)]
    job = TrainingJob(
        layers=layers,
        optimizer=lambda named: Roomy([parameter for _, parameter in named], lr=0.1),
        loss=mean_square,
        dataset=[{"values": torch.ones(1)} for _ in range(4)],
        microbatch_size=1,
        num_microbatches=1,
        num_steps=1,
    )
    return replace(job, **changes)


def found(job: TrainingJob):
    modules = [build_layer(job, index) for index in range(len(job.layers))]
    optimizers = [job.optimizer(list(module.named_parameters())) for module in modules]
    batch = collate([job.dataset[0]], job.device)
    return footprints(job, modules, optimizers, model_shape(job).boundaries, batch)


def in_mebibytes(footprint) -> tuple[int, ...]:
    return tuple(
        round(amount / MIB)
        for amount in (footprint.activation_bytes, footprint.temporary_bytes, footprint.optimizer_temporary_bytes)
    )


@pytest.mark.parametrize(
    ("in_forward", "in_backward", "expected"),
    [
        (7, 0, 1 + 7),  # the input, which nothing keeps
        (0, 1, 2),  # the output's gradient beside the input's or the room; forward: input and output
        (0, 9, 1 + 9),  # the output's gradient
    ],
)
def test_rooms_that_passes_take_are_counted(in_forward, in_backward, expected):
    middle = found(job_of((0, 0, 0), (3, in_forward, in_backward), (0, 0, 0)))[1]
    assert in_mebibytes(middle) == (3, expected, 5)
    assert middle.entry_bytes == MIB, "its input, which a stage that begins here holds"


def test_recomputed_layers_keep_their_input():
    kept = found(job_of((0, 0, 0), (3, 0, 0), (0, 0, 0)))[1]
    recomputed = found(job_of((0, 0, 0), (3, 0, 0), (0, 0, 0), recomputes_activations=True))[1]
    assert in_mebibytes(kept)[0] == 3
    assert recomputed.entry_bytes == 0
    assert in_mebibytes(recomputed)[0] == 1 + 1  # its first output, too, to compare once


class _Grown(torch.autograd.Function):
    """The input's double, which keeps nothing; a gradient for a weight, too."""

    @staticmethod
    def forward(ctx, value, weight):
        ctx.specs = weight.shape, weight.device
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        shape, device = ctx.specs
        return gradient * 2, torch.ones(shape, device=device)


class Grower(Room):
    """As a room that is empty, with two weights of five mebibytes."""

    def __init__(self) -> None:
        super().__init__(0, 0, 0)
        self.first, self.second = (nn.Parameter(torch.zeros(5 * WIDTH)) for _ in range(2))

    def forward(self, hidden=None, *, values=None):
        return _Grown.apply(_Grown.apply(super().forward(hidden, values=values), self.first), self.second)


def test_the_first_pass_keeps_the_gradients_that_it_makes():
    job = job_of((0, 0, 0), (0, 0, 0), (0, 0, 0))
    (_, grower, _) = found(replace(job, layers=[job.layers[0], replace(job.layers[1], build=Grower), job.layers[2]]))
    assert in_mebibytes(grower)[:2] == (0, 1 + 1 + 5)  # gradients of output, input and one weight
    assert round(grower.first_temporary_bytes / MIB) == 1 + 1 + 5 + 5


class Gated(nn.Module):
    """[1, WIDTH] to the same: a weight of a mebibyte between two sines."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, hidden):
        return (hidden.sin() * self.weight).sin()


def test_what_waits_for_the_weight_part_is_counted():
    """The forward pass keeps the inputs of both sines and of the product; its input and the gradient of its output wait."""
    job = job_of((0, 0, 0), (0, 0, 0), (0, 0, 0))
    (_, gated, _) = found(replace(job, layers=[job.layers[0], replace(job.layers[1], build=Gated), job.layers[2]]))
    assert in_mebibytes(gated)[0] == 3
    assert round(gated.deferred_bytes / MIB) == 2
    assert round(gated.input_temporary_bytes / MIB) == 3  # gradients of the output and of the product, and a cosine
    assert round(gated.weight_temporary_bytes / MIB) == 2  # the weight's gradient, before and after it is summed over the batch
    assert round(gated.first_weight_temporary_bytes / MIB) == 2


def test_where_nothing_can_be_split_nothing_waits():
    middle = found(job_of((0, 0, 0), (3, 0, 9), (0, 0, 0)))[1]
    assert middle.weight_temporary_bytes == 0


class Turned(nn.Module):
    """[B, 4] to complex numbers, or from there to their real parts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, hidden=None, *, values=None):
        return torch.fft.fft(values * self.weight) if hidden is None else hidden.real * self.weight


def test_what_crosses_a_boundary_may_be_complex():
    layers = [Layer(name="turned", build=Turned, inputs=("values",)), Layer(name="back", build=Turned)]
    job = job_of((0, 0, 0), layers=layers, dataset=[{"values": torch.ones(4)} for _ in range(4)])
    assert all(footprint.temporary_bytes < MIB for footprint in found(job))


class Counting(nn.Module):
    """Puts another tensor in the place of its counter, which is there before anybody counts memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("passes", torch.zeros(WIDTH))

    def forward(self, values):
        self.passes = self.passes + 1
        return values * self.weight


def test_nothing_takes_less_than_no_memory():
    """Workers refuse such a layer by its name, once they are asked to train it."""
    job = job_of(
        (0, 0, 0), layers=[Layer(name="counting", build=Counting, inputs=("values",))], dataset=[{"values": torch.ones(4)}] * 4
    )
    (footprint,) = found(job)
    assert footprint.entry_bytes >= 0


def test_sections_hold_what_came_before_them():
    with MemoryMeter("cpu") as meter:
        before = torch.empty(2 * WIDTH)
        with meter.section("some"):
            torch.empty(4 * WIDTH)
            kept = torch.empty(WIDTH)
        with meter.section("less"):
            del before
    assert meter.sections == {
        "some": Section(2 * MIB, 6 * MIB, 3 * MIB),
        "less": Section(3 * MIB, 3 * MIB, MIB),
    }
    assert meter.sections["some"].kept_bytes == len(kept) * 4
    assert meter.sections["some"].rise_bytes == 4 * MIB


def test_letting_go_of_what_was_there_before_counts_as_nothing_whoever_saw_it_come():
    unseen = torch.empty(2 * WIDTH)
    with MemoryMeter("cpu"):
        seen = torch.empty(3 * WIDTH)
    with MemoryMeter("cpu") as meter, meter.section("some"):
        del unseen, seen
        torch.empty(WIDTH)
    assert meter.sections == {"some": Section(0, MIB, 0)}


def test_nothing_is_written_and_the_environment_stays(capfd):
    with MemoryMeter("cpu"):  # torch sets a variable of its own at the profiler's first use in a process
        pass
    before = dict(os.environ)
    with MemoryMeter("cpu") as meter, meter.section("nothing"):
        pass
    assert os.environ == before
    assert capfd.readouterr() == ("", "")
    assert meter.sections == {"nothing": Section(0, 0, 0)}
