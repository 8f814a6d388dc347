"""A run that goes on from a state of model and optimizer goes on with its steps, its strategy and its policy, too."""

import copy
import threading

import pytest
import torch

from kintsugi.runtime.plain_state import entries_of, load
from kintsugi.runtime.synchronization import (
    ModelAveraging,
    PairwiseAveraging,
    SchedulePolicy,
    SynchronizedOptimizer,
    SynchronousSGD,
)
from tests.core.refusals import refuses
from tests.patience import PATIENCE_SECONDS
from tests.runtime.synchronization.workers import crew, flat, is_equal, model_of, train_step


def made(model, transport, *strategies, kind=torch.optim.Adam):
    """Its learning rate and its strategy go by the step."""
    return SynchronizedOptimizer(
        kind(model.parameters(), lr=0.1),
        strategies or [SynchronousSGD(), ModelAveraging()],
        transport,
        policy=SchedulePolicy([(3, "model_averaging"), (7, "synchronous_sgd")]),
        learning_rate=lambda step: 0.1 / (1 + step),
    )


def written_as_a_checkpoint(model, optimizer):
    entries = copy.deepcopy(entries_of(model, optimizer, None))
    return lambda model, optimizer: load(entries, model, optimizer, None)


def written_by_the_script(model, optimizer):
    states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    def read(model, optimizer):
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])

    return read


@pytest.mark.parametrize("write", [written_as_a_checkpoint, written_by_the_script])
@pytest.mark.parametrize("stops_after", [2, 8])
def test_a_run_that_goes_on_is_one_that_was_not_interrupted(write, stops_after):
    """In the first and in the last phase, in which replicas are equal; the strategy in between is another one."""

    def main(rank, link):
        model, found = model_of(), []
        optimizer = made(model, link.transport("first", rank, 2))
        for step in range(10):
            if step == stops_after:
                read = write(model, optimizer)
            train_step(model, optimizer, step, rank, 2)
        optimizer.finish()
        found.append(flat(model))
        model = model_of(1)
        optimizer = made(model, link.transport("second", rank, 2))
        read(model, optimizer)
        assert optimizer.num_steps == stops_after
        for step in range(stops_after, 10):
            train_step(model, optimizer, step, rank, 2)
        optimizer.finish()
        return [*found, flat(model)]

    for whole, resumed in crew(2, main):
        assert torch.equal(whole, resumed)


@pytest.mark.parametrize("strategy", [ModelAveraging, PairwiseAveraging])
def test_the_strategy_that_was_followed_is_followed_with_the_model_that_was_loaded(strategy):
    def main(rank, link):
        first = model_of()
        optimizer = SynchronizedOptimizer(torch.optim.SGD(first.parameters(), lr=0.1), strategy(), link.transport("one", 0, 1))
        train_step(first, optimizer, 0)
        optimizer.close()
        read = written_by_the_script(first, optimizer)
        model = model_of(1)
        inner = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = SynchronizedOptimizer(inner, [SynchronousSGD(), strategy()], link.transport("both", rank, 2))
        read(model, optimizer)
        inner.param_groups[0]["lr"] = 0.0
        assert optimizer.strategy == strategy.name
        train_step(model, optimizer, 1, rank, 2)
        optimizer.finish()
        return first, model

    assert is_equal([model for models in crew(2, main) for model in models])


def test_what_a_policy_remembers_goes_on():
    def main(rank, link):
        model = model_of()
        optimizer = made(model, link.transport("one", rank, 1))
        optimizer._policy.memory["seen"] = 3
        state = optimizer.state_dict()
        other = made(model, link.transport("other", rank, 1))
        other.load_state_dict(state)
        assert other._policy.memory == {"seen": 3}
        assert other.state_dict()["synchronization"] == state["synchronization"]

    crew(1, main)


def test_a_wrapped_optimizers_state_and_that_of_one_alone_are_taken_by_each_other():
    def main(rank, link):
        model = model_of()
        optimizer = made(model, link.transport("one", rank, 1))
        train_step(model, optimizer, 0)
        plain = torch.optim.Adam(model.parameters())
        plain.load_state_dict(optimizer.state_dict())
        assert sorted(plain.state_dict()) == ["param_groups", "state"]
        other = made(model, link.transport("other", rank, 1))
        other.load_state_dict(plain.state_dict())
        assert other.num_steps == 0
        assert other.param_groups[0]["lr"] == 0.1
        assert len(other.state) == len(optimizer.state)

    crew(1, main)


def test_a_strategy_that_was_followed_has_to_be_given_again():
    def main(rank, link):
        model = model_of()
        state = made(model, link.transport("one", rank, 1), ModelAveraging(), SynchronousSGD()).state_dict()
        other = SynchronizedOptimizer(torch.optim.Adam(model.parameters()), SynchronousSGD(), link.transport("other", rank, 1))
        with refuses("strategy", "model_averaging", "is none of those given: synchronous_sgd"):
            other.load_state_dict(state)

    crew(1, main)


def test_a_state_is_not_loaded_while_workers_are_not_in_step():
    def main(rank, link):
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = SynchronizedOptimizer(inner, PairwiseAveraging(), link.transport("both", rank, 2))
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        train_step(model, optimizer, 0, rank, 2)
        with refuses("state_dict", "pairwise_averaging", "load it before the first one"):
            optimizer.load_state_dict(state)
        optimizer.finish()

    crew(2, main)


def test_nobody_averages_with_a_model_from_before_the_loading():
    """Who has loaded first waits for the other."""
    arrived = [threading.Event(), threading.Event()]

    def main(rank, link):
        inner = torch.optim.SGD(model_of().parameters(), lr=0.1)
        optimizer = SynchronizedOptimizer(inner, PairwiseAveraging(), link.transport("both", rank, 2))
        assert rank == 0 or arrived[0].wait(PATIENCE_SECONDS)
        arrived[rank].set()
        optimizer.load_state_dict(optimizer.state_dict())
        are_here = all(event.is_set() for event in arrived)
        optimizer.finish()
        return are_here

    assert crew(2, main) == [True, True]


def test_a_model_that_is_loaded_too_late_is_refused_before_it_is_lost():
    def main(rank, link):
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = SynchronizedOptimizer(inner, PairwiseAveraging(), link.transport("one", rank, 1))
        model.load_state_dict(model_of(1).state_dict())
        with refuses("model", "pairwise_averaging", "load a model before the state of the optimizer"):
            train_step(model, optimizer, 0)
        optimizer.load_state_dict(optimizer.state_dict())
        train_step(model, optimizer, 0)
        train_step(model, optimizer, 1)
        assert optimizer.num_steps == 2

    crew(1, main)
