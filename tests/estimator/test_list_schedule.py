"""List-scheduled orders are complete and keep their limits, and are 1F1B where nothing is rerouted."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.list_schedule import Budget, Hop, Journey, ListScheduler
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
                    draw(st.integers(0, 7)),
                )
                for s in range(num_stages)
            )
            result.append(Journey(pipeline=pipeline, hops=hops, microbatches=[len(result)], turns=[turn]))
    return result


BUDGETS = st.one_of(
    st.none(),
    st.builds(Budget, st.integers(3, 16), st.integers(-3, 5), st.integers(-3, 5)).map(
        lambda own: dict.fromkeys((f"w{n}" for n in range(5)), own)
    ),
)


@given(crossing_journeys(), st.booleans(), st.booleans(), BUDGETS)
@settings(max_examples=300, deadline=None)
def test_list_scheduling_crossing_ways_is_complete_and_keeps_limits(ways, is_limit_shared, is_split, budgets):
    scheduler = ListScheduler(ways, Schedule.ONE_F_ONE_B, is_limit_shared=is_limit_shared, budgets=budgets)
    placed = scheduler.run(is_split=is_split)
    found = defaultdict(list)
    for worker, own in placed.items():
        for item in own.passes:
            found[worker, item.microbatch, item.stage].append(item.kind)
    assert set(found) == {(hop.worker, way.microbatches[0], s) for way in ways for s, hop in enumerate(way.hops)}
    for (_, _, stage), kinds in found.items():
        assert kinds in ([SPLIT] if is_split and stage and budgets is None else [SPLIT, WHOLE] if is_split and stage else [WHOLE])
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
    scheduler = ListScheduler(ways, Schedule.ONE_F_ONE_B, is_limit_shared=False, budgets=budgets)
    for own in scheduler.run(is_split=is_split).values():
        held = num_bytes = most = most_bytes = 0
        seconds, (_, *excesses) = 0.0, next(iter((budgets or {"": Budget(0)}).values()))
        excess_of = dict(zip((Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT), excesses, strict=True))
        for item in own.passes:
            hop = way_of[item.microbatch].hops[item.stage]
            if item.kind is Pass.FORWARD:
                held, num_bytes = held + 1, num_bytes + hop.activation_bytes
            most, most_bytes = max(most, held), max(most_bytes, num_bytes + excess_of.get(item.kind, 0))
            held -= item.kind in LAST_PASSES
            num_bytes += kept_after(item.kind, hop)
            seconds += {
                Pass.FORWARD: hop.forward_seconds,
                Pass.BACKWARD: hop.backward_input_seconds + hop.backward_weight_seconds,
                Pass.BACKWARD_INPUT: hop.backward_input_seconds,
                Pass.BACKWARD_WEIGHT: hop.backward_weight_seconds,
            }[item.kind]
        assert (own.num_in_flight, own.activation_bytes, own.busy_seconds) == (most, most_bytes, seconds)
        assert own.end_seconds >= seconds


def kept_after(kind: Pass, hop: Hop) -> int:
    """By how much a pass changes what is kept, once it is through."""
    if kind is Pass.FORWARD:
        return 0
    if kind is Pass.BACKWARD_WEIGHT:
        return -hop.deferred_bytes
    return hop.deferred_bytes * (kind is Pass.BACKWARD_INPUT) - hop.activation_bytes


@given(crossing_journeys(), st.integers(5, 12), st.integers(-2, 3), st.integers(-2, 3))
@settings(deadline=None)
def test_weight_parts_are_not_put_off_beyond_the_memory(ways, budget, input_excess, weight_excess):
    """Where one waits there is room for it; a forward pass that takes a worker over its budget finds none there."""
    way_of = {way.microbatches[0]: way for way in ways}
    budgets = dict.fromkeys((f"w{n}" for n in range(5)), Budget(budget, input_excess, weight_excess))
    scheduler = ListScheduler(ways, Schedule.ONE_F_ONE_B, is_limit_shared=False, budgets=budgets)
    for own in scheduler.run(is_split=True).values():
        num_bytes = waiting = 0
        for item in own.passes:
            hop = way_of[item.microbatch].hops[item.stage]
            if item.kind is Pass.FORWARD:
                num_bytes += hop.activation_bytes
            assert num_bytes <= budget or waiting == 0
            assert num_bytes + input_excess <= budget or item.kind is not Pass.BACKWARD_INPUT
            num_bytes += kept_after(item.kind, hop)
            waiting += (item.kind is Pass.BACKWARD_INPUT) - (item.kind is Pass.BACKWARD_WEIGHT)
            assert num_bytes + max(weight_excess, 0) <= budget or waiting == 0


@pytest.mark.parametrize(("num_bytes", "kinds"), [(7, WHOLE), (8, SPLIT)])
def test_without_room_to_put_weight_parts_off_passes_are_whole(num_bytes, kinds):
    """The last worker holds one micro-batch; what waits for a weight part is twice its activations."""
    hops = tuple(Hop(f"w{s}", 1.0, 1.0, 1.0, 0.0, activation_bytes=4, deferred_bytes=8) for s in range(2))
    ways = [Journey(pipeline=0, hops=hops, microbatches=range(4), turns=range(4))]
    scheduler = ListScheduler(ways, Schedule.ONE_F_ONE_B, is_limit_shared=False, budgets={"w1": Budget(num_bytes)})
    own = scheduler.run(is_split=True)["w1"]
    assert {item.kind for item in own.passes} == set(kinds)
    assert own.activation_bytes <= num_bytes


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
