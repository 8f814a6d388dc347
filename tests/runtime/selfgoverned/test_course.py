"""What survivors derive from an agreement: all the same, and what a conductor that sees everything would."""

from dataclasses import replace

import pytest

from kintsugi.core.decision import Decision
from kintsugi.core.errors import StateLostError
from kintsugi.core.membership import EventKind
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.ring.messages import Agreement, Contribution, Joiner
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.held import HeldPlans
from kintsugi.runtime.selfgoverned.logbook import Logbook
from kintsugi.runtime.selfgoverned.notes import Newcomer, Note, Reachable, heard, note_of_error
from planner.contingency import after, losses
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import request_for
from tests.runtime.selfgoverned.courses import agreement_of, course_of, record_of, with_plan

SURVIVORS = ("w00", "w02", "w03")


def untimed(decision: Decision) -> Decision:
    return replace(decision, search=replace(decision.search, elapsed_seconds=0.0))


def test_the_highest_committed_step_counts_with_its_record():
    course = course_of()
    settled = course.settled(agreement_of(course, SURVIVORS, {"w00": 3, "w02": 4, "w03": 3}))
    assert (settled.committed_step, settled.record) == (4, record_of(4))


def test_a_record_that_only_the_generation_before_told_of_is_kept():
    """Nobody has rolled the step forward when the next loss comes, and nobody has anything to add."""
    course = course_of()
    first = course.after(with_plan(course, agreement_of(course, SURVIVORS, {"w00": 3, "w02": 4, "w03": 3})))
    silent = replace(agreement_of(first, ("w00", "w02"), {}), contributions=(Contribution("w00", 4), Contribution("w02", 4)))
    settled = first.settled(silent)
    assert (settled.committed_step, settled.record) == (4, record_of(4))


@pytest.mark.parametrize("swapped", [{"w00"}, {"w02", "w03"}])
def test_one_survivor_that_swapped_makes_all_swap(swapped):
    course = course_of()
    first = course.after(with_plan(course, agreement_of(course, SURVIVORS, dict.fromkeys(SURVIVORS, 2))))
    told = agreement_of(first, SURVIVORS, dict.fromkeys(swapped, 2))
    silent = tuple(Contribution(worker, 2) for worker in SURVIVORS if worker not in swapped)
    settled = first.settled(replace(told, contributions=told.contributions + silent))
    assert settled.applied == first.decision.plan


def test_state_stays_where_it_was_when_nobody_swapped():
    course = course_of()
    first = course.after(with_plan(course, agreement_of(course, SURVIVORS, dict.fromkeys(SURVIVORS, 2))))
    settled = first.settled(agreement_of(first, ("w00", "w02"), {"w00": 2, "w02": 2}, applied=0))
    assert settled.applied == course.decision.plan


def test_the_plan_is_the_one_that_an_agent_would_decide():
    """Two losses one after the other, the first plan applied."""
    course, local = course_of(), LocalDecisions()
    local.start(replace(request_for(tiny_gpt(), 4, 1, min_dp=1), plan=course.decision.plan))
    for members in (("w00", "w02", "w03"), ("w02", "w03")):
        agreement = with_plan(course, agreement_of(course, members, dict.fromkeys(members, 2)))
        expected = local.after(course.events(agreement))
        course = course.after(agreement)
        local.applied(course.generation)
        assert untimed(course.decision) == untimed(expected)


def test_what_happens_next_is_what_plans_are_made_ahead_for():
    course = course_of()
    for loss in losses(course.base()):
        members = tuple(worker for worker in course.membership.alive if worker not in loss.workers)
        assert course.snapshot(agreement_of(course, members, dict.fromkeys(members, 5))) == after(course.base(), loss)


def test_who_came_since_the_plan_was_applied_brings_no_state():
    course = course_of()
    first = course.after(with_plan(course, agreement_of(course, SURVIVORS, dict.fromkeys(SURVIVORS, 2))))
    back = agreement_of(first, (*SURVIVORS, "w01"), dict.fromkeys(SURVIVORS, 2), applied=0)
    snapshot = first.snapshot(back)
    assert snapshot.plan == course.decision.plan
    assert (snapshot.alive, snapshot.stateless) == (("w00", "w01", "w02", "w03"), ("w01",))
    second = first.after(with_plan(first, back))
    assert second.incarnations == {"w01": 1}
    assert second.snapshot(agreement_of(second, second.membership.alive, {"w00": 3})).stateless == ()


