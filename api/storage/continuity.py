"""Whether a database still holds what this process wrote to it, or read from it.

A backup may take its place while the service runs, and so may a copy that lagged behind, where a cluster of PostgreSQL fails
over. What this process remembers of jobs is then of a past that is no more, and nothing may be put behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, select

from api.storage.engines import DATABASE_FIELD
from api.storage.tables import JOBS, LOG
from kintsugi.core.errors import UnavailableError


class SetBackError(UnavailableError):
    """An older state took the place of what the database held; whoever asks next is answered from what is there."""

    code = "storage_set_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of a job's log, as somebody knows it."""

    number: int
    """Of the last entry; 0 before the first."""
    at: str
    """When it was received, or the job created (RFC 3339, UTC, to the microsecond): no entry of another past has both."""

    def is_in(self, row: Row[Any] | None) -> bool:
        """Whether it is the first row that `rows_from` gives."""
        if row is None or self.number == 0:
            return row is not None and bool(row.created_at == self.at)
        return (row.number, row.received_at) == (self.number, self.at)

    def rows_from(self, connection: Connection, job: str) -> Sequence[Row[Any]]:
        """A job's log from its head on; before the first entry, where there is none, one row with the job alone."""
        return connection.execute(FROM_HEAD if self.number else FROM_CREATION, {"name": job, "head": self.number}).all()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The last of all jobs' entries, as somebody knows it."""

    position: int = 0
    """0 before there is any."""
    at: str | None = None
    """When it was received."""

    def require_in(self, row: Row[Any] | None) -> None:
        """Require the first row from this position on to be the entry that is known.

        Raises:
            SetBackError: it is another one, or there is none.
        """
        if self.position and (row is None or (row.position, row.received_at) != (self.position, self.at)):
            raise _error(f"entry {self.position} of all logs, received {self.at}")


FROM_HEAD = select(LOG).where(LOG.c.job == bindparam("name"), LOG.c.number >= bindparam("head")).order_by(LOG.c.number)
FROM_CREATION: Select[Any] = (
    select(JOBS.c.created_at, LOG)
    .join_from(JOBS, LOG, (LOG.c.job == JOBS.c.id) & (LOG.c.number > bindparam("head")), isouter=True)
    .where(JOBS.c.id == bindparam("name"))
    .order_by(LOG.c.number)
)
KNOWN_AND_LAST: Select[Any] = (
    select(LOG.c.position, LOG.c.received_at)
    .where(LOG.c.position.in_((bindparam("known"), select(func.max(LOG.c.position)).scalar_subquery())))
    .order_by(LOG.c.position)
)


def set_back(job: str, head: Head) -> SetBackError:
    """What follows from a job's log without its `head`."""
    return _error(f"entry {head.number} of job {job!r}, received {head.at}" if head.number else f"job {job!r}, created {head.at}")


def moved(connection: Connection, known: Mark) -> Mark:
    """The mark as it is now.

    Raises:
        SetBackError: the database does not hold the known one any more.
    """
    rows = connection.execute(KNOWN_AND_LAST, {"known": known.position}).all()
    known.require_in(next(iter(rows), None))
    return Mark(position=rows[-1].position, at=rows[-1].received_at) if rows else Mark()


def _error(missed: str) -> SetBackError:
    message = (
        f"the database was emptied or set back while the service ran: {missed}, is not in it any more. The service goes on from "
        "what is there: fetch the plan, and report again what still holds"
    )
    return SetBackError(message, field=DATABASE_FIELD)
