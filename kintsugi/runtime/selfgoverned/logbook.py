"""What a worker's ring knows of the job: the course so far, and the plan for what comes next. Used by the ring's thread alone."""

from kintsugi.core.errors import KintsugiError
from kintsugi.runtime.ring.messages import Agreement
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.held import HeldPlans
from kintsugi.runtime.selfgoverned.notes import told_decision, told_error


class Logbook:
    """Always at the generation that the ring is in, however far behind the worker itself is."""

    def __init__(self, course: Course, held: HeldPlans) -> None:
        self._course = course
        self._held = held

    def choose(self, agreement: Agreement) -> str:
        """What an agreement is to tell: the plan for what happened, or why there is none."""
        is_untrained = agreement.committed_step < 0
        try:
            return told_decision(self._held.answer(self._course.snapshot(agreement), is_untrained=is_untrained))
        except KintsugiError as error:
            return told_error(error)

    def turn(self, agreement: Agreement) -> Course:
        """Go on to the generation that was agreed on.

        Raises:
            KintsugiError: there is no plan for it.
        """
        self._course = self._course.after(agreement)
        return self._course
