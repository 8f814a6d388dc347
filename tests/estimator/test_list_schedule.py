"""List-scheduled orders are complete and keep their limits, and are 1F1B where nothing is rerouted."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.list_schedule import Hop, Journey, ListScheduler
from estimator.schedule import LAST_PASSES, Pass, one_forward_one_backward
from kintsugi.core.plan import Schedule

SHAPES = [(stages, microbatches) for stages in range(1, 7) for microbatches in range(1, 9)]
WHOLE = [Pass.FORWARD, Pass.BACKWARD]
SPLIT = [Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT]


def journeys(num_stages: int, num_microbatches: int, forward: float, backward: float) -> list[Journey]:
    hops = tuple(Hop(f"w{s}", forward, backward / 2, backward / 2, 0.0) for s in range(num_stages))
    return [Journey(pipeline=0, hops=hops, microbatches=range(num_microbatches), turns=range(num_microbatches))]


@pytest.mark.parametrize("is_limit_shared", [False, True])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_list_scheduling_an_untouched_pipeline_gives_1f1b(num_stages, num_microbatches, is_limit_shared):
    scheduler = ListScheduler(
        journeys(num_stages, num_microbatches, 1.0, 2.0), Schedule.ONE_F_ONE_B, is_limit_shared=is_limit_shared
    )
    for worker, own in scheduler.run().items():
        expected = one_forward_one_backward(int(worker[1:]), num_stages, num_microbatches)
        assert [(item.kind, item.microbatch) for item in own.passes] == [(step.kind, step.microbatch) for step in expected]


@pytest.mark.parametrize(("num_stages", "num_microbatches"), SHAPES)
def test_list_scheduling_without_limit_holds_what_comes(num_stages, num_microbatches):
    placed = ListScheduler(journeys(num_stages, num_microbatches, 1.0, 2.0), Schedule.GPIPE, is_limit_shared=False).run()
    assert all(len(own.passes) == 2 * num_microbatches for own in placed.values())


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
                    draw(st.integers(0, 3)),
                    draw(st.integers(0, 2)) if s + 1 < num_stages else 0.0,
                    draw(st.integers(0, 5)),
                )
                for s in range(num_stages)
            )
            result.append(Journey(pipeline=pipeline, hops=hops, microbatches=[len(result)], turns=[turn]))
    return result


BUDGETS = st.sampled_from([None, dict.fromkeys((f"w{n}" for n in range(5)), 8)])


@given(crossing_journeys(), st.booleans(), st.booleans(), BUDGETS)
@settings(max_examples=300, deadline=None)
def test_list_scheduling_crossing_ways_is_complete_and_keeps_limits(ways, is_limit_shared, is_split, budgets):
    scheduler = ListScheduler(ways, Schedule.ONE_F_ONE_B, is_limit_shared=is_limit_shared, budget_bytes=budgets)
    placed = scheduler.run(is_split=is_split)
    found = defaultdict(list)
    for worker, own in placed.items():
        for item in own.passes:
            found[worker, item.microbatch, item.stage].append(item.kind)
    assert set(found) == {(hop.worker, way.microbatches[0], s) for way in ways for s, hop in enumerate(way.hops)}
    for (_, _, stage), kinds in found.items():
        assert kinds == (SPLIT if is_split and stage else WHOLE)
    way_of = {way.microbatches[0]: way for way in ways}
    for own in placed.values():
        held: Counter[tuple[int, int]] = Counter()
        for item in own.passes:
            way = way_of[item.microbatch]
            stages_left = len(way.hops) - item.stage
            key = (stages_left, -1 if is_limit_shared else way.pipeline)
            if item.kind is not Pass.BACKWARD_WEIGHT:
                held[key] += 1 if item.kind is Pass.FORWARD else -1
            assert held[key] <= stages_left


@given(crossing_journeys(), st.booleans(), BUDGETS)
@settings(deadline=None)
def test_what_a_schedule_says_of_itself_is_read_off_its_passes(ways, is_split, budgets):
    way_of = {way.microbatches[0]: way for way in ways}
    scheduler = ListScheduler(ways, Schedule.ONE_F_ONE_B, is_limit_shared=False, budget_bytes=budgets)
    for own in scheduler.run(is_split=is_split).values():
        held = num_bytes = most = most_bytes = 0
        seconds = 0.0
        for item in own.passes:
            hop = way_of[item.microbatch].hops[item.stage]
            if item.kind is Pass.FORWARD:
                held, num_bytes = held + 1, num_bytes + hop.activation_bytes
            elif item.kind in LAST_PASSES:
                held, num_bytes = held - 1, num_bytes - hop.activation_bytes
            most, most_bytes = max(most, held), max(most_bytes, num_bytes)
            seconds += {
                Pass.FORWARD: hop.forward_seconds,
                Pass.BACKWARD: hop.backward_input_seconds + hop.backward_weight_seconds,
                Pass.BACKWARD_INPUT: hop.backward_input_seconds,
                Pass.BACKWARD_WEIGHT: hop.backward_weight_seconds,
            }[item.kind]
        assert (own.num_in_flight, own.activation_bytes, own.busy_seconds) == (most, most_bytes, seconds)
        assert own.end_seconds >= seconds


@given(crossing_journeys(), st.integers(5, 12))
@settings(deadline=None)
def test_weight_parts_are_not_put_off_beyond_the_memory(ways, budget):
    """A forward pass that takes a worker over its budget finds no weight part waiting there."""
    way_of = {way.microbatches[0]: way for way in ways}
    budgets = dict.fromkeys((f"w{n}" for n in range(5)), budget)
    scheduler = ListScheduler(ways, Schedule.ONE_F_ONE_B, is_limit_shared=False, budget_bytes=budgets)
    for own in scheduler.run(is_split=True).values():
        num_bytes = waiting = 0
        for item in own.passes:
            hop = way_of[item.microbatch].hops[item.stage]
            waiting += (item.kind is Pass.BACKWARD_INPUT) - (item.kind is Pass.BACKWARD_WEIGHT)
            if item.kind is Pass.FORWARD:
                num_bytes += hop.activation_bytes
                assert num_bytes <= budget or waiting == 0
            elif item.kind in LAST_PASSES:
                num_bytes -= hop.activation_bytes


def test_equal_ways_give_equal_schedules():
    ways = journeys(3, 7, 1.0, 2.0)
    runs = [ListScheduler(ways, Schedule.ONE_F_ONE_B, is_limit_shared=False).run(is_split=True) for _ in range(2)]
    assert {w: (own.passes, own.end_seconds) for w, own in runs[0].items()} == {
        w: (own.passes, own.end_seconds) for w, own in runs[1].items()
    }


def test_weight_parts_fill_the_time_that_is_spent_waiting():
    """Nobody waits for a weight part, so a pipeline alone gains what lies between its stages."""
    whole, split = (
        ListScheduler(journeys(4, 8, 1.0, 2.0), Schedule.ONE_F_ONE_B, is_limit_shared=False).run(is_split=is_split)
        for is_split in (False, True)
    )
    assert max(own.end_seconds for own in whole.values()) == 33.0
    assert max(own.end_seconds for own in split.values()) < 33.0
