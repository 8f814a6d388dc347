"""Where messages fail though nobody is lost, all agree on a generation of the same members, and try again."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from kintsugi.core.errors import ReconfigurationError
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.steering import Steering, attempt_of

_MOST_TIMES = 3
"""In a row, with the same members and without a step between them."""


@dataclass(slots=True)
class Regrouping:
    """One member's part in it. Used by one thread."""

    steering: Steering
    renew: Callable[[int], None]
    """Has the members agree on a successor of a generation."""
    post: Callable[..., None]
    """Has something called by the one thread."""
    patience_seconds: float
    """For the ring to find out that somebody is lost."""
    _last: Course | None = field(init=False, default=None)
    _num_times: int = field(init=False, default=0)
    _timer: threading.Timer | None = field(init=False, default=None)

    def link_broken(self, attempt: int, reason: str) -> None:
        """A message of an attempt failed: try again if nothing else ends its generation for a while."""
        course = self.steering.course
        if attempt == attempt_of(course.generation):
            self.close()
            self._timer = threading.Timer(self.patience_seconds, self.post, (self._regroup, course, reason))
            self._timer.daemon = True
            self._timer.start()

    def unserved(self, attempt: int, reason: str) -> None:
        """The same of whoever serves an attempt, who is needed until all are ready."""
        if not self.steering.is_applied:
            self.link_broken(attempt, reason)

    def stalled(self, generation: int, reason: str) -> None:
        """Nothing happens in a generation any more: try again at once, for the ring has had its time.

        Raises:
            ReconfigurationError: that came to nothing several times.
        """
        if generation == self.steering.course.generation:
            self._regroup(self.steering.course, reason)

    def close(self) -> None:
        """Leave it."""
        if self._timer is not None:
            self._timer.cancel()

    def _regroup(self, failed: Course, reason: str) -> None:
        """Have the members agree on a successor of a generation, if it has none.

        Raises:
            ReconfigurationError: that came to nothing several times.
        """
        if self.steering.course.generation != failed.generation:
            return
        last, self._last = self._last, failed
        is_again = last is not None and (last.members, last.committed_step) == (failed.members, failed.committed_step)
        self._num_times = self._num_times + 1 if is_again else 1
        if self._num_times > _MOST_TIMES:
            message = f"gave up after {_MOST_TIMES} attempts without a loss or a step between them: {reason}"
            raise ReconfigurationError(message, field="generation", value=failed.generation)
        self.renew(failed.generation)
