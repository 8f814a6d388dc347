"""The place of every log entry in the order of commits, over all jobs: what streams of all jobs are resumed by."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, text

from api.storage.engines import POSTGRESQL
from api.storage.tables import LOG

LAST_POSITION = select(func.max(LOG.c.position))
POSITIONED_AFTER = select(LOG).where(LOG.c.position > bindparam("after")).order_by(LOG.c.position).limit(bindparam("most"))
ONE_BY_ONE = text("SELECT pg_advisory_xact_lock(7239104522)")
"""Whoever holds the lock commits before the next one numbers: who sees a position sees all positions below it."""


def numbered(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the log with the next positions, for the transaction that inserts them at once.

    SQLite has one writer at a time anyway; on PostgreSQL writers take turns from here to their commit.
    """
    if connection.dialect.name == POSTGRESQL:
        connection.execute(ONE_BY_ONE)
    last = last_position(connection)
    return [{**row, "position": position} for position, row in enumerate(rows, start=last + 1)]


def last_position(connection: Connection) -> int:
    """Position of the last entry; 0 before there is any."""
    position: int | None = connection.execute(LAST_POSITION).scalar_one()
    return position or 0
