"""Both parts of a backward pass give what one pass gives, and each does its own part only."""

from collections.abc import Callable
from functools import partial
from weakref import ref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kintsugi.runtime.brought import output_tensors
from kintsugi.runtime.emulation import EmulatedLayer, EmulatedTimes
from kintsugi.runtime.measuring.allocator import MemoryMeter
from kintsugi.runtime.models import Activations, collate, run_layer
from kintsugi.runtime.workers.backward import PassedStage
from kintsugi.runtime.workers.state import ModelState
from tests.runtime.jobs import frozen_job, odd_job, tiny_gpt

WIDTH = 4


class Residual(nn.Module):
    """Norm, two linear layers and the way round them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(functional.gelu(self.up(self.norm(hidden))))


class View(nn.Linear):
    """Its output is a view, of a wider tensor."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden).chunk(2, dim=-1)[1].transpose(0, 1)


class Chunks(nn.Module):
    """Parts of one weight are used one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        first, second = self.weight.chunk(2)
        return functional.linear(torch.tanh(functional.linear(hidden, first)), second)


class Twice(nn.Module):
    """One weight in two places, as it is and transposed; a scalar that is broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, hidden: Tensor) -> Tensor:
        return (hidden @ self.weight).sin() @ self.weight.t() * self.scale


class Tied(nn.Module):
    """One weight in two linear layers, which transpose it each for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.linear(functional.linear(hidden, self.weight).sin(), self.weight)


class Shared(nn.Module):
    """One bias added on the way twice, so that its gradient branches off in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        return (hidden * self.bias).cos() * self.bias


class ByPoint(nn.Module):
    """Group norm of channels that lie beside each other in memory (channels_last)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        images = hidden.unsqueeze(1).permute(0, 3, 1, 2)
        return self.norm(images.contiguous(memory_format=torch.channels_last)).flatten(2).transpose(1, 2)


class Positions(nn.Module):
    """A second output that no input reaches, and that meets the input in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.frozen = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH), requires_grad=False)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        positions = self.table.exp()
        return hidden * self.frozen + positions, positions * 2, hidden


class Unused(nn.Module):
    """The input leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.weight * len(hidden)


class Hooked(nn.Module):
    """Hooks on what passes, on an operation's node, on weights as they are and as they were computed, and on modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        for factor, parameter in enumerate((self.first.weight, self.first.bias, self.second.weight), start=2):
            parameter.register_hook(partial(torch.mul, other=factor))
        self.second.register_full_backward_pre_hook(lambda _, gradients: tuple(5 * gradient for gradient in gradients))

    def forward(self, hidden: Tensor) -> Tensor:
        passing = self.second(self.first(hidden))
        passing.register_hook(lambda gradient: gradient * 2)
        passing.grad_fn.register_prehook(lambda gradients: (gradients[0].clamp(-1, 1),))
        weight = self.third.weight.exp()
        weight.register_hook(lambda gradient: gradient * 3)
        result = functional.linear(passing, weight, self.third.bias)
        result.register_hook(lambda gradient: gradient * 7)
        return result


class HookedTied(Tied):
    """The weight that two operations share has a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WIDTH))
        for parameter in self.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.linear(super().forward(hidden), self.weight, self.bias)


class Scaling(torch.autograd.Function):
    """A product whose gradients are computed in the memory of what came, as fused kernels do."""

    @staticmethod
    def forward(ctx, value, weight):
        ctx.save_for_backward(value, weight)
        return value * weight

    @staticmethod
    def backward(ctx, gradient):
        value, weight = ctx.saved_tensors
        of_weight = (gradient * value).flatten(0, -2).sum(0)
        return gradient.mul_(weight), of_weight


class Fused(nn.Module):
    """A function that is written in Python has a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return Scaling.apply(self.linear(hidden), self.weight)


