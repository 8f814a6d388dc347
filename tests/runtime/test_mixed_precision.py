"""AdamW with exact values beside the parameters: torch's own where nothing is rounded, and exact where parameters are."""

import pytest
import torch
from torch import nn

from kintsugi.core.decision import StateKind
from kintsugi.runtime import mixed_precision
from kintsugi.runtime.llama import llama_job
from kintsugi.runtime.measuring.allocator import MemoryMeter
from kintsugi.runtime.mixed_precision import MASTER, MixedPrecisionAdamW, mixed_precision_adamw
from kintsugi.runtime.workers.state import ModelState
from restorer.packing import pack, unpack
from tests.runtime.jobs import TINY_LLAMA as TINY
from tests.runtime.operations import Operations


def stepped(optimizer, parameter, gradients):
    for gradient in gradients:
        parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


def fused(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def test_fp32_parameters_are_trained_as_by_torch():
    start, gradients = torch.randn(50, 37), torch.randn(4, 50, 37)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    stepped(MixedPrecisionAdamW([ours]), ours, gradients)
    stepped(fused([theirs]), theirs, gradients)
    assert torch.equal(ours, theirs)


SHAPES = ((700, 1000), (3,), (500, 600), (), (500, 800), (0,), (41, 7))
"""Some are updated together with others of a list, and some by themselves."""


@pytest.mark.parametrize("dtypes", [(torch.bfloat16,), (torch.bfloat16, torch.float32, torch.float64)])
def test_many_parameters_are_trained_as_each_by_itself_in_fp32(dtypes, monkeypatch):
    """Where some have no gradient at times, and of several types."""
    monkeypatch.setattr(mixed_precision, "_FEW", 2**18)
    starts = [torch.randn(shape).to(dtypes[index % len(dtypes)]) for index, shape in enumerate(SHAPES)]
    together, alone = ([nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    exact = [nn.Parameter(start if start.dtype.itemsize > 4 else start.float()) for start in starts]
    optimizer, others, reference = MixedPrecisionAdamW(together), [MixedPrecisionAdamW([p]) for p in alone], fused(exact)
    for number in range(3):
        for index, (ours, own, wide) in enumerate(zip(together, alone, exact, strict=True)):
            gradient = torch.randn(ours.shape).to(ours.dtype) if (number, index) != (1, 4) else None
            ours.grad = own.grad = gradient
            wide.grad = None if gradient is None else gradient.to(wide.dtype)
        for stepping in (optimizer, *others, reference):
            stepping.step()
    assert all(map(torch.equal, together, alone))
    assert all(torch.equal(ours, wide.to(ours.dtype)) for ours, wide in zip(together, exact, strict=True))


def test_an_update_of_many_parameters_takes_few_operations():
    parameters = [nn.Parameter(torch.ones(64, dtype=torch.bfloat16)) for _ in range(300)]
    optimizer = MixedPrecisionAdamW(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with Operations() as operations:
        optimizer.step()
    assert [operations.names.count(name) for name in ("_foreach_copy_", "_fused_adamw_", "copy_")] == [2, 1, 0]


def test_gradients_are_widened_in_no_more_memory_than_the_largest_takes(monkeypatch):
    monkeypatch.setattr(mixed_precision, "_FEW", 2**18)
    parameters = [nn.Parameter(torch.ones(1000, width, dtype=torch.bfloat16)) for width in (300, 600, 300, 300, 200, 400)]
    optimizer = MixedPrecisionAdamW(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with MemoryMeter("cpu") as meter, meter.section("update"):
        optimizer.step()
    assert 0 < meter.sections["update"].rise_bytes <= 4 * 600_000 + 1_000  # and numbers of the optimizer's own


def test_updates_too_small_for_the_parameters_type_add_up():
    """1 + 3e-4 is 1 in bf16."""
    parameter = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = MixedPrecisionAdamW([parameter], weight_decay=0.0)
    stepped(optimizer, parameter, -torch.ones(50, 1))
    assert optimizer.state[parameter][MASTER].item() == pytest.approx(1 + 50 * 3e-4, rel=1e-4)
    assert parameter.item() == pytest.approx(1 + 50 * 3e-4, rel=2**-8)
    assert parameter.dtype is torch.bfloat16


def test_twelve_bytes_are_kept_of_a_parameter():
    parameter = nn.Parameter(torch.ones(100, dtype=torch.bfloat16))
    optimizer = mixed_precision_adamw([("p", parameter)])
    stepped(optimizer, parameter, torch.ones(1, 100))
    kept = optimizer.state[parameter]
    assert sum(value.numel() * value.element_size() for value in kept.values()) == 12 * 100 + kept["step"].element_size()


def test_a_loaded_state_goes_on_bit_for_bit_and_is_no_others():
    start, gradients = torch.randn(5, 3).bfloat16(), torch.randn(8, 5, 3)
    whole, old, new = (nn.Parameter(start.clone()) for _ in range(3))
    through, before, after = (MixedPrecisionAdamW([parameter]) for parameter in (whole, old, new))
    stepped(through, whole, gradients)
    stepped(before, old, gradients[:4])
    new.data.copy_(old)
    after.load_state_dict(before.state_dict())
    stepped(after, new, gradients[4:])
    assert torch.equal(whole, new)
    assert all(torch.equal(through.state[whole][key], value) for key, value in after.state[new].items())
    assert before.state[old]["step"] == 4


def test_a_state_is_loaded_where_some_parameters_have_none():
    used, unused = nn.Parameter(torch.ones(2).bfloat16()), nn.Parameter(torch.tensor(1.0))
    optimizer, other = (MixedPrecisionAdamW([{"params": [unused]}, {"params": [used]}]) for _ in range(2))
    stepped(optimizer, used, torch.ones(1, 2))
    other.load_state_dict(optimizer.state_dict())
    assert set(other.state) == {used}


def test_exact_values_move_with_the_moments():
    """Without them a new holder would go on from rounded ones."""
    job = llama_job(TINY)
    old = ModelState.initial(job, range(4))
    for number in range(6):
        if number == 3:
            keys = [(layer, kind) for layer in range(4) for kind in (StateKind.PARAMETER, StateKind.OPTIMIZER)]
            new = ModelState(job, {}, {}).rebuilt(range(4), {key: unpack(*pack(old.export(*key))) for key in keys})
        for state in (old,) if number < 3 else (old, new):
            generator = torch.Generator().manual_seed(number)
            for parameter in state.parameters.values():
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            state.update(number)
    assert all(torch.equal(old.parameters[name], parameter) for name, parameter in new.parameters.items())
