"""A step commits on all survivors or on none, over every combination that the commit point allows, and some it excludes."""

import itertools
from dataclasses import replace

import pytest
import torch

from kintsugi.core.errors import ReconfigurationError
from kintsugi.runtime.workers.commit import CommitRecord, CommitVector, StepStatus, require_each_once, resolve

STEP = 5


def record(step: int) -> CommitRecord:
    return CommitRecord(step=step, squared_norm=1.0 + step, loss=2.0 + step)


BEFORE = record(STEP - 1)
NOW = record(STEP)
IN_STEP = StepStatus(step=STEP, last_record=BEFORE)
FIRST_STEP_OF_A_PLAN = StepStatus(step=STEP)
REDUCED = StepStatus(step=STEP, is_reduced=True, last_record=BEFORE)
PASSED = StepStatus(step=STEP, is_reduced=True, last_record=NOW)
APPLIED = StepStatus(step=STEP + 1, last_record=NOW)
IN_NEXT_STEP = StepStatus(step=STEP + 1, last_record=NOW)
STATUSES = (IN_STEP, FIRST_STEP_OF_A_PLAN, REDUCED, PASSED, APPLIED, IN_NEXT_STEP)
COMBINATIONS = [c for size in range(1, 5) for c in itertools.combinations_with_replacement(STATUSES, size)]


def knows(status: StepStatus) -> bool:
    return status.last_record == NOW


def is_possible(combination: tuple[StepStatus, ...]) -> bool:
    """Someone past the commit point means that everyone had complete gradients."""
    return not any(map(knows, combination)) or all(status.is_reduced or knows(status) for status in combination)


@pytest.mark.parametrize("combination", [c for c in COMBINATIONS if is_possible(c)])
def test_the_step_is_rolled_forward_exactly_where_someone_passed_and_someone_has_not_applied(combination):
    for order in set(itertools.permutations(combination)):
        settled = resolve(order)
        has_laggard = any(status.step == STEP for status in order)
        assert settled == (NOW if any(map(knows, order)) and has_laggard else None)
        ends = {settled.step + 1 if settled and status.step == settled.step else status.step for status in order}
        assert len(ends) == 1, "all survivors go on from one step"
        assert ends == ({STEP + 1} if any(map(knows, order)) else {STEP})


@pytest.mark.parametrize("combination", [c for c in COMBINATIONS if not is_possible(c)])
def test_what_the_commit_point_excludes_is_refused(combination):
    with pytest.raises(ReconfigurationError, match="step 5 is committed, and a survivor at step 5 lacks its gradients"):
        resolve(combination)


def test_a_survivor_two_steps_behind_is_refused():
    with pytest.raises(ReconfigurationError, match="survivor at step 3"):
        resolve([StepStatus(step=3, is_reduced=True), APPLIED])


def test_without_survivors_nothing_is_committed():
    assert resolve([]) is None


def test_nothing_is_rolled_forward_without_a_record():
    for size in range(1, 5):
        for combination in itertools.product((IN_STEP, FIRST_STEP_OF_A_PLAN, REDUCED), repeat=size):
            assert resolve(combination) is None


@pytest.mark.parametrize(
    ("counts", "told"), [((1, 0, 1), "1 of step 5 was trained 0 times"), ((1, 1, 2), "2 of step 5 was trained 2")]
)
def test_a_step_without_a_microbatch_or_with_one_twice_is_refused(counts, told):
    require_each_once(replace(NOW, microbatches=(1, 1, 1)))
    with pytest.raises(ReconfigurationError, match=told):
        require_each_once(replace(NOW, microbatches=counts))


@pytest.mark.parametrize("num_opinions", [0, 3])
@pytest.mark.parametrize("num_microbatches", [1, 4])
def test_what_is_summed_is_told_apart_again(num_microbatches, num_opinions):
    sizes = {
        "squared_norm": (),
        "asks_for_checkpoint": (),
        "loss": (2,),
        "trained": (num_microbatches,),
        "opinion": (num_opinions,),
    }
    numbers = itertools.count(1)
    parts = {name: torch.zeros(size, dtype=torch.float64).apply_(lambda _: next(numbers)) for name, size in sizes.items()}
    total = CommitVector.unpacked(2 * CommitVector(**parts).packed(), num_microbatches)
    for name, part in parts.items():
        assert torch.equal(getattr(total, name), 2 * part)
