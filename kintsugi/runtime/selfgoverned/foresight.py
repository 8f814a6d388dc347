"""Makes plans ahead for what may happen to a generation next, beside the training, and has them handed to the workers."""

import os
import queue
import threading
from collections.abc import Iterator
from itertools import islice

from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.packed import packed
from kintsugi.runtime.selfgoverned.words import Hold
from planner.contingency import plans_ahead

_BATCH = 16
"""Plans that are handed out at once."""
LOW_PRIORITY = 5
"""Of a thread, as Linux has them: a third of the others' share of a core."""
_CLOSE_SECONDS = 10.0
"""For the plan that is being made to be ready."""


class Foresight:
    """One thread, of low priority: training has the cores first."""

    def __init__(self) -> None:
        self._courses: queue.SimpleQueue[Course | None] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[Hold] = queue.SimpleQueue()
        self._latest = -1
        self._thread: threading.Thread | None = None

    def look_ahead(self, course: Course) -> None:
        """Make plans for what may happen to a generation; those for the one before are given up."""
        self._latest = course.generation
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="foresight", daemon=True)
            self._thread.start()
        self._courses.put(course)

    def made(self) -> Iterator[Hold]:
        """What was made since this was asked last."""
        while not self._made.empty():
            yield self._made.get()

    def close(self) -> None:
        """End the thread."""
        self._latest = -1
        self._courses.put(None)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        while (course := self._courses.get()) is not None:
            ahead = plans_ahead(course.base())
            while self._latest == course.generation and (batch := list(islice(ahead, _BATCH))):
                plans = {contingency.fingerprint: packed(contingency.decision) for contingency in batch}
                self._made.put(Hold(course.generation, plans))