class Checkpointed(nn.Module):
    """A part is computed again in the backward pass, in one of torch's two ways."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.part, self.is_reentrant = Residual(), is_reentrant

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + checkpoint(self.part, hidden, use_reentrant=self.is_reentrant)


class Compiled(nn.Module):
    """A part is compiled, as far as that needs no compiler of the system."""

    def __init__(self) -> None:
        super().__init__()
        self.part = torch.compile(Residual(), backend="aot_eager")

    def forward(self, hidden: Tensor) -> Tensor:
        return self.part(hidden)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual,
    "view": lambda: View(WIDTH, 2 * WIDTH),
    "chunks": Chunks,
    "twice": Twice,
    "tied": Tied,
    "shared": Shared,
    "by_point": ByPoint,
    "positions": Positions,
    "unused": Unused,
    "no_weights": nn.Tanh,
    "attention": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True),
    "hooked": Hooked,
    "hooked_tied": HookedTied,
    "fused": Fused,
    "reentrant": lambda: Checkpointed(is_reentrant=True),
    "checkpointed": lambda: Checkpointed(is_reentrant=False),
    "compiled": Compiled,
}
WHOLE = {"twice", "shared", "unused", "hooked_tied", "fused", "reentrant", "compiled"}
"""These cannot be split, nor can positions whose two outputs meet in a loss: all is done in the input part."""


Passed = tuple[PassedStage, list[Tensor]]
"""A stage with gradients of its outputs, none where there is a loss."""


def stage(module: nn.Module, hidden: Tensor, *, is_last: bool) -> Passed:
    inputs = (hidden.clone().requires_grad_(),)
    outputs = output_tensors(module(*inputs), "layer")
    loss = sum((output.square().mean() for output in outputs), torch.zeros(())) if is_last else None
    return passed_stage(inputs, outputs, loss)


def passed_stage(inputs: Activations, outputs: Activations, loss: Tensor | None) -> Passed:
    gradients = [torch.cos(output.detach()) for output in outputs if output.requires_grad] if loss is None else []
    return PassedStage.of(inputs, outputs, loss), gradients


def passes(module: nn.Module, hidden: Tensor, *, is_last: bool) -> tuple[list[Tensor], dict[str, Tensor | None]]:
    """Input and weight gradients of one whole pass."""
    module.zero_grad()
    passed, gradients = stage(module, hidden, is_last=is_last)
    return list(passed.backward(gradients)), weights(module)


def weights(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def assert_same(found: Tensor | None, expected: Tensor | None) -> None:
    if expected is None:
        assert found is None
    else:
        torch.testing.assert_close(found, expected, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_both_parts_are_the_whole(name, is_last):
    torch.manual_seed(1)
    module, hidden = LAYERS[name]().double(), torch.randn(3, 2, WIDTH, dtype=torch.float64)
    expected_inputs, expected = passes(module, hidden, is_last=is_last)
    module.zero_grad()
    passed, gradients = stage(module, hidden, is_last=is_last)
    found = passed.backward_input(gradients)
    if name in WHOLE or (name == "positions" and is_last):
        assert any(p.grad is not None for p in module.parameters())
    else:
        assert all(p.grad is None for p in module.parameters())
    passed.backward_weight()
    assert len(found) == len(expected_inputs)
    for one, other in zip(found, expected_inputs, strict=True):
        assert torch.equal(one, other)
    for key, value in weights(module).items():
        assert_same(value, expected[key])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["residual", "chunks", "twice", "tied", "no_weights", "attention", "shared", "hooked", "fused", "reentrant", "by_point"]
        ),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_microbatches_whose_weight_parts_wait_add_up(names, data):
    torch.manual_seed(2)
    module = nn.Sequential(*(LAYERS[name]() for name in names)).double()
    batches = [torch.randn(2, 3, WIDTH, dtype=torch.float64) for _ in range(3)]
    module.zero_grad()
    for hidden in batches:
        passed, _ = stage(module, hidden, is_last=True)
        passed.backward([])
    expected = weights(module)
    module.zero_grad()
    waiting = []
    for hidden in batches:
        waiting.append(stage(module, hidden, is_last=True)[0])
        waiting[-1].backward_input([])
        if data.draw(st.booleans()):
            waiting.pop(0).backward_weight()
    for passed in waiting:
        passed.backward_weight()
    for key, value in weights(module).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-13, atol=1e-15)


class Counted(torch.autograd.Function):
    """The identity; counts its backward passes."""

    @staticmethod
    def forward(ctx, value, calls):
        ctx.calls = calls
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.calls.append(1)
        return gradient, None


def test_each_part_computes_its_own_gradients_only_and_once():
    on_way, on_weight = [], []
    weight = torch.randn(WIDTH, WIDTH, requires_grad=True)
    entered = torch.randn(3, WIDTH, requires_grad=True)
    output = Counted.apply(entered, on_way) @ Counted.apply(weight, on_weight)
    passed = PassedStage.of((entered,), (output,), None)
    passed.backward_input([torch.ones_like(output)])
    assert (len(on_way), len(on_weight)) == (1, 0)
    passed.backward_weight()
    assert (len(on_way), len(on_weight)) == (1, 1)
    assert torch.equal(weight.grad, entered.detach().t() @ torch.ones_like(output))


@pytest.mark.parametrize("make_job", [tiny_gpt, odd_job, frozen_job])
@pytest.mark.parametrize(("start", "stop"), [(0, 3), (1, 4), (3, 8), (0, 8)])
def test_stages_of_whole_models(make_job, start, stop):
    job = make_job()
    modules = list(ModelState.initial(job, range(len(job.layers))).modules.values())
    batch = collate([job.dataset[0], job.dataset[1]], "cpu")

    def run() -> Passed:
        values = ()
        for index in range(stop):
            if index == start:
                values = inputs = tuple(v.detach().requires_grad_(v.requires_grad) for v in values)
            torch.manual_seed(index)
            values = run_layer(job.layers[index], modules[index], values, batch)
        return passed_stage(inputs, values, job.loss(values, batch) if stop == len(job.layers) else None)

    def weight_gradients() -> list[Tensor | None]:
        return [p.grad for module in modules for p in module.parameters()]

    passed, gradients = run()
    expected_inputs, expected = passed.backward(gradients), weight_gradients()
    for module in modules:
        module.zero_grad()
    passed, gradients = run()
    found = passed.backward_input(gradients)
    passed.backward_weight()
    assert all(torch.equal(one, other) for one, other in zip(found, expected_inputs, strict=True))
    for one, other in zip(weight_gradients(), expected, strict=True):
        assert_same(one, other)


def test_outputs_are_let_go_of():
    hidden = torch.randn(2, WIDTH)
    outputs = (nn.Linear(WIDTH, WIDTH)(hidden),)
    held = ref(outputs[0])
    passed = PassedStage.of((), outputs, None)
    del outputs
    assert held() is None
    assert passed.backward([torch.ones(2, WIDTH)]) == ()


def test_emulated_layers_take_each_part_at_its_time(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr("kintsugi.runtime.emulation.time.sleep", slept.append)
    times = EmulatedTimes(forward_seconds=0.1, backward_input_seconds=0.2, backward_weight_seconds=0.3)
    module = nn.Sequential(EmulatedLayer(times, WIDTH), EmulatedLayer(times, WIDTH))
    passed, gradients = stage(module, torch.randn(2, WIDTH), is_last=False)
    slept.clear()
    passed.backward_input(gradients)
    assert slept == [0.2, 0.2]
    passed.backward_weight()
    assert slept == [0.2, 0.2, 0.3, 0.3]


ROWS, UNIT = 1024, 1024 * WIDTH * 4
"""Bytes of so many rows in 32 bits."""


class Waved(nn.Module):
    """Each of the two linear layers is followed by functions that save what no weight needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.second(self.first(hidden).sin().cos()).sin()


