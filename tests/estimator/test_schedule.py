"""Orders of passes keep the five invariants, for every small pipeline, and are those of the golden files."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.interleaved import worker_order
from estimator.schedule import (
    LAST_PASSES,
    ORDERS,
    Pass,
    Step,
    num_in_flight,
    order,
    parse,
    scheduled_in_flight,
)
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Schedule

GOLDEN = Path(__file__).parent / "golden"
KNOWN = (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2)
WHOLE = [Pass.FORWARD, Pass.BACKWARD]
SPLIT = [Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT]
SHAPES = [(stages, microbatches) for stages in range(1, 7) for microbatches in range(1, 9)]


@pytest.fixture(params=KNOWN, ids=lambda schedule: schedule.value, name="schedule")
def known_schedule(request) -> Schedule:
    return request.param


def orders(schedule: Schedule, num_stages: int, num_microbatches: int) -> list[tuple[Step, ...]]:
    return [order(schedule, stage, num_stages, num_microbatches) for stage in range(num_stages)]


def in_flight_peak(steps) -> int:
    held = peak = 0
    for step in steps:
        held += (step.kind is Pass.FORWARD) - (step.kind in LAST_PASSES)
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("shape", SHAPES)
def test_every_microbatch_passes_once_each_way_forward_first_and_the_weight_part_last(schedule, shape):
    for stage, steps in enumerate(orders(schedule, *shape)):
        expected = SPLIT if schedule in (Schedule.ZB_H1, Schedule.ZB_H2) and stage else WHOLE
        for m in range(shape[1]):
            assert [step.kind for step in steps if step.microbatch == m] == expected
        assert len(steps) == len(expected) * shape[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_microbatches_pass_in_order(schedule, shape):
    for steps in orders(schedule, *shape):
        for kind in Pass:
            passed = [step.microbatch for step in steps if step.kind is kind]
            assert passed == sorted(passed, reverse=schedule is Schedule.GPIPE and kind is Pass.BACKWARD)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_stage_holds_more_than_its_limit(schedule, shape):
    num_stages, num_microbatches = shape
    for stage, steps in enumerate(orders(schedule, *shape)):
        assert in_flight_peak(steps) == scheduled_in_flight(schedule, stage, *shape)
    most = {
        Schedule.ONE_F_ONE_B: [min(num_stages - s, num_microbatches) for s in range(num_stages)],
        Schedule.EAGER_1F1B: [min(2 * (num_stages - s) - 1, num_microbatches) for s in range(num_stages)],
        Schedule.GPIPE: [num_microbatches] * num_stages,
        Schedule.ZB_H1: [num_in_flight(0, *shape)] * num_stages,
        Schedule.ZB_H2: [min(2 * num_stages - 1, num_microbatches)] * num_stages,
    }
    assert [scheduled_in_flight(schedule, stage, *shape) for stage in range(num_stages)] == most[schedule]


@pytest.mark.parametrize("shape", SHAPES)
def test_all_stages_together_admit_an_execution(schedule, shape):
    lists = [list(steps) for steps in orders(schedule, *shape)]
    done: set[tuple[Pass, int, int]] = set()
    while any(lists):
        before = len(done)
        for stage, steps in enumerate(lists):
            while steps and is_ready(steps[0], stage, len(lists), done):
                done.add((steps[0].kind, stage, steps.pop(0).microbatch))
        assert len(done) > before, "deadlock"


def is_ready(step: Step, stage: int, num_stages: int, done: set[tuple[Pass, int, int]]) -> bool:
    if step.kind is Pass.FORWARD:
        return stage == 0 or (Pass.FORWARD, stage - 1, step.microbatch) in done
    if step.kind is Pass.BACKWARD_WEIGHT or stage == num_stages - 1:
        return True
    return any((kind, stage + 1, step.microbatch) in done for kind in (Pass.BACKWARD, Pass.BACKWARD_INPUT))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.csv")), ids=lambda path: path.stem)
def test_golden_files(path):
    name, _, shape = path.stem.rpartition("_")
    num_workers, num_microbatches, *virtual = map(int, shape.split("x"))
    num_stages = num_workers * math.prod(virtual)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    assert rows == [
        [step.text(stage) for stage, step in worker_order(Schedule(name), worker, num_workers, num_stages, num_microbatches)]
        for worker in range(num_workers)
    ]


def test_there_are_golden_files_of_every_known_schedule():
    assert {path.stem.rpartition("_")[0] for path in GOLDEN.glob("*.csv")} == {schedule.value for schedule in ORDERS}


def test_an_interleaved_pipeline_with_one_stage_per_worker_is_1f1b_or_zb_h1():
    assert orders(Schedule.INTERLEAVED, 4, 6) == orders(Schedule.ONE_F_ONE_B, 4, 6)
    assert orders(Schedule.INTERLEAVED_ZB, 4, 6) == orders(Schedule.ZB_H1, 4, 6)


@given(st.integers(0, 99), st.sampled_from(Pass), st.integers(0, 999))
def test_text_reads_back(stage, kind, microbatch):
    step = Step(kind, microbatch)
    assert parse(step.text(stage)) == (stage, step)


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F", "2F0 ", "-1F0", "2f0"])
def test_what_is_no_step_is_refused(text):
    with pytest.raises(InvalidInputError, match="step: is no step such as 2F0"):
        parse(text)


def test_a_schedule_without_an_order_is_refused():
    with pytest.raises(InvalidInputError, match="schedule: is not available"):
        order(Schedule.AUTO, 0, 2, 2)
