"""The audit log: who wrote what, and who was refused.

Records are written in batches by a task of their own, so that no answer waits for the disk twice; a process that is killed
takes those of its last half second along. What was written itself is durable before it is answered, and stands in the jobs' logs.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from threading import Lock

import anyio
import structlog
from anyio.to_thread import run_sync
from sqlalchemy import Connection, func, insert, select, text

from api.http.cursors import Cursors
from api.moments import text_of, utc_now
from api.outages import Outage
from api.storage.database import Database
from api.storage.engines import POSTGRESQL
from api.storage.sweeping import sweep
from api.storage.tables import AUDIT
from kintsugi.core.errors import KintsugiError
from kintsugi.core.profile import PYDANTIC_CONFIG

FLUSH_SECONDS = 0.5
PRUNE_SECONDS = 3_600.0
PRUNED_AT_ONCE = 2_000
"""Old records that are deleted from one flush to the next: other writers, and new records, wait no longer than that takes."""
MOST_UNWRITTEN = 50_000
"""Records that wait for a database that is away; later ones are logged alone."""

ONE_BY_ONE = text("SELECT pg_advisory_xact_lock(7239104523)")
"""Whoever holds the lock commits before the next one numbers: who read a record misses none of a lower number that comes later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One write or refusal."""

    __pydantic_config__ = PYDANTIC_CONFIG

    at: str
    token: str | None
    """Id of the token; null where none was asked for or none was usable."""
    name: str | None
    """Of the token."""
    address: str
    method: str
    route: str | None
    """Template of the path; null where nothing is served."""
    job: str | None
    """The job that the path names."""
    status: int
    """Of the answer; 499 where the client was gone before it."""
    request: str
    """`X-Request-Id` of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A record with its place in the audit log."""

    __pydantic_config__ = PYDANTIC_CONFIG

    number: int
    record: AuditRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Part of the audit log, the oldest first."""

    __pydantic_config__ = PYDANTIC_CONFIG

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None


class Auditor:
    """Writes and reads the audit log of one database."""

    def __init__(self, database: Database, *, keep_days: int) -> None:
        self._database = database
        self._keeping = timedelta(days=keep_days)
        self._unwritten: deque[AuditRecord] = deque()
        self._before: int | None = None
        """Number of the last record before those whose write failed: it may have failed to be answered alone."""
        self._something = anyio.Event()
        self._closing = anyio.Event()
        self._pruned_at = float("-inf")
        self._writing = Lock()
        self._log = structlog.get_logger("kintsugi.audit")

    def add(self, record: AuditRecord) -> None:
        """Have a record written soon."""
        if len(self._unwritten) >= MOST_UNWRITTEN:
            self._log.warning("not in the audit log: the database is away", **asdict(record))
            return
        self._unwritten.append(record)
        self._something.set()

    async def run(self) -> None:
        """Write what was added until `close`, and then the rest; a database that is away is tried again until then."""
        outage = Outage("write the audit log")
        is_last = False
        while not is_last:
            with anyio.move_on_after(self._seconds_to_pruning()):
                await self._something.wait()
            with anyio.move_on_after(FLUSH_SECONDS):
                await self._closing.wait()
            is_last, self._something = self._closing.is_set(), anyio.Event()
            try:
                await run_sync(self.write)
                if not is_last and not self._seconds_to_pruning():
                    await run_sync(self.prune)
                outage.is_over()
            except KintsugiError as error:
                outage.goes_on(error)
                self._something.set()

    def close(self) -> None:
        """Let `run` end once everything is written."""
        self._closing.set()
        self._something.set()

    def write(self) -> None:
        """Write everything that was added.

        Raises:
            UnavailableError: the database does not answer; nothing is lost, and nothing is there twice once it does.
        """
        with self._writing:
            records = list(self._unwritten)
            if not records:
                return
            with self._database.writing() as connection:
                if connection.dialect.name == POSTGRESQL:
                    connection.execute(ONE_BY_ONE)
                written = self._written(connection)
                new = [asdict(record) for record in records if record.request not in written]
                if new:
                    connection.execute(insert(AUDIT), new)
            self._before = None
            for _ in records:
                self._unwritten.popleft()

    def prune(self) -> None:
        """Delete a part of what is older than the setting says; where that was all it is looked for again in an hour.

        Raises:
            UnavailableError: the database does not answer.
        """
        oldest = text_of(utc_now() - self._keeping)
        with self._database.writing() as connection:
            pruned = sweep(connection, AUDIT, AUDIT.c.at < oldest, most=PRUNED_AT_ONCE)
        if pruned < PRUNED_AT_ONCE:
            self._pruned_at = time.monotonic()

    def page(self, cursor: str | None, limit: int, job: str | None = None) -> AuditPage:
        """Up to `limit` records behind `cursor`, of one job or of all, up to the last that this process made.

        Raises:
            InvalidInputError: the cursor is of another list.
        """
        self.write()
        cursors = Cursors("audit", job or "")
        query = select(AUDIT).where(AUDIT.c.number > cursors.number(cursor)).order_by(AUDIT.c.number).limit(limit + 1)
        with self._database.reading() as connection:
            rows = connection.execute(query if job is None else query.where(AUDIT.c.job == job)).all()
        entries = [
            AuditEntry(number=row.number, record=AuditRecord(**{name: row._mapping[name] for name in _names()})) for row in rows
        ]
        more = len(entries) > limit
        return AuditPage(entries=tuple(entries[:limit]), next_cursor=cursors.after(entries[limit - 1].number) if more else None)

    def _written(self, connection: Connection) -> frozenset[str]:
        """Requests of the records that were written since the write before failed, by whomever; none where it did not."""
        if self._before is None:
            self._before = connection.execute(select(func.max(AUDIT.c.number))).scalar_one() or 0
            return frozenset()
        return frozenset(connection.execute(select(AUDIT.c.request).where(AUDIT.c.number > self._before)).scalars())

    def _seconds_to_pruning(self) -> float:
        return max(0.0, self._pruned_at + PRUNE_SECONDS - time.monotonic())


def _names() -> Sequence[str]:
    return [field.name for field in fields(AuditRecord)]