def kept_bytes(make_passed: Callable[[], PassedStage]) -> list[int]:
    """After the forward pass, the input part and the weight part, beyond what was there before; in rooms of `ROWS` rows."""
    given = [torch.ones(ROWS, WIDTH)]
    with MemoryMeter("cpu") as meter:
        with meter.section("forward"):
            passed = make_passed()
        with meter.section("input"):
            passed.backward_input(given)
        with meter.section("weight"):
            passed.backward_weight()
    return [round(meter.sections[name].after_bytes / UNIT) for name in ("forward", "input", "weight")]


def test_only_what_weights_need_waits_for_them():
    """Both inputs of the linear layers and the gradients of what they yield; sines and cosines keep their inputs for one pass."""
    module, hidden = Waved(), torch.randn(ROWS, WIDTH, requires_grad=True)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert kept_bytes(lambda: PassedStage.of((hidden,), (module(hidden),), None)) == [4, 1 + 2, 0]


class Changed(nn.Module):
    """The sigmoid's own output, which its backward pass needs, is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(hidden)).add_(1.0)


@pytest.mark.parametrize("part", ["backward", "backward_input"])
def test_what_was_changed_in_place_is_noticed_in_either_way(part):
    passed, gradients = stage(Changed(), torch.randn(3, WIDTH), is_last=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        getattr(passed, part)(gradients)


def test_a_stage_that_cannot_be_split_keeps_nothing_for_its_weight_part():
    passed, gradients = stage(LAYERS["fused"](), torch.randn(3, 2, WIDTH), is_last=False)
    entered = ref(passed.inputs[0])
    assert len(passed.backward_input(gradients)) == 1
    del gradients
    assert entered() is None
    passed.backward_weight()