def test_events_name_every_change_once():
    course = course_of()
    events = course.events(agreement_of(course, ("w00", "w02", "w09"), {"w00": 0}))
    assert [(event.kind, event.worker) for event in events] == [
        (EventKind.WORKER_FAILED, "w01"),
        (EventKind.WORKER_FAILED, "w03"),
        (EventKind.WORKER_JOINED, "w09"),
    ]
    assert len({event.id for event in events}) == 3


def test_an_agreement_without_a_plan_says_why():
    course = course_of()
    agreement = replace(agreement_of(course, SURVIVORS, {"w00": 1}), note=note_of_error(StateLostError("is lost", layers=(3,))))
    with pytest.raises(StateLostError) as refused:
        course.after(agreement)
    assert refused.value.layers == (3,)


def test_who_joins_lives_where_the_agreement_says_and_is_planned_for_ahead():
    course = course_of()
    joiner = Joiner("w09", ("127.0.0.1", 5), Newcomer("h3", ("127.0.0.1", 6)).text())
    members = (*course.membership.alive, "w09")
    agreement = replace(agreement_of(course, members, dict.fromkeys(course.membership.alive, 2)), joined=(joiner,))
    assert course.snapshot(agreement) == course.joining(joiner)
    after = course.after(with_plan(course, agreement))
    assert after.membership.cluster.by_id["w09"].host == "h3"
    assert after.came_from == {"w09": Reachable(("127.0.0.1", 5), ("127.0.0.1", 6))}
    assert after.agreement is not None
    assert after.agreement.joined == (joiner,)


def test_who_missed_the_agreement_that_took_a_worker_in_knows_where_it_lives_and_is_reached():
    course = course_of()
    joiner = Joiner("w09", ("127.0.0.1", 5), Newcomer("h3", ("127.0.0.1", 6)).text())
    members = (*course.membership.alive, "w09")
    missed = replace(agreement_of(course, members, dict.fromkeys(course.membership.alive, 2)), joined=(joiner,))
    latest = replace(missed, generation=missed.generation + 1, joined=(), earlier=(joiner,))
    after = course.settled(latest)
    assert after.membership == course.settled(missed).membership
    assert after.came_from == course.settled(missed).came_from


def leaving(course: Course, agreement: Agreement, worker: str) -> Agreement:
    """The same where one of the contributors says that it leaves."""
    note = Note(course.generation, record_of(2), is_leaving=True).text()
    others = tuple(contribution for contribution in agreement.contributions if contribution.worker != worker)
    return replace(agreement, contributions=(Contribution(worker, 2, note), *others))


def test_who_leaves_is_a_source_until_its_process_ends():
    course = course_of()
    everybody = course.membership.alive
    agreement = leaving(course, agreement_of(course, everybody, dict.fromkeys(everybody, 2)), "w01")
    assert course.snapshot(agreement) == course.leaving("w01")
    after = course.after(with_plan(course, agreement))
    assert (after.membership.alive, after.membership.draining) == (SURVIVORS, ("w01",))
    assert set(after.members) == set(everybody)
    assert "w01" not in after.decision.plan.workers
    assert [event.kind for event in after.events(agreement_of(after, everybody, {}))] == []
    gone = after.after(with_plan(after, agreement_of(after, SURVIVORS, dict.fromkeys(SURVIVORS, 3))))
    assert gone.members == SURVIVORS
    assert gone.decision.plan.pipelines == after.decision.plan.pipelines


def test_who_leaves_trains_on_where_the_others_are_lost_meanwhile():
    course = course_of(2, 1)
    agreement = leaving(course, agreement_of(course, ("w00",), {"w00": 2}), "w00")
    note = Logbook(course, HeldPlans()).choose(agreement)
    assert heard(note).plan.workers == ("w00",)
    assert course.after(replace(agreement, note=note)).members == ("w00",)
