"""Searches that come to no end are counted: who asks for the same again and again gets an answer in the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from traceback import format_exception_only

import structlog

from api.decisions.workshop import WorkLostError
from api.storage.recent import Recent
from kintsugi.core.errors import KintsugiError, PlanningFailedError
from kintsugi.core.job import Snapshot
from planner.contingency import fingerprint

MOST_TRIES = 3
"""Searches that are begun for one snapshot, each of which kills the process that makes it, or fails by a mistake of ours."""
REMEMBERED = 256
"""Snapshots whose failed searches are counted, those that failed last."""


class Tries:
    """The failed searches of this process, by snapshot; safe for several threads."""

    def __init__(self) -> None:
        self._failed: Recent[str, int] = Recent(REMEMBERED)
        self._lock = Lock()
        self._log = structlog.get_logger("kintsugi.api")

    @contextmanager
    def of(self, snapshot: Snapshot) -> Iterator[None]:
        """Within this a plan is looked for.

        Raises:
            PlanningFailedError: in the place of an error that says nothing of the plan, where that was the last try; who asks
                anew is given as many again.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, KintsugiError) and not isinstance(error, WorkLostError):
                raise
            self._count(snapshot, error)
            raise

    def _count(self, snapshot: Snapshot, error: Exception) -> None:
        key = fingerprint(snapshot)
        with self._lock:
            num_tries = (self._failed.get(key) or 0) + 1
            self._failed.put(key, num_tries % MOST_TRIES)
        reason = _reason(error)
        self._log.warning("a search failed", generation=snapshot.generation, tries=num_tries, reason=reason)
        if num_tries < MOST_TRIES:
            return
        if not isinstance(error, KintsugiError):
            self._log.error("a search crashed", generation=snapshot.generation, exc_info=error)
        message = (
            f"the search for a plan came to no end, {MOST_TRIES} times: {reason}. Give the service more memory, or look at its "
            "log; the next event that the job is told has a plan looked for anew"
        )
        raise PlanningFailedError(message, field="plan") from error


def _reason(error: Exception) -> str:
    """What is wrong, in one line: of an error in another process the last one of its traceback."""
    if isinstance(error, KintsugiError):
        return error.message.removesuffix("; try again")
    return "".join(format_exception_only(error)).strip().splitlines()[-1]
