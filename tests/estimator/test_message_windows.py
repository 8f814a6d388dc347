"""Receives are begun before they can be needed and no earlier, and sends are known to be over only once they are, in any course."""

from collections import defaultdict, deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.message_windows import Windows, most_held, windows
from estimator.program import RECEIVES, SENDS, Message, Program, compile_program
from estimator.schedule import ORDERS
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Schedule
from tests.builders import grid_plan
from tests.estimator.test_message_order import interleaved, rerouted
from tests.estimator.test_program import NUM_LAYERS, PROFILE, TIGHT, all_cluster, mended_plans, with_rounds


class Course:
    """Carries out all workers' lists, one action after the other, whoever's turn it is; sends never wait."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.windows = {worker: windows(actions, program.places[worker]) for worker, actions in program.actions.items()}
        self.place = dict.fromkeys(program.actions, 0)
        self.begun = {worker: {action.message for action in own.at_once} for worker, own in self.windows.items()}
        self.sent: set[Message] = set()
        self.taken: set[Message] = set()

    def can_go_on(self, worker: str) -> bool:
        place, actions = self.place[worker], self.program.actions[worker]
        return place < len(actions) and (actions[place].kind not in RECEIVES or actions[place].message in self.sent)

    def advance(self, worker: str) -> None:
        action, own = self.program.actions[worker][self.place[worker]], self.windows[worker]
        if action.kind in SENDS:
            self.begun[worker] |= {receive.message for receive in own.begun_with.get(action, ())}
            assert action.message in self.begun[action.peer], f"{action} of {worker} comes before its receive was begun"
            self.sent.add(action.message)
        elif action.kind in RECEIVES:
            self.taken.add(action.message)
            assert {send.message for send in own.over_with.get(action, ())} <= self.taken
        self.place[worker] += 1

    def run(self, turns: Sequence[int] = (), *, frozen: str = "") -> None:
        """As far as all can go but `frozen`; `turns` says who goes next where several can."""
        choices = deque(turns)
        while ready := [worker for worker in self.place if worker != frozen and self.can_go_on(worker)]:
            self.advance(ready[choices.popleft() % len(ready) if choices else 0])


@given(mended_plans(), st.booleans(), st.lists(st.integers(0, 99), max_size=150))
@settings(max_examples=200, deadline=None)
def test_every_receive_is_begun_in_time_and_every_end_is_one(plan, is_tight, turns):
    course = Course(compile_program(plan, TIGHT if is_tight else PROFILE, all_cluster(plan)))
    course.run(turns)
    assert course.place == {worker: len(actions) for worker, actions in course.program.actions.items()}
    assert all(
        {action.message for action in actions if action.kind in RECEIVES} == course.begun[worker]
        for worker, actions in course.program.actions.items()
    )


@given(mended_plans(), st.data())
@settings(max_examples=100, deadline=None)
def test_no_receive_is_begun_before_it_can_be_needed(plan, data):
    """However far the others go while this worker stands still before a send: nothing comes that begins with it."""
    program = compile_program(plan, PROFILE, all_cluster(plan))
    begun = [(worker, send) for worker, own in Course(program).windows.items() for send in own.begun_with]
    if not begun:
        return
    worker, send = data.draw(st.sampled_from(begun))
    course = Course(program)
    for _ in range(program.actions[worker].index(send)):
        while not course.can_go_on(worker):
            others = [other for other in course.place if other != worker and course.can_go_on(other)]
            course.advance(others[0])
        course.advance(worker)
    course.run(frozen=worker)
    assert not {receive.message for receive in course.windows[worker].begun_with[send]} & course.sent


@pytest.mark.parametrize("schedule", list(ORDERS))
def test_whole_grids_under_every_schedule(schedule):
    stages = 3 if schedule is Schedule.INTERLEAVED else 1
    plan = with_rounds(grid_plan(NUM_LAYERS, [2, 2, 2], [4, 4, 4], schedule=schedule, stages_per_worker=stages))
    Course(compile_program(plan, PROFILE, Cluster.uniform(6))).run()


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_under_1f1b_as_many_messages_have_buffers_whatever_a_step_has(depth):
    def held(count: int) -> dict[str, int]:
        program = compile_program(grid_plan(NUM_LAYERS, [depth], [count]), PROFILE, Cluster.uniform(depth))
        return {worker: most_held(actions, windows(actions, program.places[worker])) for worker, actions in program.actions.items()}

    few, many = held(3 * depth), held(12 * depth)
    assert few == many
    assert max(few.values()) <= 4 * depth


def test_messages_that_are_wanted_in_another_order_than_they_are_sent():
    plan = rerouted()
    Course(compile_program(plan, PROFILE, all_cluster(plan))).run()


def test_the_course_sees_a_receive_that_is_begun_too_late():
    course = Course(program := interleaved())
    late = defaultdict(tuple, dict.fromkeys(course.windows["w01"].begun_with, ()))
    course.windows["w01"] = Windows(at_once=(), begun_with=late, over_with={})
    course.begun["w01"] = set()
    with pytest.raises(AssertionError, match="before its receive was begun"):
        course.run()
    assert program.actions


def test_the_course_sees_an_end_that_is_none():
    course = Course(interleaved())
    own = course.windows["w00"]
    first = next(action for action in course.program.actions["w00"] if action.kind in RECEIVES)
    last = [action for action in course.program.actions["w00"] if action.kind in SENDS][-1]
    course.windows["w00"] = Windows(at_once=own.at_once, begun_with=own.begun_with, over_with={first: (last,)})
    with pytest.raises(AssertionError):
        course.run()
