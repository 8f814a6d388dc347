"""Lone steps go as far as steps together, where noise prevails in gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.runtime.synchronization import ModelAveraging, SchedulePolicy, SynchronizedOptimizer, SynchronousSGD
from kintsugi.runtime.synchronization.rate import NoiseMemory, lengthened
from tests.runtime.synchronization.workers import crew, flat, model_of, train_step

DECAY = 0.999


def adam(parameters, **options):
    return torch.optim.Adam(parameters, lr=1e-3, betas=(0.9, DECAY), **options)


def parameter(size: int = 1) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))


@settings(max_examples=30)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=40), st.integers(1, 16))
def test_noise_is_remembered_as_the_mean_square_remembers_gradients(averaged, num_workers):
    memory, optimizer = NoiseMemory(), adam([parameter()])
    for count in averaged:
        memory.stepped(optimizer, count, num_workers)
    weights = [DECAY**age for age in reversed(range(len(averaged)))]
    remembered = sum(weight / count for weight, count in zip(weights, averaged, strict=True)) / sum(weights)
    assert memory.ratio(num_workers) == pytest.approx(math.sqrt(num_workers * remembered), rel=1e-9)


def test_whoever_always_stepped_together_or_keeps_no_squares_steps_as_before():
    together, plain = NoiseMemory(), NoiseMemory()
    model = parameter()
    model.grad = torch.ones_like(model)
    momentum = torch.optim.SGD([model], lr=0.1, momentum=0.9)
    momentum.step()
    for _ in range(50):
        together.stepped(adam([parameter()]), 4, 4)
        plain.stepped(momentum, 1, 4)
    assert together.ratio(4) == pytest.approx(1.0)
    assert plain.ratio(4) == plain.ratio(2) == 1.0


def test_moments_from_a_checkpoint_are_taken_for_those_of_steps_together():
    model, memory = parameter(), NoiseMemory()
    optimizer = adam([model])
    model.grad = torch.ones_like(model)
    optimizer.step()
    memory.stepped(optimizer, 1, 4)
    assert memory.ratio(4) == pytest.approx(math.sqrt(DECAY + (1 - DECAY) * 4))


NUM_WORKERS, NUM_STEPS, NUM_PARAMETERS, DRIFT = 4, 200, 500, 0.05


def way(num_together: int, *, matches: bool) -> float:
    """How far the mean model comes along the mean gradient, in steps taken together first and alone after that."""
    models = [parameter(NUM_PARAMETERS) for _ in range(NUM_WORKERS)]
    optimizers, memories = [adam([model]) for model in models], [NoiseMemory() for _ in models]
    random = torch.Generator().manual_seed(0)
    for step in range(NUM_STEPS):
        own = DRIFT + torch.randn(NUM_WORKERS, NUM_PARAMETERS, generator=random, dtype=torch.float64)
        is_alone = step >= num_together
        for rank, (model, optimizer, memory) in enumerate(zip(models, optimizers, memories, strict=True)):
            model.grad = own[rank] if is_alone else own.mean(dim=0)
            memory.stepped(optimizer, 1 if is_alone else NUM_WORKERS, NUM_WORKERS)
            with lengthened(optimizer, memory.ratio(NUM_WORKERS) if matches and is_alone else 1.0):
                optimizer.step()
    return -float(torch.stack([model.detach() for model in models]).mean())


@pytest.mark.parametrize("num_together", [0, 100])
def test_lone_steps_of_adam_fall_short_by_the_root_of_the_number_of_workers_and_do_not_when_lengthened(num_together):
    synchronous = way(NUM_STEPS, matches=False)
    assert way(num_together, matches=True) == pytest.approx(synchronous, rel=0.1)
    if num_together == 0:
        assert way(0, matches=False) == pytest.approx(synchronous / math.sqrt(NUM_WORKERS), rel=0.1)


def test_the_learning_rate_is_what_it_was_after_a_lengthened_step():
    optimizer = torch.optim.Adam([{"params": [parameter()], "lr": 0.1}, {"params": [parameter()], "lr": 0.2}])
    with lengthened(optimizer, 2.0):
        assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.4]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


def averaged(matches: bool, optimizer_of, num_steps: int = 8):
    """Two workers that step together first and then alone, kept together by model averaging."""

    def main(rank, link):
        model = model_of()
        optimizer = SynchronizedOptimizer(
            optimizer_of(model.parameters()),
            [SynchronousSGD(), ModelAveraging(matches_synchronous=matches)],
            link.transport("two", rank, 2),
            policy=SchedulePolicy([(4, ModelAveraging.name)]),
        )
        for step in range(num_steps):
            train_step(model, optimizer, step, rank, 2)
        optimizer.finish()
        return flat(model), optimizer._replica.noise

    return crew(2, main)


def test_a_strategy_lengthens_steps_where_it_is_told_to_and_the_optimizer_keeps_squares():
    (plain, memory), _ = averaged(False, adam)
    (matched, _), (other, _) = averaged(True, adam)
    assert not torch.equal(plain, matched)
    assert torch.equal(matched, other)
    assert memory.noise / memory.weight == pytest.approx((4 * 1.0 + 4 * 0.5) / 8, rel=1e-2)

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    assert torch.equal(averaged(False, sgd)[0][0], averaged(True, sgd)[0][0])


def test_a_worker_that_joins_remembers_what_its_optimizer_state_does():
    def main(rank, link):
        model = model_of()
        synchronized = None
        if rank < 2:
            synchronized = SynchronizedOptimizer(adam(model.parameters()), SynchronousSGD(), link.transport("two", rank, 2))
            for step in range(5):
                train_step(model, synchronized, step, rank, 2)
        transport = link.transport("three", rank, 3)
        if synchronized is None:
            synchronized = SynchronizedOptimizer(adam(model.parameters()), SynchronousSGD(), transport)
        else:
            synchronized.adopt(transport)
        found = synchronized._replica.noise
        synchronized.finish()
        return found

    memories = crew(3, main)
    assert memories[0] == memories[1] == memories[2]
    assert memories[2].ratio(2) == pytest.approx(1.0)
