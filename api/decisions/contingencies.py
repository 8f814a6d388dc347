"""Which plans are made ahead, in which order, and where they are kept until they are asked for."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from api.decisions.ahead import Made, make, maker
from api.decisions.forkserver import ForkServer
from api.decisions.workshop import TakesTooLongError, WorkLostError
from api.outages import Outage
from api.storage.database import OvertakenError
from api.storage.engines import DATABASE_FIELD
from api.storage.recent import Recent
from api.storage.shelf import Decided, Shelf
from kintsugi.core import codec
from kintsugi.core.errors import KintsugiError, UnavailableError
from kintsugi.core.job import Snapshot
from planner.contingency import Loss, after, fingerprint, losses

BATCH = 16
"""Decisions that are stored in one transaction."""
IDLE_SECONDS = 60.0
"""How long the thread sleeps at a time while there is nothing to do."""
AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 1.0, 10.0
"""Before work that the database did not let be done is taken up again; each time twice as long, up to the second."""
MOST_TRIES = 2
"""Processes that may end over one plan: the first may have been killed for what others took."""
REMEMBERED = 256
"""Snapshots whose plan was given up, those of which it was last."""
CLOSING_SECONDS = 5.0
"""How long a stopping service waits for the thread, which may be storing what was made."""


@dataclass(slots=True)
class _Work:
    """What is to be made ahead for one job."""

    job: str
    look: Callable[[], Snapshot]
    """Gives the snapshot of the next decision if nothing were lost."""
    due: float
    """When the work may begin, on the monotonic clock."""
    base: Snapshot | None = None
    document: str = ""
    """`base` as JSON."""
    todo: Iterator[Loss] = field(default_factory=lambda: iter(()))
    following: Loss | None = None
    stored: frozenset[str] = frozenset()
    fresh: dict[str, Decided] = field(default_factory=dict)
    """Made, and not stored yet."""

    @property
    def can_wait(self) -> bool:
        """Whether only pairs of losses are left."""
        return self.following is not None and len(self.following.subjects) > 1


class Contingencies:
    """Keeps every job's contingencies made, for its latest generation only; one thread sees to it.

    Work begins once a job was left alone for `settling_seconds`: the answer that called for it goes out first, and what the
    next event would throw away is not begun. It rests as long after every question of any job: under a load of events the
    processors are for those who wait. Single losses come before pairs, and then the job whose plan is newest before
    the others. What is made is on disk within a batch, so that a restart does not lose it, and is found in memory until then.
    """

    def __init__(self, shelf: Shelf, server: ForkServer, *, pair_work: int, settling_seconds: float = 0.0) -> None:
        self._shelf = shelf
        self._pair_work = pair_work
        self._settling_seconds = settling_seconds
        self._work: dict[str, _Work] = {}
        self._changed = threading.Condition()
        self._asked_at = -math.inf
        """When the last decision was asked for, on the monotonic clock."""
        self._closed = False
        self._is_idle = True
        self._workshop = maker(server)
        self._thread = threading.Thread(target=self._run, name="contingencies", daemon=True)
        self._log = structlog.get_logger("kintsugi.api")
        self._outage = Outage("plan ahead")
        self._given_up: Recent[str, bool] = Recent(REMEMBERED)
        """By fingerprint."""

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and end the process that plans, whether it plans or still begins; what is not stored by then is lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._workshop.close()
        if self._thread.is_alive():
            self._thread.join(CLOSING_SECONDS)

    def submit(self, job: str, look: Callable[[], Snapshot]) -> None:
        """Make plans ahead of the snapshot that `look` gives, before those of other jobs; earlier work for this one is dropped."""
        with self._changed:
            self._work.pop(job, None)
            self._work[job] = _Work(job, look, time.monotonic() + self._settling_seconds)
            self._changed.notify_all()

    def forget(self, job: str) -> None:
        """Make no more plans for a job."""
        with self._changed:
            self._work.pop(job, None)
            self._changed.notify_all()

    def forget_all(self) -> None:
        """Make no more plans for the jobs of now."""
        with self._changed:
            self._work.clear()
            self._changed.notify_all()

    def find(self, job: str, snapshot: Snapshot) -> Decided | None:
        """The decision for `snapshot`, if it was made ahead."""
        key = fingerprint(snapshot)
        with self._changed:
            self._asked_at = time.monotonic()
            work = self._work.get(job)
            found = None if work is None else work.fresh.get(key)
        return found or self._shelf.find(job, key)

    def num_pending(self) -> int:
        """Jobs whose plans are not all made."""
        return len(self._work)

    def wait_until_idle(self, seconds: float) -> bool:
        """Whether everything that was submitted is made within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_idle and not self._work, seconds)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                self._advance(work)
            except KintsugiError as error:
                if self._closed:  # and what plans with it
                    return
                if isinstance(error, UnavailableError) and error.field == DATABASE_FIELD:
                    self._put_off(work, error)
                    continue
                self._log.warning("cannot plan ahead", job=work.job, error=error.as_dict())
                self._finish(work)
            except Exception:  # one job's misfortune is not the others'
                self._log.exception("cannot plan ahead", job=work.job)
                self._finish(work)

    def _next(self) -> _Work | None:
        """The most urgent work, once there is any; None when the service stops."""
        with self._changed:
            self._is_idle = True
            self._changed.notify_all()
            while not self._closed:
                now, rested_at = time.monotonic(), self._asked_at + self._settling_seconds
                due = [work for work in reversed(self._work.values()) if max(work.due, rested_at) <= now]
                if due:
                    self._is_idle = False
                    return min(due, key=lambda work: work.can_wait)
                first = min((work.due for work in self._work.values()), default=now + IDLE_SECONDS)
                self._changed.wait(max(first, rested_at) - now)
            return None

    def _advance(self, work: _Work) -> None:
        """Make one plan of `work`, and store what was made once it is a batch or nothing is left."""
        if work.base is None:
            work.base, work.stored = work.look(), self._shelf.fingerprints(work.job)
            work.document = codec.dumps(work.base)
            work.todo = losses(work.base, self._pair_work)
            self._outage.is_over()
        elif work.following is not None and not self._make(work, work.base, work.following):
            work.todo = iter(())  # what is like it would take as long
        work.following = next(work.todo, None)
        if work.following is None or len(work.fresh) >= BATCH:
            self._store(work)
        if work.following is None:
            self._finish(work)

    def _make(self, work: _Work, base: Snapshot, loss: Loss) -> bool:
        """Make one plan, unless it is there; False where it is given up, for this snapshot once and for all."""
        key = fingerprint(after(base, loss))
        if key in work.stored:
            return True
        if self._given_up.get(key):
            return False
        try:
            made = self._made(work.document, loss)
        except WorkLostError as error:
            if self._closed:
                raise
            self._given_up.put(key, True)
            self._log.warning("no further plans ahead: one is given up", job=work.job, lost=loss.subjects, error=error.as_dict())
            return False
        if made is not None:
            with self._changed:
                work.fresh[made[0]] = made[1]
        return True

    def _made(self, document: str, loss: Loss) -> Made | None:
        for _ in range(MOST_TRIES - 1):
            try:
                return make(self._workshop, document, loss)
            except TakesTooLongError:
                raise
            except UnavailableError:
                if self._closed:
                    raise
        return make(self._workshop, document, loss)

    def _store(self, work: _Work) -> None:
        """Store what was made, unless newer work has taken its place."""
        with self._changed:
            is_current = self._work.get(work.job) is work
        if not is_current or not work.fresh or work.base is None:
            return
        generation = work.base.generation
        try:
            is_over = self._shelf.put(work.job, generation, work.fresh)
        except OvertakenError:
            work.stored = self._shelf.fingerprints(work.job)
            is_over = self._shelf.put(work.job, generation, {key: work.fresh[key] for key in work.fresh.keys() - work.stored})
        if is_over:  # the job went on or ended at another process, which tells nobody
            work.following = None
        self._outage.is_over()
        with self._changed:
            work.fresh = {}

    def _put_off(self, work: _Work, error: UnavailableError) -> None:
        """Go on with `work` later, from where it is."""
        self._outage.goes_on(error)
        work.due = time.monotonic() + self._outage.pause_seconds(AGAIN_SECONDS, LONGEST_AGAIN_SECONDS)

    def _finish(self, work: _Work) -> None:
        with self._changed:
            if self._work.get(work.job) is work:
                del self._work[work.job]
            self._changed.notify_all()
