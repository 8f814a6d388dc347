"""The place of every log entry in the order of commits, over all jobs: what streams of all jobs are resumed by."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, text

from api.storage.continuity import Head, set_back
from api.storage.engines import POSTGRESQL
from api.storage.tables import JOBS, LOG

LAST_POSITION = select(func.max(LOG.c.position))
OF_ALL = LAST_POSITION.scalar_subquery()
HEAD_AND_LAST = select(LOG.c.received_at, OF_ALL).where(LOG.c.job == bindparam("job"), LOG.c.number == bindparam("number"))
CREATION_AND_LAST = select(JOBS.c.created_at, OF_ALL).where(JOBS.c.id == bindparam("job"))
POSITIONED_FROM = select(LOG).where(LOG.c.position >= bindparam("first")).order_by(LOG.c.position).limit(bindparam("most"))
ONE_BY_ONE = text("SELECT pg_advisory_xact_lock(7239104522)")
"""Whoever holds the lock commits before the next one numbers: who sees a position sees all positions below it."""


def numbered(connection: Connection, job: str, head: Head, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a job's log, behind its `head`, with the next positions, for the transaction that inserts them at once.

    SQLite has one writer at a time anyway; on PostgreSQL writers take turns from here to their commit.

    Raises:
        SetBackError: the log does not hold its head any more.
    """
    if connection.dialect.name == POSTGRESQL:
        connection.execute(ONE_BY_ONE)
    query, asked = (HEAD_AND_LAST, {"job": job, "number": head.number}) if head.number else (CREATION_AND_LAST, {"job": job})
    at, last = connection.execute(query, asked).one_or_none() or (None, None)
    if at != head.at:
        raise set_back(job, head)
    return [{**row, "position": position} for position, row in enumerate(rows, start=(last or 0) + 1)]


def last_position(connection: Connection) -> int:
    """Position of the last entry; 0 before there is any."""
    position: int | None = connection.execute(LAST_POSITION).scalar_one()
    return position or 0
