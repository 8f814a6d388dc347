"""Courses and agreements of small jobs."""

from dataclasses import replace

from kintsugi.core.job import Snapshot
from kintsugi.core.membership import Membership
from kintsugi.runtime.ring.messages import Agreement, Contribution
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.held import decided
from kintsugi.runtime.selfgoverned.notes import Note, note_of
from kintsugi.runtime.workers.commit import CommitRecord
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import request_for


def course_of(dp: int = 4, pp: int = 1) -> Course:
    """The first generation of a decoder's job."""
    request = request_for(tiny_gpt(), dp, pp, min_dp=1)
    snapshot = Snapshot(
        profile=request.profile,
        cluster=request.cluster,
        settings=request.settings,
        plan=request.plan,
        alive=tuple(worker.id for worker in request.cluster.workers),
        generation=0,
    )
    decision = decided(snapshot, is_untrained=True)
    return Course(
        job="job",
        profile=request.profile,
        settings=request.settings,
        membership=Membership.of(request.cluster),
        decision=decision,
        applied=decision.plan,
    )


def record_of(step: int) -> CommitRecord:
    """What the commit point of a step may have told."""
    return CommitRecord(step=step, squared_norm=0.1 * step, loss=1.0 / 3, microbatches=(1, 1))


def agreement_of(course: Course, members: tuple[str, ...], steps: dict[str, int], *, applied: int | None = None) -> Agreement:
    """An agreement without a plan: who contributed which committed step, under which plan."""
    applied = course.generation if applied is None else applied
    contributions = tuple(
        Contribution(worker, step, Note(applied, record_of(step) if step >= 0 else None).text()) for worker, step in steps.items()
    )
    return Agreement(course.generation + 1, members, contributions)


def with_plan(course: Course, agreement: Agreement) -> Agreement:
    """The same with the planner's decision."""
    decision = decided(course.snapshot(agreement), is_untrained=agreement.committed_step < 0)
    return replace(agreement, note=note_of(decision))
