"""When something is due for which job: kept beside the logs, so that a service that starts need not read them to find out."""

from sqlalchemy import Connection, delete, func, insert, select

from api.storage.database import Database
from api.storage.tables import DEADLINES

BATCH = 1_000
"""Jobs that are looked after at a time."""


class Agenda:
    """The next deadline of every job that has one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def due(self, now: str) -> list[str]:
        """Jobs whose next deadline is at `now` (RFC 3339, UTC) or before, the longest overdue first; at most `BATCH`.

        Raises:
            UnavailableError: the database does not answer.
        """
        query = select(DEADLINES.c.job).where(DEADLINES.c.due_at <= now).order_by(DEADLINES.c.due_at).limit(BATCH)
        with self._database.reading() as connection:
            return list(connection.execute(query).scalars())

    def next_after(self, now: str) -> str | None:
        """The first deadline after `now`; both RFC 3339, UTC.

        Raises:
            UnavailableError: the database does not answer.
        """
        query = select(func.min(DEADLINES.c.due_at)).where(DEADLINES.c.due_at > now)
        with self._database.reading() as connection:
            first: str | None = connection.execute(query).scalar_one()
        return first


def move(connection: Connection, job: str, before: str | None, after: str | None) -> None:
    """Put a job's next deadline off, within the transaction that appends what changed it.

    Args:
        connection: of the transaction.
        job: id of the job.
        before: the deadline so far; null where there was none.
        after: the deadline from now on; null where there is none.
    """
    if before == after:
        return
    if before is not None:
        connection.execute(delete(DEADLINES).where(DEADLINES.c.job == job))
    if after is not None:
        connection.execute(insert(DEADLINES), {"job": job, "due_at": after})
