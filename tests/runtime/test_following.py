"""What a layer returns is known before anything is trained, also where its forward pass needs values to be followed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from kintsugi.runtime.following import followed
from restorer.transport import TensorSpec

CPU, META = torch.device("cpu"), torch.device("meta")


class Experts(nn.Module):
    """Sends each row to the best of two linear layers, and tells how evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(6, 2), nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.router(hidden).softmax(-1)
        chosen, mixed = shares.argmax(-1), torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            if len(rows) > 0:
                mixed = mixed.index_add(0, rows, expert(hidden[rows]))
        return hidden + mixed, shares.mean(0).square().sum()


class Packed(nn.Module):
    """A recurrent layer over rows of unequal length, which a field tells."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(6, 4, batch_first=True)

    def forward(self, hidden: Tensor, *, length: Tensor) -> Tensor:
        packed = pack_padded_sequence(hidden, length, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.cell(packed)[0], batch_first=True, total_length=hidden.shape[1])[0]


class Narrow(nn.Linear):
    """Computes in half precision."""

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(hidden)


class AfterNarrow(nn.Linear):
    """Takes what is narrower than its weights, and returns a whole number and its input as well."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(hidden).float(), hidden.argmax(-1), hidden


class OnDevice(nn.Linear):
    """Names the device."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) + torch.ones(6, device="cpu")


def outputs_of(build: Callable[[], nn.Module], *activations: Tensor, **fields: Tensor) -> tuple[TensorSpec, ...]:
    """Of a layer whose parameters are in 32 bits; all that is left of it is without values."""
    module, outputs = followed(
        "odd",
        build,
        lambda module, taken, own: (one,) if isinstance(one := module(*taken, **own), Tensor) else one,
        activations,
        fields,
        dtype=torch.float32,
        device=CPU,
    )
    assert {tensor.device for tensor in (*module.parameters(), *outputs)} == {META}
    return tuple(TensorSpec(tuple(one.shape), one.dtype, one.requires_grad) for one in outputs)


def activation(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype, device=META, requires_grad=True).clone()


@pytest.mark.parametrize(
    ("build", "taken", "fields", "expected"),
    [
        (Experts, activation(8, 6), {}, [((8, 6), torch.float32, True), ((), torch.float32, True)]),
        (Packed, activation(3, 5, 6), {"length": torch.tensor([5, 1, 3])}, [((3, 5, 4), torch.float32, True)]),
        (lambda: Narrow(6, 2), activation(8, 6), {}, [((8, 2), torch.bfloat16, True)]),
        (
            lambda: AfterNarrow(6, 2),
            activation(8, 6, dtype=torch.bfloat16),
            {},
            [((8, 2), torch.float32, True), ((8,), torch.int64, False), ((8, 6), torch.bfloat16, True)],
        ),
        (lambda: OnDevice(6, 6), activation(8, 6), {}, [((8, 6), torch.float32, True)]),
    ],
    ids=["experts", "packed", "autocast", "after autocast", "on a device"],
)
def test_a_layer_is_followed_that_needs_values(build, taken, fields, expected):
    assert outputs_of(build, taken, **fields) == tuple(TensorSpec(*one) for one in expected)


def test_a_layer_that_needs_no_values_is_never_computed():
    built = []

    def build() -> nn.Module:
        built.append(torch.empty(0).device)
        return nn.Linear(6, 2)

    assert outputs_of(build, activation(8, 6)) == (TensorSpec((8, 2), torch.float32, True),)
    assert built == [META]


def test_memory_stays_as_it_lies():
    transposed = activation(4, 3).t()
    _, (own,) = followed("odd", nn.Identity, lambda _, taken, __: taken, (transposed,), {}, dtype=torch.float32, device=CPU)
    assert own.stride() == transposed.stride()
