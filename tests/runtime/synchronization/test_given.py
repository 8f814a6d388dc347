"""Options that no training comes of are refused when the optimizer is made, before anybody is waited for."""

import math

import pytest
import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.synchronization import (
    ModelAveraging,
    PairwiseAveraging,
    PeerTransport,
    SchedulePolicy,
    SynchronizedOptimizer,
    SynchronousSGD,
    ThroughputPolicy,
    WorkerCountPolicy,
)
from kintsugi.runtime.synchronization.wrapping import WrappingOptimizer
from tests.core.refusals import refuses
from tests.runtime.synchronization.workers import crew, flat, model_of, train_step


def made(**options) -> SynchronizedOptimizer:
    """Without a transport, of which nothing is asked so early."""
    inner = torch.optim.SGD(model_of().parameters(), lr=0.1)
    return SynchronizedOptimizer(inner, [SynchronousSGD(), PairwiseAveraging()], None, **options)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_grad_norm", -1.0),
        ("max_grad_norm", math.nan),
        ("num_backwards", 0),
        ("bucket_bytes", 0),
        ("round_steps", 0),
        ("round_steps", 1.5),
        ("learning_rate", 0.1),
        ("on_switch", 3),
        ("policy", "throughput"),
        ("policy", ThroughputPolicy),
    ],
)
def test_what_no_training_comes_of_is_refused(field, value):
    with refuses(field):
        made(**{field: value})


@pytest.mark.parametrize("strategy", ["synchronous_sgd", SynchronousSGD, [SynchronousSGD(), "pairwise_averaging"], None])
def test_what_is_no_strategy_is_refused(strategy):
    inner = torch.optim.SGD(model_of().parameters(), lr=0.1)
    with refuses("strategy", fragment="must be a strategy, such as SynchronousSGD()"):
        SynchronizedOptimizer(inner, strategy, None)


@pytest.mark.parametrize("transport", [None, PeerTransport, PeerTransport.of_process_group])
def test_what_reaches_nobody_is_no_transport(transport):
    inner = torch.optim.SGD(model_of().parameters(), lr=0.1)
    with refuses("transport", fragment="such as PeerTransport.of_process_group()"):
        SynchronizedOptimizer(inner, SynchronousSGD(), transport)


def test_what_is_no_optimizer_or_wraps_one_already_is_refused():
    with refuses("optimizer", fragment="must be of Optimizer"):
        SynchronizedOptimizer(model_of(), SynchronousSGD(), None)
    within = WrappingOptimizer(torch.optim.SGD(model_of().parameters(), lr=0.1))
    with refuses("optimizer", fragment="wraps another optimizer already"):
        SynchronizedOptimizer(within, SynchronousSGD(), None)


def test_an_optimizer_that_computes_the_loss_itself_is_refused():
    inner = torch.optim.LBFGS(model_of().parameters())
    with refuses("optimizer", "LBFGS", "whose step() needs a closure"):
        SynchronizedOptimizer(inner, SynchronousSGD(), None)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ThroughputPolicy(trial_after_steps=0), "trial_after_steps"),
        (lambda: ThroughputPolicy(trial_after_steps=2.5), "trial_after_steps"),
        (lambda: ThroughputPolicy(leave_below_ratio="0.4"), "leave_below_ratio"),
        (lambda: ThroughputPolicy(return_above_ratio=math.nan), "return_above_ratio"),
        (lambda: WorkerCountPolicy({1: "synchronous_sgd", 0.5: "pairwise_averaging"}), "strategies"),
        (lambda: WorkerCountPolicy([1, 2]), "strategies"),
        (lambda: SchedulePolicy([("10", "pairwise_averaging")]), "strategies"),
        (lambda: SchedulePolicy({0: "pairwise_averaging"}), "strategies"),
        (lambda: SchedulePolicy([0, 5]), "strategies"),
        (lambda: ModelAveraging("x"), "pull_ratio"),
        (lambda: ModelAveraging(1.5), "pull_ratio"),
    ],
)
def test_what_a_policy_goes_by_is_checked_when_it_is_made(make, field):
    with refuses(field):
        make()


@pytest.mark.parametrize(
    "policy",
    [
        SchedulePolicy([(100, "nonsense")]),
        WorkerCountPolicy({1: "synchronous_sgd", 8: "nonsense"}),
        ThroughputPolicy(asynchronous="nonsense"),
    ],
)
def test_a_strategy_that_a_policy_may_choose_has_to_be_given(policy):
    with refuses("strategy", "nonsense", "is none of those given: synchronous_sgd, pairwise_averaging"):
        made(policy=policy)


@pytest.mark.parametrize("rate", [math.nan, math.inf, None])
def test_a_learning_rate_that_is_no_finite_number_is_refused_with_its_step(rate):
    def main(rank, link):
        model = model_of()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = SynchronizedOptimizer(
            inner, SynchronousSGD(), link.transport("one", rank, 1), learning_rate=lambda step: rate if step == 1 else 0.1
        )
        train_step(model, optimizer, 0)
        with pytest.raises(InvalidInputError, match=r"learning_rate: returns .* for step 1; return a finite number for every step"):
            train_step(model, optimizer, 1)
        optimizer.close()

    crew(1, main)


@pytest.mark.parametrize("strategy", [SynchronousSGD, ModelAveraging, PairwiseAveraging])
@pytest.mark.parametrize("is_in_a_new_group", [False, True])
@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_a_parameter_that_comes_to_be_trained_later_is_refused_by_all_workers(strategy, is_in_a_new_group, ranks):
    """Also by those that have none themselves, where all step together."""

    def main(rank, link):
        model = model_of()
        model[0].requires_grad_(False)
        inner = torch.optim.SGD((model[2:] if is_in_a_new_group else model).parameters(), lr=0.1)
        optimizer = SynchronizedOptimizer(inner, strategy(), link.transport("both", rank, 2))
        train_step(model, optimizer, 0, rank, 2)
        if rank in ranks:
            model[0].requires_grad_(True)
            if is_in_a_new_group:
                optimizer.add_param_group({"params": list(model[0].parameters())})
        before = flat(model)
        if rank in ranks or strategy.is_synchronous:
            with refuses("optimizer", fragment="came to be trained after this optimizer was made"):
                train_step(model, optimizer, 1, rank, 2)
            assert torch.equal(flat(model), before)
        assert optimizer.num_steps == 1
        optimizer.close()

    crew(2, main)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", -1),
        ("rank", 2),
        ("rank", 0.0),
        ("num_workers", 0),
        ("num_workers", "2"),
        ("largest_bytes", 0),
        ("timeout_seconds", 0.0),
        ("timeout_seconds", math.nan),
        ("retry_seconds", -1.0),
    ],
)
def test_a_transport_of_numbers_that_make_no_sense_is_refused(field, value):
    with refuses(field):
        PeerTransport(lambda _: None, **{"rank": 0, "num_workers": 2, field: value})


@pytest.mark.parametrize("strategy", [ModelAveraging, PairwiseAveraging])
def test_a_flag_that_is_a_word_is_refused(strategy):
    with refuses("matches_synchronous"):
        strategy(matches_synchronous="false")


@pytest.mark.parametrize("seed", [0.5, "1", None])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with refuses("seed"):
        PairwiseAveraging(seed)
