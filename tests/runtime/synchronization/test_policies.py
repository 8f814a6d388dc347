"""Policies choose by what was seen, and say why."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.synchronization.policies import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    Observation,
    SchedulePolicy,
    ThroughputPolicy,
    WorkerCountPolicy,
)


def seen(**changes) -> Observation:
    base = Observation(
        strategy=SYNCHRONOUS,
        num_workers=4,
        num_steps=100,
        steps_since_change=50,
        step_seconds=0.1,
        throughput_ratio=0.9,
        is_settled=True,
    )
    return dataclasses.replace(base, **changes)


def test_the_number_of_workers_chooses():
    policy = WorkerCountPolicy({1: SYNCHRONOUS, 6: "model_averaging", 12: ASYNCHRONOUS})
    assert policy.choose(seen(num_workers=5)) is None
    choice = policy.choose(seen(num_workers=7))
    assert choice.strategy == "model_averaging"
    assert choice.reason == "7 workers, and model_averaging is meant for 6 and more"
    assert policy.choose(seen(num_workers=12)).strategy == ASYNCHRONOUS
    assert policy.choose(seen(num_workers=2, strategy=ASYNCHRONOUS)).strategy == SYNCHRONOUS
    with pytest.raises(InvalidInputError, match="1 worker and more"):
        WorkerCountPolicy({2: SYNCHRONOUS})


def test_the_step_chooses():
    policy = SchedulePolicy([(0, SYNCHRONOUS), (100, ASYNCHRONOUS), (200, SYNCHRONOUS)])
    assert policy.choose(seen(num_steps=99)) is None
    choice = policy.choose(seen(num_steps=103))
    assert choice.strategy == ASYNCHRONOUS
    assert choice.reason == "step 103 is reached, and pairwise_averaging is scheduled from step 100 on"
    assert policy.choose(seen(num_steps=150, strategy=ASYNCHRONOUS)) is None
    assert policy.choose(seen(num_steps=200, strategy=ASYNCHRONOUS)).strategy == SYNCHRONOUS
    assert SchedulePolicy([(10, ASYNCHRONOUS)]).choose(seen(num_steps=9)) is None
    with pytest.raises(InvalidInputError, match="ascend"):
        SchedulePolicy([(5, SYNCHRONOUS), (5, ASYNCHRONOUS)])


def test_synchronising_is_given_up_where_it_leaves_too_little():
    policy = ThroughputPolicy()
    assert policy.choose(seen(throughput_ratio=0.4)) is None
    assert policy.choose(seen(throughput_ratio=0.2, is_settled=False)) is None, "too few steps in view"
    assert policy.choose(seen(throughput_ratio=0.2, num_workers=1)) is None, "nobody to wait for"
    choice = policy.choose(seen(throughput_ratio=0.37, num_workers=13))
    assert choice.strategy == ASYNCHRONOUS
    assert choice.reason == "13 workers have 37.0% of the throughput that they would have alone, below 40.0%"


def test_it_is_tried_again_once_workers_left_and_stays_only_above_the_higher_ratio():
    policy = ThroughputPolicy()
    policy.choose(seen(throughput_ratio=0.3, num_workers=8))
    assert policy.choose(seen(strategy=ASYNCHRONOUS, num_workers=8)) is None
    assert policy.choose(seen(strategy=ASYNCHRONOUS, num_workers=9)) is None
    trial = policy.choose(seen(strategy=ASYNCHRONOUS, num_workers=6))
    assert trial.strategy == SYNCHRONOUS
    assert trial.reason == "6 workers are left of the 8 for which it was too slow: synchronous_sgd is tried again"
    refused = policy.choose(seen(throughput_ratio=0.5, num_workers=6))
    assert refused.strategy == ASYNCHRONOUS, "0.5 is between the two ratios"
    assert "below 60.0%, which a trial must reach" in refused.reason
    assert policy.choose(seen(strategy=ASYNCHRONOUS, num_workers=6)) is None
    assert policy.choose(seen(strategy=ASYNCHRONOUS, num_workers=3)).strategy == SYNCHRONOUS
    assert policy.choose(seen(throughput_ratio=0.7, num_workers=3)) is None
    assert policy.choose(seen(throughput_ratio=0.5, num_workers=3)) is None, "no trial any more"


def test_trials_by_time_wait_twice_as_long_each_time():
    policy = ThroughputPolicy(trial_after_steps=100)
    moments, steps = [], 0
    policy.choose(seen(throughput_ratio=0.1))
    for _ in range(800):
        steps += 1
        if policy.choose(seen(strategy=ASYNCHRONOUS, steps_since_change=steps)) is not None:
            moments.append(steps)
            policy.choose(seen(throughput_ratio=0.1))
            steps = 0
    assert moments == [100, 200, 400]


@pytest.mark.parametrize("ratios", [(0.7, 0.6), (-0.1, 0.5), (0.5, 1.1)])
def test_ratios_out_of_order_are_refused(ratios):
    with pytest.raises(InvalidInputError, match="leave_below_ratio"):
        ThroughputPolicy(leave_below_ratio=ratios[0], return_above_ratio=ratios[1])


@given(
    st.lists(
        st.builds(
            seen,
            num_workers=st.integers(1, 9),
            throughput_ratio=st.floats(0, 1),
            steps_since_change=st.integers(0, 900),
            is_settled=st.booleans(),
        ),
        max_size=30,
    )
)
def test_all_workers_choose_alike_also_those_that_joined(observations):
    """A copy that takes over the memory in the middle goes on as the others do; choices follow each other by turns."""
    policy, late = ThroughputPolicy(trial_after_steps=100), ThroughputPolicy(trial_after_steps=100)
    strategy = SYNCHRONOUS
    for index, observation in enumerate(observations):
        if index == len(observations) // 2:
            late.memory.update(policy.memory)
        current = dataclasses.replace(observation, strategy=strategy)
        choice = policy.choose(current)
        if index >= len(observations) // 2:
            assert late.choose(current) == choice
        if choice is not None:
            assert choice.strategy != strategy
            assert choice.reason
            strategy = choice.strategy
