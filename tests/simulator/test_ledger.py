"""Accounts of steps and checkpoints."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.simulator.ledger import Account, Ledger
from kintsugi.simulator.running import Running, StepPrice
from tests.builders import grid_plan

PLAN = grid_plan(4, [2], [5])


def running(interval=None, **price):
    parts = {"compute_seconds": 1.0, "bubble_seconds": 0.5, "reduction_seconds": 0.5, **price}
    return Running(plan=PLAN, price=StepPrice(**parts), checkpoint_interval_seconds=interval)


def test_only_complete_steps_count():
    ledger = Ledger()
    assert ledger.train(running(), 7.0, 0.0) == pytest.approx(1.0)
    assert (ledger.num_steps, ledger.num_microbatches) == (3, 15)
    assert ledger.seconds[Account.COMPUTE] == pytest.approx(3.0)
    assert ledger.seconds[Account.REDUCTION] == pytest.approx(1.5)


def test_ends_of_steps_are_met_in_spite_of_rounding():
    ledger = Ledger()
    ledger.train(running(compute_seconds=0.1, bubble_seconds=0.1, reduction_seconds=0.1), 0.3 * 7, 0.0)
    assert ledger.num_steps == 7


@given(now=st.floats(0.0, 1e10), length=st.floats(1e-6, 1e4), is_checkpoint=st.booleans())
def test_what_ends_by_the_clock_is_over_and_nothing_is_left(now, length, is_checkpoint):
    ledger, what = Ledger(), running(interval=1.0, compute_seconds=length, bubble_seconds=0.0, reduction_seconds=0.0)
    if is_checkpoint:
        ledger.train(running(interval=1.0), 2.0, length)
        what = running(interval=1.0)
    at, count = now + length, ledger.num_steps
    assert ledger.train(what, at - now, length, 4 * math.ulp(at)) == 0.0
    assert ledger.seconds[Account.CHECKPOINT] == (length if is_checkpoint else 0.0)
    assert is_checkpoint or ledger.num_steps > count


def test_a_checkpoint_counts_when_it_is_complete():
    ledger = Ledger()
    assert ledger.train(running(interval=4.0), 6.0, 3.0) == pytest.approx(2.0)  # two steps, then 2 s of a checkpoint of 3 s
    assert ledger.seconds[Account.CHECKPOINT] == 0
    assert ledger.next_end(running(interval=4.0), 3.0) == 3.0
    assert ledger.train(running(interval=4.0), 3.5, 3.0) == pytest.approx(0.5)
    assert ledger.seconds[Account.CHECKPOINT] == 3.0
    ledger.roll_back()
    assert ledger.num_steps == 2


def test_an_interval_shorter_than_a_step_is_a_checkpoint_after_every_step():
    ledger = Ledger()
    ledger.train(running(interval=0.5), 9.0, 1.0)
    assert ledger.num_steps == 3
    assert ledger.seconds[Account.CHECKPOINT] == 3.0


@pytest.mark.parametrize("seconds", [0.0, 6.9, 7.1, 21.5, 27.5, 1e4, 1e4 + 6.5])
def test_many_periods_at_once_are_as_many_one_by_one(seconds):
    """Two steps of 2 s and a checkpoint of 3 s: a long stretch, and the same in short ones."""
    at_once, bit_by_bit, left = Ledger(), Ledger(), 0.0
    rest = at_once.train(running(interval=4.0), seconds, 3.0)
    for part in (0.3 * seconds, 0.4 * seconds, 0.3 * seconds):
        left = bit_by_bit.train(running(interval=4.0), left + part, 3.0)
    assert (at_once.num_steps, at_once.steps_since) == (bit_by_bit.num_steps, bit_by_bit.steps_since)
    assert at_once.shares() == pytest.approx(bit_by_bit.shares())
    assert rest == pytest.approx(left)


def test_the_longest_time_takes_no_longer_than_others():
    ledger = Ledger()
    assert ledger.train(running(interval=1e-12), 1e18, 0.0) < 1e3
    assert ledger.num_steps == pytest.approx(5e17)


def test_a_rollback_moves_time_and_takes_samples_back():
    ledger = Ledger()
    ledger.train(running(interval=4.0), 4.0 + 1.0 + 2.0, 1.0)
    ledger.roll_back()
    assert (ledger.num_steps, ledger.num_lost_steps, ledger.num_microbatches) == (2, 1, 10)
    assert ledger.seconds[Account.LOST] == pytest.approx(2.0)
    assert ledger.seconds[Account.COMPUTE] == pytest.approx(2.0)
    assert sum(ledger.seconds.values()) == pytest.approx(7.0)


def test_what_is_done_of_a_step_stays_done_and_the_rest_has_the_new_price():
    ledger, fast = Ledger(), running()
    slow = running(compute_seconds=2.0, bubble_seconds=1.0, reduction_seconds=3.0)
    ledger.reprice(fast, slow, 0.5)
    # A quarter of 2 s is done; three quarters of 6 s are left.
    assert ledger.next_end(slow, 0.0) == pytest.approx(0.5 + 4.5)
    assert ledger.train(slow, 2.0, 0.0) == 2.0
    ledger.reprice(slow, fast, 2.0)
    # A quarter more is done, 1.5 s of 6 s; half of 2 s is left.
    assert ledger.next_end(fast, 0.0) == pytest.approx(2.0 + 1.0)
    assert ledger.train(fast, 6.0, 0.0) == pytest.approx(1.0)
    assert ledger.num_steps == 2
    parts = {Account.COMPUTE: 0.25 + 0.5 + 0.5, Account.BUBBLE: 0.125 + 0.25 + 0.25, Account.REDUCTION: 0.125 + 0.75 + 0.25}
    for account, seconds in parts.items():
        assert ledger.seconds[account] == pytest.approx(seconds + {Account.COMPUTE: 1.0}.get(account, 0.5))
    assert sum(ledger.seconds.values()) == pytest.approx(3.0 + 2.0)


def test_another_price_changes_nothing_about_the_checkpoint_under_way():
    ledger, slow = Ledger(), running(interval=4.0, compute_seconds=11.0)
    assert ledger.train(running(interval=4.0), 5.0, 3.0) == pytest.approx(1.0)  # two steps, then 1 s of a checkpoint of 3 s
    ledger.reprice(running(interval=4.0), slow, 1.0)
    assert ledger.next_end(slow, 3.0) == 3.0


def test_a_step_under_way_ends_before_a_checkpoint_that_is_due_sooner_now():
    ledger, sooner = Ledger(), running(interval=2.0)
    assert ledger.train(running(interval=10.0), 5.0, 3.0) == pytest.approx(1.0)
    ledger.reprice(running(interval=10.0), sooner, 1.0)
    assert ledger.next_end(sooner, 3.0) == 2.0
    assert ledger.train(sooner, 2.0 + 3.0, 3.0) == pytest.approx(0.0)
    assert (ledger.num_steps, ledger.seconds[Account.CHECKPOINT]) == (3, 3.0)


def test_a_longer_step_has_longer_bubbles_and_a_shorter_one_first_shorter_bubbles_then_reductions():
    price = StepPrice(compute_seconds=1.0, bubble_seconds=0.5, reduction_seconds=0.5)
    assert price.lasting(2.3).bubble_seconds == pytest.approx(0.8)
    short = price.lasting(1.2)
    assert (short.bubble_seconds, short.reduction_seconds) == (0.0, pytest.approx(0.2))
    assert short.iteration_seconds == pytest.approx(1.2)
