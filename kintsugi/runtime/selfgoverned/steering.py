"""Steers one worker from agreement to agreement, in the words that an agent would say.

    the ring reconciles: CallOff -> it agrees: Prepare, with the plan that the agreement tells -> Ready -> all are ready: Go

The swap to a plan is committed like a step: the ring is asked first, and what is said there becomes part of the next agreement. So
all survivors know whether any of them swapped, and then do it, too: all were ready for it.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.control.preparation import Settlement, preparation
from kintsugi.runtime.messages import CallOff, Go, Prepare, Ready, ToWorker
from kintsugi.runtime.reach import Address
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.notes import Note
from kintsugi.runtime.selfgoverned.words import Adopted
from kintsugi.runtime.workers.commit import CommitRecord


class Commits(Protocol):
    """The part of a ring that is asked before anything is done that the others must know of."""

    def commit(self, generation: int, step: int, note: str = "") -> bool:
        """Whether the worker may act in a generation; then the next agreement tells the note."""


class Meeting(Protocol):
    """Where the members of an attempt find each other."""

    def join(self, attempt: int, members: tuple[str, ...], served_by: Address) -> None:
        """Take part in an attempt; the one before is over."""

    def ready(self, attempt: int) -> None:
        """Say that this worker is ready."""


@dataclass(slots=True, kw_only=True)
class Steering:
    """Of one worker. Everything but `permit` is called by one thread."""

    worker: str
    ring: Commits
    meeting: Meeting
    tell: Callable[[ToWorker], None]
    report: Callable[[Adopted], None]
    switchboards: Mapping[str, Address]
    course: Course
    compares: bool = False
    """Whether replicas are compared."""
    _called_off: int = 0
    _ready: int = -1
    """Generation whose plan is staged here."""
    _applied: int = -1
    """Generation whose plan was swapped in here."""
    _noticed_at: float = 0.0
    _is_leaving: bool = False
    _passed: CommitRecord | None = None
    """The last commit point that was passed here."""
    _committing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_applied(self) -> bool:
        """Whether the plan of the present generation was swapped in here."""
        return self._applied == self.course.generation

    def permit(self, record: CommitRecord) -> None:
        """Commit a step before it is applied; in the worker's main thread.

        Raises:
            CommunicationError: the others agree without it.
        """
        with self._committing:
            if not self.ring.commit(self._applied, record.step, Note(self._applied, record, self._is_leaving).text()):
                raise CommunicationError(f"step {record.step} was called off")
            self._passed = record

    def leave(self, generation: int) -> bool:
        """Say that this worker leaves, if a generation still trains; from any thread. Whether the next agreement will tell."""
        with self._committing:
            self._is_leaving = True
            if self._applied != generation:
                return False
            step = self._passed.step if self._passed is not None else -1
            return self.ring.commit(generation, step, Note(generation, self._passed, is_leaving=True).text())

    def begin(self) -> None:
        """Prepare the plan of the generation that the worker begins in."""
        self._noticed_at = time.monotonic()
        self._prepare()

    def unsettled(self, generation: int) -> None:
        """A generation is over: leave its step.

        What is staged is kept: others may have swapped to it already, which the agreement will tell.
        """
        self._noticed_at = time.monotonic()
        is_staged = self._applied < self._ready == generation
        if not is_staged:
            self._call_off(generation + 1)

    def agreed(self, course: Course) -> None:
        """Move on to a generation that was agreed on; those before it that nobody came to are passed over."""
        if course.generation <= self.course.generation:
            return
        if self._ready == course.applied.generation > self._applied:
            self._swap(is_over=True)
        self._call_off(course.generation)
        self.course = course
        self._prepare()

    def ready(self, message: Ready) -> None:
        """The plan of an attempt is staged."""
        if message.attempt == attempt_of(self.course.generation):
            self._ready = self.course.generation
            self.meeting.ready(message.attempt)

    def all_ready(self, attempt: int) -> None:
        """All members are ready: swap, unless the ring reconciles already."""
        course = self.course
        if attempt != attempt_of(course.generation) or self.is_applied:
            return
        note = Note(course.generation, course.record, self._is_leaving)
        with self._committing:
            is_committed = self.ring.commit(course.generation, course.committed_step, note.text())
            self._passed = course.record if is_committed else self._passed
        if is_committed:
            self._swap(is_over=False)

    def _swap(self, *, is_over: bool) -> None:
        self._applied = self._ready
        self.tell(Go(attempt_of(self._ready), is_over))

    def _call_off(self, generation: int) -> None:
        if attempt_of(generation) > self._called_off:
            self._called_off = attempt_of(generation)
            self.tell(CallOff(self._called_off))

    def _prepare(self) -> None:
        agreed_at = time.monotonic()
        course, attempt = self.course, attempt_of(self.course.generation)
        members = tuple(dict.fromkeys((*course.decision.plan.workers, *course.members)))
        self.meeting.join(attempt, members, self.switchboards[members[0]])
        self.tell(self._preparation(attempt, members)[self.worker])
        if self.worker == members[0] or (course.agreement is not None and course.agreement.joined):
            self.report(Adopted(course=course, noticed_at=self._noticed_at, agreed_at=agreed_at))

    def _preparation(self, attempt: int, members: tuple[str, ...]) -> Mapping[str, Prepare]:
        course = self.course
        return preparation(
            attempt,
            course.decision,
            members,
            Settlement(course.record, course.committed_step + 1),
            applied=course.applied,
            profile=course.profile,
            cluster=course.membership.cluster,
            compares=self.compares,
        )


def attempt_of(generation: int) -> int:
    """Number of the attempt to reach a generation; a worker counts attempts from 1."""
    return generation + 1
