"""One worker between its ring and its training, message by message."""

from dataclasses import dataclass, field, replace

import pytest

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.messages import CallOff, Go, Prepare, Ready, ToWorker
from kintsugi.runtime.ring.messages import Joiner
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.notes import Newcomer, Note
from kintsugi.runtime.selfgoverned.steering import Steering
from kintsugi.runtime.selfgoverned.words import Adopted
from tests.runtime.selfgoverned.courses import agreement_of, course_of, record_of, with_plan

SURVIVORS = ("w00", "w02", "w03")


@dataclass
class Scene:
    """A worker's surroundings, which only write down what it does."""

    told: list[ToWorker] = field(default_factory=list)
    reported: list[Adopted] = field(default_factory=list)
    committed: list[tuple[int, int, Note]] = field(default_factory=list)
    meetings: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    is_stopped: bool = False

    def commit(self, generation: int, step: int, note: str = "") -> bool:
        if not self.is_stopped:
            self.committed.append((generation, step, Note.parsed(note)))
        return not self.is_stopped

    def join(self, attempt: int, members: tuple[str, ...], served_by: tuple[str, int]) -> None:
        self.meetings.append((attempt, members))

    def ready(self, attempt: int) -> None:
        self.meetings.append((attempt, ()))

    def steering(self, worker: str = "w00") -> Steering:
        course = course_of()
        switchboards = dict.fromkeys(course.membership.alive, ("127.0.0.1", 1))
        return Steering(
            worker=worker,
            ring=self,
            meeting=self,
            tell=self.told.append,
            report=self.reported.append,
            switchboards=switchboards,
            course=course,
        )


def trained_to(course: Course, step: int, *, applied: int | None = None) -> Course:
    """The generation after a loss."""
    members = tuple(worker for worker in SURVIVORS if worker in course.membership.alive)
    members = members if course.generation == 0 else members[:-1]
    return course.after(with_plan(course, agreement_of(course, members, dict.fromkeys(members, step), applied=applied)))


def under_way(scene: Scene) -> Steering:
    """Trains under the first generation."""
    steering = scene.steering()
    steering.begin()
    steering.ready(Ready(1, 0.0, 0.0))
    steering.all_ready(1)
    return steering


def test_a_worker_begins_when_all_are_ready():
    scene = Scene()
    under_way(scene)
    prepare, go = scene.told
    assert isinstance(prepare, Prepare)
    assert (prepare.is_initial, prepare.start_step) == (True, 0)
    assert go == Go(1)
    assert scene.committed == [(0, -1, Note(0, None))]
    assert [attempt for attempt, _ in scene.meetings] == [1, 1]


def test_a_loss_leads_to_the_next_plan():
    scene = Scene()
    steering = under_way(scene)
    steering.permit(record_of(0))
    steering.unsettled(0)
    steering.agreed(trained_to(steering.course, 4))
    called_off, prepare = scene.told[2:]
    assert called_off == CallOff(2)
    assert isinstance(prepare, Prepare)
    assert (prepare.attempt, prepare.start_step, prepare.record) == (2, 5, record_of(4))
    assert prepare.members == SURVIVORS
    assert [adopted.course.generation for adopted in scene.reported] == [0, 1]


def test_only_the_one_that_serves_reports():
    scene = Scene()
    steering = scene.steering("w02")
    steering.begin()
    assert scene.reported == []


def test_where_one_joined_all_report():
    """It cannot begin before somebody does, and the one that serves may be lost."""
    scene = Scene()
    steering = scene.steering("w02")
    steering.begin()
    course = steering.course
    joiner = Joiner("w09", ("127.0.0.1", 5), Newcomer(None, ("127.0.0.1", 6)).text())
    agreement = agreement_of(course, (*course.membership.alive, "w09"), dict.fromkeys(course.membership.alive, 2))
    steering.agreed(course.after(with_plan(course, replace(agreement, joined=(joiner,)))))
    assert [adopted.course.generation for adopted in scene.reported] == [1]


def test_a_step_that_the_others_go_on_without_is_not_applied():
    scene = Scene()
    steering = under_way(scene)
    scene.is_stopped = True
    with pytest.raises(CommunicationError):
        steering.permit(record_of(0))


def test_nobody_swaps_while_the_ring_reconciles():
    scene = Scene()
    steering = scene.steering()
    steering.begin()
    steering.ready(Ready(1, 0.0, 0.0))
    scene.is_stopped = True
    steering.all_ready(1)
    assert [type(message) for message in scene.told] == [Prepare]


@pytest.mark.parametrize("others_swapped", [True, False])
def test_what_is_staged_is_swapped_in_if_others_did(others_swapped):
    scene = Scene()
    steering = under_way(scene)
    steering.unsettled(0)
    steering.agreed(trained_to(steering.course, 4))
    steering.ready(Ready(2, 0.0, 0.0))
    steering.unsettled(1)
    assert CallOff(3) not in scene.told
    steering.agreed(trained_to(steering.course, 4, applied=1 if others_swapped else 0))
    assert [message for message in scene.told if isinstance(message, Go)] == [Go(1), *([Go(2, is_over=True)] * others_swapped)]
    assert scene.told[-2] == CallOff(3)
    assert steering.course.applied.generation == others_swapped


def test_what_belongs_to_an_attempt_that_is_over_changes_nothing():
    scene = Scene()
    steering = under_way(scene)
    steering.unsettled(0)
    steering.agreed(trained_to(steering.course, 4))
    before = len(scene.told), len(scene.committed), len(scene.meetings)
    steering.ready(Ready(1, 0.0, 0.0))
    steering.all_ready(1)
    assert (len(scene.told), len(scene.committed), len(scene.meetings)) == before


def test_who_leaves_says_so_with_the_step_that_it_committed_and_from_then_on():
    scene = Scene()
    steering = under_way(scene)
    steering.permit(record_of(0))
    assert not steering.leave(1), "not a generation that trains"
    assert steering.leave(0)
    assert scene.committed[-1] == (0, 0, Note(0, record_of(0), is_leaving=True))
    steering.permit(record_of(1))
    assert scene.committed[-1] == (0, 1, Note(0, record_of(1), is_leaving=True))
    scene.is_stopped = True
    assert not steering.leave(0)
