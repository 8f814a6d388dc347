"""Workers that start or join together get the model and the optimizer of those who train, bit for bit, or are refused."""

import math

import numpy as np
import pytest
import torch

from kintsugi.runtime.synchronization import (
    ModelAveraging,
    PairwiseAveraging,
    SchedulePolicy,
    SynchronizedOptimizer,
    SynchronousSGD,
)
from tests.core.refusals import refuses
from tests.runtime.synchronization.workers import adam, crew, entries, flat, is_equal, model_of, train_step


def grown(strategies, *, policy=None, sizes=(1, 2, 3), steps_each: int = 4):
    """A job that one worker begins and others join, one at a time, until all take the last steps together."""

    def main(rank, link):
        model, switches = model_of(rank), []
        optimizer = None
        for index, size in enumerate(sizes):
            if rank >= size:
                continue
            transport = link.transport(f"of {size}", rank, size)
            if optimizer is None:
                optimizer = SynchronizedOptimizer(
                    adam(model), strategies(), transport, policy=policy and policy(), on_switch=switches.append
                )
            else:
                assert not optimizer.adopt(transport)
            while optimizer.num_steps < steps_each * (index + 1):
                train_step(model, optimizer, optimizer.num_steps, rank, size)
        optimizer.finish()
        return model, switches, optimizer.num_steps

    return crew(max(sizes), main)


def test_workers_that_join_get_model_and_optimizer_bit_for_bit():
    outcomes = grown(SynchronousSGD)
    assert is_equal([model for model, _, _ in outcomes])
    reference = model_of()
    optimizer = adam(reference)
    for step in range(12):
        train_step(reference, optimizer, step)
    assert torch.allclose(flat(outcomes[0][0]), flat(reference), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_worker_that_joins_keeps_what_the_others_keep_in_the_same_type(dtype):
    """NAdam keeps a number in fp32 beside parameters of every type; the workers then average it."""

    def main(rank, link):
        model = model_of(rank).to(dtype)
        inner = torch.optim.NAdam(model.parameters(), lr=0.01)
        begins = link.transport("of 2", rank, 2) if rank < 2 else link.transport("of 3", rank, 3)
        optimizer = SynchronizedOptimizer(inner, ModelAveraging(), begins)
        if rank < 2:
            model(torch.ones(3, 4, dtype=dtype)).sum().backward()
            optimizer.step()
            optimizer.adopt(link.transport("of 3", rank, 3))
        kinds = [value.dtype for value in entries(optimizer)]
        optimizer.finish()
        return model, kinds

    outcomes = crew(3, main)
    assert is_equal([model for model, _ in outcomes])
    assert outcomes[0][1] == outcomes[2][1]


def partly_trained(rank: int, *still: int):
    model = model_of(rank)
    for layer in still:
        model[layer].requires_grad_(False)
    return model


def test_workers_that_start_or_join_get_parameters_that_are_not_trained_too():
    def main(rank, link):
        model = partly_trained(rank, 0).bfloat16()
        begins = link.transport("of 2", rank, 2) if rank < 2 else link.transport("of 3", rank, 3)
        optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), begins)
        if rank < 2:
            optimizer.adopt(link.transport("of 3", rank, 3))
        optimizer.finish()
        return model

    models = crew(3, main)
    assert is_equal(models)
    assert torch.equal(models[2][0].weight, model_of(0)[0].weight.bfloat16())


def test_a_worker_that_trains_other_parameters_is_refused_before_it_learns():
    def main(rank, link):
        model = partly_trained(rank, 2 * rank)
        if rank == 0:
            SynchronizedOptimizer(adam(model), SynchronousSGD(), link.transport("of 2", rank, 2)).close()
            return
        with refuses("optimizer", [2, 3], "leaves parameters of"):
            SynchronizedOptimizer(adam(model), SynchronousSGD(), link.transport("of 2", rank, 2))
        assert torch.equal(flat(model), flat(model_of(rank)))

    crew(2, main)


@pytest.mark.parametrize("strategy", [ModelAveraging, PairwiseAveraging])
def test_workers_join_under_every_strategy(strategy):
    outcomes = grown(strategy)
    assert is_equal([model for model, _, _ in outcomes])


def test_workers_that_join_follow_the_strategy_and_the_policy_of_the_others():
    """Two switch when the second joins; the third learns so, and all switch back at the same step."""
    outcomes = grown(
        lambda: [SynchronousSGD(), ModelAveraging()],
        policy=lambda: SchedulePolicy([(5, "model_averaging"), (10, "synchronous_sgd")]),
    )
    told = [[(switch.step, switch.after) for switch in switches] for _, switches, _ in outcomes]
    assert told == [[(5, "model_averaging"), (10, "synchronous_sgd")]] * 2 + [[(10, "synchronous_sgd")]]
    assert is_equal([model for model, _, _ in outcomes])


def test_a_learning_rate_may_be_a_numpy_number_of_64_bits():
    """As a schedule by NumPy's functions leaves it; workers that join have the same bits."""

    def main(rank, link):
        model = model_of(rank)
        inner = torch.optim.SGD(model.parameters(), lr=np.float64(0.1))
        optimizer = SynchronizedOptimizer(inner, SynchronousSGD(), link.transport("of 2", rank, 2)) if rank < 2 else None
        if optimizer is not None:
            train_step(model, optimizer, 0, rank, 2)
            inner.param_groups[0]["lr"] = 0.1 * np.cos(0.3)
            optimizer.adopt(link.transport("of 3", rank, 3))
        else:
            optimizer = SynchronizedOptimizer(inner, SynchronousSGD(), link.transport("of 3", rank, 3))
        train_step(model, optimizer, 1, rank, 3)
        optimizer.finish()
        return model, inner.param_groups[0]["lr"]

    outcomes = crew(3, main)
    assert is_equal([model for model, _ in outcomes])
    assert {float(rate) for _, rate in outcomes} == {0.1 * math.cos(0.3)}


def test_what_cannot_go_on_in_another_worker_is_refused_by_all_of_them():
    """With a number of 32 bits NumPy computes in 32, and torch with a plain one in 64."""

    def main(rank, link):
        inner = torch.optim.SGD(model_of().parameters(), lr=np.float32(0.1))
        transport = link.transport("both", rank, 2)
        with refuses("optimizer", fragment="holds a float32, which cannot go on in another process; keep plain values and tensors"):
            SynchronizedOptimizer(inner, SynchronousSGD(), transport)
        transport.close()

    crew(2, main)
