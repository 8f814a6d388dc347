"""Recomputed activations train bit for bit as kept ones do, are computed again once, and are not kept meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from weakref import ref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Policy, Schedule
from kintsugi.runtime.devices import job_on
from kintsugi.runtime.faults import fail_at
from kintsugi.runtime.models import TrainingJob, train_layer
from kintsugi.runtime.recomputation import recomputed
from kintsugi.runtime.workers.backward import PassedStage
from tests.runtime.jobs import WIDTH, drawing_job, frozen_job, odd_job, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, run, survivors
from tests.runtime.workers.test_executor import Alone, executor_of
from tests.runtime.workers.test_schedules import under

CPU = torch.device("cpu")


def recomputing(make_job: Callable[[], TrainingJob]) -> Callable[[], TrainingJob]:
    return partial(job_on, make_job, None, None, recomputes_activations=True)


@pytest.mark.parametrize("make_job", [tiny_gpt, odd_job, frozen_job, drawing_job])
def test_losses_and_parameters_are_bitwise_those_without(make_job):
    executors = [executor_of(make(), Alone()) for make in (make_job, recomputing(make_job))]
    for step in range(3):
        kept, again = (executor.run(step) for executor in executors)
        assert kept == again
    kept, again = (executor.state.parameters for executor in executors)
    assert all(torch.equal(kept[name], value) for name, value in again.items())


class Watched(torch.autograd.Function):
    """The exponential, whose memory is a numpy array's: one can see whether it is still there."""

    @staticmethod
    def forward(ctx, value, arrays):
        array = np.exp(value.detach().numpy())
        arrays.add(array.base if array.base is not None else array)
        result = torch.from_numpy(array)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


class Arrays:
    """Weak references to arrays, which cannot be hashed."""

    def __init__(self) -> None:
        self._known: list[ref[np.ndarray]] = []

    def add(self, array: np.ndarray) -> None:
        self._known.append(ref(array))

    def __len__(self) -> int:
        return sum(known() is not None for known in self._known)


class Seen(nn.Module):
    """Linear and dropout twice; counts its passes, and what it made in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.num_passes = 0
        self.num_ends = 0
        self.between = Arrays()

    def forward(self, hidden: Tensor) -> Tensor:
        self.num_passes += 1
        hidden = Watched.apply(self.dropout(self.first(hidden)), self.between)
        hidden = self.second(torch.tanh(self.dropout(hidden)))
        self.num_ends += 1
        return hidden + 1.0


def passed_through(module: nn.Module, *, is_recomputed: bool) -> PassedStage:
    inputs = (torch.linspace(-1, 1, 4 * WIDTH, dtype=torch.float64).reshape(4, WIDTH).requires_grad_(),)

    def forward(own):
        torch.manual_seed(3)
        return (module(*own),)

    outputs = recomputed(forward, inputs, module=module, name="seen", device=CPU) if is_recomputed else forward(inputs)
    torch.randn(7)
    return PassedStage.of(inputs, outputs, None)


def gradients_of(module: nn.Module, *, is_recomputed: bool, is_split: bool) -> list[Tensor]:
    module.zero_grad()
    passed = passed_through(module, is_recomputed=is_recomputed)
    given = [torch.ones(4, WIDTH, dtype=torch.float64)]
    if is_split:
        arrived = passed.backward_input(given)
        assert all(parameter.grad is None for parameter in module.parameters())
        passed.backward_weight()
    else:
        arrived = passed.backward(given)
    return [*arrived, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("is_split", [False, True])
def test_gradients_are_bitwise_the_same_and_a_pass_is_made_again_once(is_split):
    module = Seen().double()
    expected = gradients_of(module, is_recomputed=False, is_split=is_split)
    assert (module.num_passes, module.num_ends) == (1, 1)
    for number in (1, 2):
        found = gradients_of(module, is_recomputed=True, is_split=is_split)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert module.num_passes == 1 + 2 * number
    assert module.num_ends == 4, "the second time its end was not computed again, which nobody needs"


def test_nothing_but_the_inputs_is_kept_until_the_backward_pass():
    module = Seen().double()
    kept = passed_through(module, is_recomputed=False)
    assert len(module.between) == 1
    let_go = passed_through(module, is_recomputed=True)
    assert len(module.between) == 1
    let_go.backward_input([torch.ones(4, WIDTH)])
    assert len(module.between) == 2
    let_go.backward_weight()
    del let_go
    assert len(module.between) == 1
    kept.backward([torch.ones(4, WIDTH)])
    assert len(module.between) == 0


def test_numbers_drawn_afterwards_are_those_without():
    drawn = []
    for is_recomputed in (False, True):
        passed = passed_through(Seen().double(), is_recomputed=is_recomputed)
        passed.backward([torch.ones(4, WIDTH)])
        drawn.append(torch.randn(5))
    assert torch.equal(*drawn)


class Scripted(nn.Module):
    """Another interpreter than Python's is at work when everything is there again; what is changed in place nobody needs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(self.outer(hidden).relu_())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # as a DeprecationWarning, or a FutureWarning in torch 2.14
