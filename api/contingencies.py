"""Plans made ahead in the background, by one thread of each process."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import structlog

from api.database import OvertakenError
from api.shelf import Decided, Shelf
from kintsugi.core.errors import KintsugiError
from kintsugi.core.job import Snapshot
from planner.contingency import Loss, after, fingerprint, losses, plan_ahead

BATCH = 16
"""Decisions that are stored in one transaction."""
CLOSING_SECONDS = 5.0
"""How long a stopping service waits for the plan that is being made."""


@dataclass(slots=True)
class _Work:
    """What is to be made ahead for one job."""

    job: str
    base: Callable[[], Snapshot]
    todo: Iterator[tuple[Snapshot, Loss]] | None = None
    generation: int = 0
    stored: frozenset[str] = frozenset()
    fresh: dict[str, Decided] = field(default_factory=dict)
    """Made, and not stored yet."""


class Contingencies:
    """Keeps every job's contingencies made: the job whose plan is newest first, and only for its latest generation.

    What is made is on disk within a batch, so that a restart does not lose it, and is found in memory until then.
    """

    def __init__(self, shelf: Shelf, *, pair_work: int) -> None:
        self._shelf = shelf
        self._pair_work = pair_work
        self._work: dict[str, _Work] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._is_idle = True
        self._thread = threading.Thread(target=self._run, name="contingencies", daemon=True)
        self._log = structlog.get_logger("kintsugi.api")

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self) -> None:
        """Finish the plan that is being made and stop; what is not stored by then is lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSING_SECONDS)

    def submit(self, job: str, base: Callable[[], Snapshot]) -> None:
        """Make plans ahead from the snapshot that `base` gives, before those of any other job; earlier work is dropped."""
        with self._changed:
            self._work.pop(job, None)
            self._work[job] = _Work(job, base)
            self._changed.notify_all()

    def find(self, job: str, snapshot: Snapshot) -> Decided | None:
        """The decision for `snapshot`, if it was made ahead."""
        key = fingerprint(snapshot)
        with self._changed:
            work = self._work.get(job)
            found = None if work is None else work.fresh.get(key)
        return found or self._shelf.find(job, key)

    def wait_until_idle(self, seconds: float) -> bool:
        """Whether everything that was submitted is made within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_idle and not self._work, seconds)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                self._advance(work)
            except KintsugiError as error:
                self._log.warning("cannot plan ahead", job=work.job, error=error.as_dict())
                self._finish(work)

    def _next(self) -> _Work | None:
        """The latest work, once there is any; None when the service stops."""
        with self._changed:
            self._is_idle = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._work or self._closed)
            self._is_idle = False
            return None if self._closed else next(reversed(self._work.values()))

    def _advance(self, work: _Work) -> None:
        """Make one plan of `work`, and store what was made once it is a batch or nothing is left."""
        if work.todo is None:
            self._begin(work)
        assert work.todo is not None
        following = next(work.todo, None)
        if following is None:
            self._store(work)
            self._finish(work)
            return
        base, loss = following
        if fingerprint(after(base, loss)) in work.stored:
            return
        made = plan_ahead(base, loss)
        if made is None:
            return
        decided = replace(Decided.of(made.decision), plan=None)
        with self._changed:
            work.fresh[made.fingerprint] = decided
        if len(work.fresh) >= BATCH:
            self._store(work)

    def _begin(self, work: _Work) -> None:
        base = work.base()
        work.generation, work.stored = base.generation, self._shelf.fingerprints(work.job)
        work.todo = ((base, loss) for loss in losses(base, self._pair_work))

    def _store(self, work: _Work) -> None:
        """Store what was made, unless newer work has taken its place."""
        with self._changed:
            is_current = self._work.get(work.job) is work
        if not is_current or not work.fresh:
            return
        try:
            self._shelf.put(work.job, work.generation, work.fresh)
        except OvertakenError:
            work.stored = self._shelf.fingerprints(work.job)
            self._shelf.put(work.job, work.generation, {key: work.fresh[key] for key in work.fresh.keys() - work.stored})
        with self._changed:
            work.fresh = {}

    def _finish(self, work: _Work) -> None:
        with self._changed:
            if self._work.get(work.job) is work:
                del self._work[work.job]
            self._changed.notify_all()
