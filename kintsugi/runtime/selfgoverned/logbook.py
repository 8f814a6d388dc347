"""What a worker knows of its job: the course so far, and the plan for what comes next."""

import threading
from collections import deque
from dataclasses import replace

from kintsugi.core.errors import KintsugiError
from kintsugi.core.job import Snapshot
from kintsugi.runtime.ring.messages import Agreement
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.held import HeldPlans
from kintsugi.runtime.selfgoverned.notes import note_of_error, note_of_packed


class Logbook:
    """The ring enters agreements, which takes no time; they are read by whoever needs the course next."""

    def __init__(self, course: Course, held: HeldPlans) -> None:
        self._lock = threading.Lock()
        self._course = course
        self._held = held
        self._entered: deque[Agreement] = deque()

    def enter(self, agreement: Agreement) -> None:
        """A generation was agreed on."""
        self._entered.append(agreement)

    def latest(self) -> Course:
        """The course up to the latest agreement.

        Raises:
            KintsugiError: there is no plan for it.
        """
        with self._lock:
            while self._entered:
                self._course = self._course.after(self._entered[0])
                self._entered.popleft()
            return self._course

    def choose(self, agreement: Agreement) -> str:
        """What an agreement is to tell: the plan for what happened, or why there is none."""
        is_untrained = agreement.committed_step < 0
        try:
            snapshot = self.latest().snapshot(agreement)
            try:
                return note_of_packed(self._held.answer(snapshot, is_untrained=is_untrained))
            except KintsugiError:
                if not snapshot.draining:
                    raise
                return note_of_packed(self._held.answer(_with_those_that_leave(snapshot), is_untrained=is_untrained))
        except KintsugiError as error:
            return note_of_error(error)


def _with_those_that_leave(snapshot: Snapshot) -> Snapshot:
    """Where others were lost meanwhile and no plan can do without them: they train on until a later one can."""
    here = {*snapshot.alive, *snapshot.draining}
    return replace(snapshot, alive=tuple(worker.id for worker in snapshot.cluster.workers if worker.id in here), draining=())
