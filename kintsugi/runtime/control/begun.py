"""The jobs that a run's lives began at a service, in the run's folder: one whose agent was killed is found there, and ended."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from kintsugi.core.errors import KintsugiError, UnavailableError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.clerk import Clerk, HungError
from kintsugi.runtime.disk import replace_whole

FILE = "jobs.json"
_WRITE_SECONDS = 5.0
"""For it to be on the disk, after which the job goes on without."""
_ANSWER_SECONDS = 60.0
"""For the disk to give it, after which it is not known what is in it."""


class BegunJobs:
    """What a run calls its jobs at a service, on the disk before any of them is there, and whether they are over.

    Args:
        folder: of the run. What is damaged there counts as nothing, and what cannot be written is told: both with a warning.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._log = get_logger("kintsugi.runtime")
        self._clerk = Clerk("begun")
        self._is_over = self._read()

    @property
    def going_on(self) -> tuple[str, ...]:
        """Those that go on as far as is known, the earliest first."""
        return tuple(job for job, is_over in self._is_over.items() if not is_over)

    def unused(self, name: str) -> str:
        """`name`, or where the run has used it already what a job is called that begins anew."""
        names = (name if number == 0 else f"{name}.restart{number}" for number in count())
        return next(job for job in names if job not in self._is_over)

    @contextmanager
    def beginning(self, job: str, is_there: Callable[[str], bool]) -> Iterator[None]:
        """Within this a job is created, or found: one that is there before and refused is somebody else's.

        Args:
            job: what it is called.
            is_there: whether the service has a job of a name.

        Raises:
            KintsugiError: that came within.
        """
        is_new = not is_there(job)
        if is_new:
            self._note(job, is_over=False)
        try:
            yield
        except UnavailableError:  # it may have been created
            raise
        except KintsugiError:
            if is_new:
                self._forget(job)
            raise
        if not is_new:
            self._note(job, is_over=False)

    def over(self, job: str) -> None:
        """The service knows that a job has ended, or knows no such job."""
        self._note(job, is_over=True)

    def close(self) -> None:
        """End the thread that writes; one that a disk holds up is left to itself after a few seconds."""
        self._clerk.close(_WRITE_SECONDS)

    def _note(self, job: str, *, is_over: bool) -> None:
        if self._is_over.get(job) is not is_over:
            self._is_over[job] = is_over
            self._write()

    def _forget(self, job: str) -> None:
        del self._is_over[job]
        self._write()

    def _read(self) -> dict[str, bool]:
        try:
            stored = json.loads(self._clerk.asked_alone(self._path.read_text, _ANSWER_SECONDS))
            return {str(job): bool(is_over) for job, is_over in stored["is_over"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, HungError, ValueError, TypeError, LookupError, AttributeError) as error:
            self._log.warning("it is not known which jobs this run began before", file=str(self._path), reason=str(error))
            return {}

    def _write(self) -> None:
        try:
            self._clerk.asked(partial(replace_whole, self._path, json.dumps({"is_over": self._is_over})), _WRITE_SECONDS)
        except HungError as error:
            self._tell_unwritten(f"its disk {error}")
        except OSError as error:
            self._tell_unwritten(str(error))

    def _tell_unwritten(self, why: str) -> None:
        self._log.warning("another life will not know which jobs this run began", file=str(self._path), reason=why)
