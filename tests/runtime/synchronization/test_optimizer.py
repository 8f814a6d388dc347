"""A SynchronizedOptimizer is to schedulers, scalers, hooks and parameter groups what the optimizer within it is."""

import math

import pytest
import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.synchronization import (
    ModelAveraging,
    PeerTransport,
    SynchronizedOptimizer,
    SynchronousSGD,
)
from tests.core.refusals import refuses
from tests.runtime.synchronization.workers import adam, backward, crew, flat, model_of, samples, train_step


def test_a_gradient_scaler_is_refused_where_gradients_are_summed_before_it_scales_them_back():
    model = model_of()
    optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), PeerTransport.alone())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = flat(model)
    scaler.scale(model(samples()[0]).sum()).backward()
    with refuses("gradients", "GradScaler", "train in bfloat16, without it"):
        scaler.step(optimizer)
    assert torch.equal(before, flat(model))
    optimizer.close()


def test_a_gradient_scaler_scales_what_a_worker_applies_alone():
    model, reference = model_of(), model_of()
    optimizer = SynchronizedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), ModelAveraging(), PeerTransport.alone())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model(samples()[0]).sum()).backward()
    scaler.step(optimizer)
    optimizer.finish()
    reference(samples()[0]).sum().backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    assert torch.allclose(flat(model), flat(reference), rtol=1e-12)


def test_schedulers_and_checkpoints_see_the_optimizer_within():
    model = model_of()
    within = adam(model)
    optimizer = SynchronizedOptimizer(within, SynchronousSGD(), PeerTransport.alone())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    train_step(model, optimizer, 0)
    scheduler.step()
    assert within.param_groups[0]["lr"] == 0.005
    assert "SynchronizedOptimizer(synchronous_sgd, 1 workers" in repr(optimizer)
    other = SynchronizedOptimizer(adam(model_of()), SynchronousSGD(), PeerTransport.alone())
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0.005
    assert len(other.state) == len(optimizer.state)
    assert other.defaults["lr"] == 0.01
    optimizer.close()
    other.close()


def test_hooks_are_those_of_the_optimizer_within():
    model, called = model_of(), []
    within = adam(model)
    optimizer = SynchronizedOptimizer(within, SynchronousSGD(), PeerTransport.alone())
    names = ("step_pre", "step_post", "state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")
    handles = [
        getattr(optimizer, f"register_{name}_hook")(lambda seen, *_, name=name: called.append((name, seen is within)))
        for name in names
    ]
    train_step(model, optimizer, 0)
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == [(name, True) for name in names]
    for handle in handles:
        handle.remove()
    train_step(model, optimizer, 1)
    assert len(called) == len(names)
    optimizer.close()


def test_learning_rates_that_differ_are_refused_before_anything_is_touched():
    def main(rank, link):
        model = model_of()
        optimizer = SynchronizedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1 + rank), SynchronousSGD(), link.transport("all", rank, 2)
        )
        optimizer.param_groups[0]["lr"] = 0.1 + 0.1 * rank
        backward(model, optimizer, 0, rank, 2)
        before = flat(model)
        with pytest.raises(InvalidInputError, match="learning_rate"):
            optimizer.step()
        optimizer.close()
        return torch.equal(before, flat(model))

    assert crew(2, main) == [True, True]


def two_groups(model):
    return torch.optim.SGD([{"params": model[:2].parameters()}, {"params": model[2:].parameters()}], lr=0.1)


@pytest.mark.parametrize(
    ("rates", "schedule"),
    [
        (((0.1, 0.1), (0.2, 0.05)), None),
        (((0.1, 0.2), (0.2, 0.1)), None),
        (((0.1, 0.2), (0.1, math.nextafter(0.2, 1))), None),
        (((0.1, 0.1), (0.3,)), None),
        (((0.1, 0.1), (0.1,)), lambda _: 0.1),
    ],
    ids=["one weighed sum", "other order", "last bit", "fewer groups", "fewer groups on a schedule"],
)
def test_learning_rates_of_all_groups_are_compared(rates, schedule):
    def main(rank, link):
        model, own = model_of(), rates[rank]
        optimizer = SynchronizedOptimizer(
            two_groups(model), SynchronousSGD(), link.transport("all", rank, 2), learning_rate=schedule
        )
        if len(own) == 1:
            optimizer.param_groups[0]["params"] += optimizer.param_groups.pop()["params"]
        for group, rate in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = rate
        before = flat(model)
        backward(model, optimizer, 0, rank, 2)
        with pytest.raises(
            InvalidInputError, match=r"learning_rate: .* groups differ.*give all workers the same groups"
        ) as refused:
            optimizer.step()
        optimizer.close()
        assert refused.value.value == list(own)
        return torch.equal(before, flat(model))

    assert crew(2, main) == [True, True]


def test_a_worker_with_other_parameter_groups_is_refused():
    def main(rank, link):
        model, transport = model_of(rank), link.transport("all", rank, 2)
        before = flat(model)
        if rank == 0:
            SynchronizedOptimizer(two_groups(model), SynchronousSGD(), transport).close()
            return
        with pytest.raises(InvalidInputError, match=r"optimizer: .*\[6\] tensors here and of \[2, 4\] .*give all workers the same"):
            SynchronizedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), SynchronousSGD(), transport)
        transport.close()
        assert torch.equal(before, flat(model))

    crew(2, main)
