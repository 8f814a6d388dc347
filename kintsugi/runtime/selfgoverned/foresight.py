"""Has plans made ahead for what may happen to a generation next handed to the workers: the service's, the others from here.

All of it goes on beside the training. The service makes its own once it has learned of the generation; what it does not have
by then, or in time, is made here, so that the workers hold plans whether it answers or not.
"""

import os
import queue
import threading
import time
from collections.abc import Iterator
from itertools import islice

from kintsugi.core.errors import KintsugiError
from kintsugi.runtime.control.decisions import Ahead
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.packed import packed
from kintsugi.runtime.selfgoverned.words import Hold
from planner.contingency import after, fingerprint, losses, plan_ahead

_BATCH = 16
"""Plans that are handed out at once."""
LOW_PRIORITY = 5
"""Of a thread, as Linux has them: a third of the others' share of a core."""
_SOURCE_SECONDS = 10.0
_LOOK_SECONDS = 1.0
"""Between two looks at what the source has made."""
_CLOSE_SECONDS = 10.0
"""For the plan that is being made to be ready."""


class Foresight:
    """One thread, of low priority: training has the cores first."""

    def __init__(self, source: Ahead | None = None, *, patience_seconds: float = _SOURCE_SECONDS) -> None:
        """`source` makes plans ahead, too; it is waited for so long after a generation has begun."""
        self._source, self._patience_seconds = source, patience_seconds
        self._courses: queue.SimpleQueue[Course | None] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[Hold] = queue.SimpleQueue()
        self._latest = -1
        self._is_closing = threading.Event()
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
        self._is_closing.set()
        self._courses.put(None)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        while (course := self._courses.get()) is not None:
            known = self._taken(course)
            base = course.base()
            missing = (loss for loss in losses(base) if fingerprint(after(base, loss)) not in known)
            ahead = (made for loss in missing if (made := plan_ahead(base, loss)) is not None)
            while self._latest == course.generation and (batch := list(islice(ahead, _BATCH))):
                plans = {contingency.fingerprint: packed(contingency.decision) for contingency in batch}
                self._made.put(Hold(course.generation, plans))

    def _taken(self, course: Course) -> set[str]:
        """Hand out what the source makes, until it makes no more, has had its time, or does not answer; the fingerprints of it."""
        known: set[str] = set()
        if self._source is None:
            return known
        deadline = time.monotonic() + self._patience_seconds
        while self._latest == course.generation and time.monotonic() < deadline:
            try:
                made = self._source.made_ahead(course.generation + 1)
            except KintsugiError:
                break
            new = {key: packed(made[key]) for key in made.keys() - known}
            if known and not new:
                break
            self._made.put(Hold(course.generation, new))
            known |= new.keys()
            self._is_closing.wait(_LOOK_SECONDS)
        return known