def test_what_is_compiled_to_torchscript_is_computed_again():
    """Its interpreter finds faster ways as it goes, whose last bits differ."""
    module = Scripted().double()
    expected = gradients_of(module, is_recomputed=False, is_split=False)
    for _ in range(2):
        torch.testing.assert_close(gradients_of(module, is_recomputed=True, is_split=False), expected, rtol=1e-12, atol=1e-12)


class OwnGenerator(nn.Module):
    """Drops out by a generator that nobody seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.exp() * (torch.rand(hidden.shape, generator=self.generator) < 0.5)


class Stateful(nn.Module):
    """Saves more every time."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 1

    def forward(self, hidden: Tensor) -> Tensor:
        self.depth += 1
        for _ in range(4 - self.depth):
            hidden = hidden.exp()
        return hidden


class InPlace(nn.Module):
    """Overwrites what it is given, which autograd itself would bear."""

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden.add_(1.0)
        return hidden.tanh()


class Overwriting(nn.Module):
    """Overwrites what it made itself and its backward pass needs, once everything is saved; autograd would refuse it."""

    def forward(self, hidden: Tensor) -> Tensor:
        made = hidden.tanh()
        made += 1.0
        return made


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (OwnGenerator, "did not compute the same"),
        (Stateful, "did not compute the same"),
        (InPlace, "in place"),
        (Overwriting, "changes in place what its own backward pass needs"),
    ],
)
def test_layers_that_cannot_be_computed_again_are_named(module, why):
    built = module()
    inputs = torch.randn(3, WIDTH, requires_grad=True) * 1.0
    (output,) = recomputed(lambda own: (built(*own),), (inputs,), module=built, name="odd", device=CPU)
    with pytest.raises(InvalidInputError, match=f"layer 'odd' .*{why}") as caught:
        output.sum().backward()
    assert (caught.value.field, caught.value.value) == ("recomputes_activations", "odd")


def test_a_layer_that_wants_what_the_data_lacks_is_named_too():
    job = replace(recomputing(odd_job)(), microbatch_size=1)
    with pytest.raises(InvalidInputError, match="mask: layer 'mixer0' wants it"):
        train_layer(job, 1, nn.Identity(), (), {}, step=0, microbatch=0)


@pytest.mark.processes
def test_processes_with_split_passes_that_lose_a_worker_train_bitwise_alike():
    request = under(Schedule.ZB_H1, gpt_request(2, 3, Policy.DYNAMIC_PARALLELISM))
    kept, again = (run(make, request, fail_at(2, "w04", "backward")) for make in (tiny_gpt, recomputing(tiny_gpt)))
    assert_same(again, kept, tolerance=0.0)
    assert "w04" not in survivors(again).workers
