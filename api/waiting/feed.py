"""The logs of all jobs as one: every line with its place in the order of commits and the decision it led to."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from api.jobs.history import Entry, standing_at
from api.jobs.lifecycle import Lifecycle
from api.records import StandingDecision
from api.storage.continuity import Mark, moved
from api.storage.legible import IllegibleError
from api.storage.positions import POSITIONED_FROM, last_position
from api.storage.rows import entry_of
from api.storage.store import Store
from kintsugi.core.handling import Approval, Expiry, Handling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """One entry of a job's log, as streams tell it; compared by identity, for it is told to many."""

    job: str
    number: int
    """In what is listened to: the entry's number in its job's log, or its position in the logs of all jobs."""
    entry: Entry
    plan: StandingDecision | None
    """What the entry led to itself, or let count, or refused, or stopped waiting for, if anything; as the plan stood then."""

    @property
    def number_in_job(self) -> int:
        """The entry's number in its job's log."""
        return self.entry.number

    @property
    def mark(self) -> Mark:
        """Of a line that is numbered by its position."""
        return Mark(position=self.number, at=self.entry.received_at)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Illegible:
    """The place of an entry that this version of the program does not understand: what stands behind it is told all the same."""

    job: str
    number: int
    """As that of a `Line`."""
    number_in_job: int
    at: str
    """When the entry was received."""
    error: IllegibleError

    @property
    def mark(self) -> Mark:
        """Of one that is numbered by its position."""
        return Mark(position=self.number, at=self.at)


class Feed:
    """Reads lines behind a number, a page at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def end(self) -> int:
        """Position of the last line; 0 before there is any.

        Raises:
            UnavailableError: the database does not answer.
        """
        with self._store.database.reading() as connection:
            return last_position(connection)

    def mark(self) -> Mark:
        """The last line, whose position `end` tells.

        Raises:
            UnavailableError: the database does not answer.
        """
        with self._store.database.reading() as connection:
            return moved(connection, Mark())

    def after(self, position: int, limit: int) -> list[Line | Illegible]:
        """Up to `limit` lines of all jobs behind `position`, each numbered by its position.

        Raises:
            UnavailableError: the database does not answer.
        """
        with self._store.database.reading() as connection:
            rows = connection.execute(POSITIONED_FROM, {"first": position + 1, "most": limit}).all()
            return [self._positioned(row) for row in rows]

    def behind(self, mark: Mark, limit: int) -> list[Line | Illegible]:
        """As `after`, behind a line that is known.

        Raises:
            SetBackError: the database does not hold it any more.
            UnavailableError: the database does not answer.
        """
        with self._store.noticing(), self._store.database.reading() as connection:
            rows = connection.execute(POSITIONED_FROM, {"first": mark.position, "most": limit + 1}).all()
            mark.require_in(rows[0] if rows else None)
            return [self._positioned(row) for row in rows if row.position > mark.position]

    def of_job(self, job: str, number: int, limit: int) -> list[Line]:
        """Up to `limit` lines of one job behind log number `number`.

        Raises:
            IllegibleError: one of them is not understood.
            UnavailableError: the database does not answer.
        """
        with self._store.looking():
            return [self._line(job, entry.number, entry) for entry in self._store.entries(job, after=number, limit=limit)]

    def _positioned(self, row: Row[Any]) -> Line | Illegible:
        """One job's misfortune is not the others'."""
        try:
            return self._line(row.job, row.position, entry_of(row))
        except IllegibleError as error:
            return Illegible(job=row.job, number=row.position, number_in_job=row.number, at=row.received_at, error=error)

    def _line(self, job: str, number: int, entry: Entry) -> Line:
        return Line(job=job, number=number, entry=entry, plan=self._plan(job, entry))

    def _plan(self, job: str, entry: Entry) -> StandingDecision | None:
        is_told = entry.decided or isinstance(entry.content, Approval | Expiry)
        stored = self._store.job(job) if is_told else None
        if stored is None:
            return None
        handling = self._store.document(Handling, stored.handling)
        standing = standing_at(entry, handling)
        if standing is None:
            return None
        first = Lifecycle(handling=handling).first_status
        return StandingDecision(
            decision=self._store.present_decision(job, standing.generation), standing=standing, status_at_first=first
        )
