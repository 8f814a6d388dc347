"""Orders of passes keep the five invariants, for every small pipeline, and are those of the golden files."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.schedule import (
    Hop,
    Journey,
    ListScheduler,
    Pass,
    Step,
    gpipe,
    limit,
    num_in_flight,
    one_forward_one_backward,
    order,
    parse,
)
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Schedule

GOLDEN = Path(__file__).parent / "golden"
KNOWN = (Schedule.ONE_F_ONE_B, Schedule.GPIPE)
SHAPES = [(stages, microbatches) for stages in range(1, 7) for microbatches in range(1, 9)]


@pytest.fixture(params=KNOWN, ids=lambda schedule: schedule.value, name="schedule")
def known_schedule(request) -> Schedule:
    return request.param


def orders(schedule: Schedule, num_stages: int, num_microbatches: int) -> list[tuple[Step, ...]]:
    return [order(schedule, stage, num_stages, num_microbatches) for stage in range(num_stages)]


def in_flight_peak(steps) -> int:
    held = peak = 0
    for step in steps:
        held += 1 if step.kind is Pass.FORWARD else -1
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("shape", SHAPES)
def test_every_microbatch_passes_once_each_way_and_forward_first(schedule, shape):
    for steps in orders(schedule, *shape):
        assert Counter(steps) == Counter(Step(kind, m) for kind in Pass for m in range(shape[1]))
        for m in range(shape[1]):
            assert steps.index(Step(Pass.FORWARD, m)) < steps.index(Step(Pass.BACKWARD, m))


@pytest.mark.parametrize("shape", SHAPES)
def test_microbatches_pass_in_order(schedule, shape):
    for steps in orders(schedule, *shape):
        forward = [step.microbatch for step in steps if step.kind is Pass.FORWARD]
        backward = [step.microbatch for step in steps if step.kind is Pass.BACKWARD]
        assert forward == sorted(forward)
        assert backward == sorted(backward, reverse=schedule is Schedule.GPIPE)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_stage_holds_more_than_its_limit(schedule, shape):
    num_stages, num_microbatches = shape
    for stage, steps in enumerate(orders(schedule, *shape)):
        most = limit(schedule, num_stages - stage)
        assert in_flight_peak(steps) == min(num_microbatches, num_microbatches if most is None else most)
    if schedule is Schedule.ONE_F_ONE_B:
        assert [num_in_flight(s, *shape) for s in range(num_stages)] == [
            min(num_stages - s, num_microbatches) for s in range(num_stages)
        ]


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
    return stage == num_stages - 1 or (Pass.BACKWARD, stage + 1, step.microbatch) in done


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.csv")), ids=lambda path: path.stem)
def test_golden_files(path):
    name, _, shape = path.stem.rpartition("_")
    num_stages, num_microbatches = map(int, shape.split("x"))
    rows = [line.split(",") for line in path.read_text().splitlines()]
    assert rows == [
        [step.text(stage) for step in steps] for stage, steps in enumerate(orders(Schedule(name), num_stages, num_microbatches))
    ]


def test_there_are_golden_files_of_every_known_schedule():
    assert {path.stem.rpartition("_")[0] for path in GOLDEN.glob("*.csv")} == {schedule.value for schedule in KNOWN}


@given(st.integers(0, 99), st.sampled_from(Pass), st.integers(0, 999))
def test_text_reads_back(stage, kind, microbatch):
    step = Step(kind, microbatch)
    assert parse(step.text(stage)) == (stage, step)


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F", "2F0 ", "-1F0", "2f0"])
def test_what_is_no_step_is_refused(text):
    with pytest.raises(InvalidInputError, match="step: is no step such as 2F0"):
        parse(text)


@pytest.mark.parametrize("schedule", [Schedule.AUTO, Schedule.ZB_H1, Schedule.INTERLEAVED])
def test_a_schedule_without_an_order_is_refused(schedule):
    with pytest.raises(InvalidInputError, match="schedule: is not available"):
        order(schedule, 0, 2, 2)


def journeys(num_stages: int, num_microbatches: int, forward: float, backward: float) -> list[Journey]:
    hops = tuple(Hop(f"w{s}", forward, backward, 0.0) for s in range(num_stages))
    return [Journey(microbatch=m, pipeline=0, turn=m, hops=hops) for m in range(num_microbatches)]


@pytest.mark.parametrize("is_limit_shared", [False, True])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_list_scheduling_an_untouched_pipeline_gives_1f1b(num_stages, num_microbatches, is_limit_shared):
    scheduler = ListScheduler(
        journeys(num_stages, num_microbatches, 1.0, 2.0), Schedule.ONE_F_ONE_B, is_limit_shared=is_limit_shared
    )
    for worker, passes in scheduler.run().items():
        expected = one_forward_one_backward(int(worker[1:]), num_stages, num_microbatches)
        assert [(item.kind, item.microbatch) for item in passes] == [(step.kind, step.microbatch) for step in expected]


@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_list_scheduling_without_limit_holds_what_comes(num_stages, num_microbatches):
    placed = ListScheduler(journeys(num_stages, num_microbatches, 1.0, 2.0), Schedule.GPIPE, is_limit_shared=False).run()
    assert all(len(passes) == 2 * num_microbatches for passes in placed.values())
    assert len(gpipe(0, num_stages, num_microbatches)) == 2 * num_microbatches


@st.composite
def crossing_journeys(draw):
    """Pipelines of different lengths whose stages stand on workers drawn at random, a worker in several of them."""
    names = [f"w{n}" for n in range(draw(st.integers(1, 5)))]
    result = []
    for pipeline in range(draw(st.integers(1, 3))):
        num_stages = draw(st.integers(1, 4))
        for turn in range(draw(st.integers(1, 4))):
            hops = tuple(
                Hop(
                    draw(st.sampled_from(names)),
                    draw(st.integers(0, 3)),
                    draw(st.integers(0, 3)),
                    draw(st.integers(0, 2)) if s + 1 < num_stages else 0.0,
                )
                for s in range(num_stages)
            )
            result.append(Journey(microbatch=len(result), pipeline=pipeline, turn=turn, hops=hops))
    return result


@given(crossing_journeys(), st.booleans())
def test_list_scheduling_crossing_ways_is_complete_and_keeps_limits(ways, is_limit_shared):
    placed = ListScheduler(ways, Schedule.ONE_F_ONE_B, is_limit_shared=is_limit_shared).run()
    way_of = {way.microbatch: way for way in ways}
    expected = Counter((hop.worker, kind, way.microbatch, s) for way in ways for s, hop in enumerate(way.hops) for kind in Pass)
    assert Counter((w, item.kind, item.microbatch, item.stage) for w, items in placed.items() for item in items) == expected
    for items in placed.values():
        held: Counter[tuple[int, int]] = Counter()
        for item in items:
            way = way_of[item.microbatch]
            stages_left = len(way.hops) - item.stage
            key = (stages_left, -1 if is_limit_shared else way.pipeline)
            held[key] += 1 if item.kind is Pass.FORWARD else -1
            assert held[key] <= stages_left
