"""Durable storage: every write is one transaction that is on disk before the caller goes on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection, delete, func, insert, select

from api.access.callers import caller, shown_key
from api.jobs.history import Entry, History
from api.storage import states
from api.storage.agenda import Agenda, move
from api.storage.continuity import Head, Mark, SetBackError, moved, set_back
from api.storage.database import Database
from api.storage.engines import DATABASE_FIELD
from api.storage.grouping import GroupCommit
from api.storage.legible import contradictory, loaded
from api.storage.positions import numbered
from api.storage.recent import Recent
from api.storage.rows import decision_of, entry_of, row_of_decision, row_of_entry, row_of_history
from api.storage.shelf import Shelf
from api.storage.statements import (
    ADD_DECISION,
    ADD_ENTRIES,
    ADD_KEY,
    ADD_STATE,
    DECIDED_AT,
    DOCUMENT,
    ENTRIES_AFTER,
    ENTRIES_OF_EVENTS,
    KEY,
    LATEST_STATE,
    STATES_AT,
    add_document,
)
from api.storage.stored import Appointment, Document, StoredDecision, StoredJob, WriteKey
from api.storage.tables import CONTINGENCIES, DECISIONS, DOCUMENTS, ENDINGS, JOBS, LOG
from api.storage.upgrade import require_current, require_unchanged, upgrade
from kintsugi.core import codec
from kintsugi.core.checks import LARGEST_INTEGER
from kintsugi.core.ending import Ending
from kintsugi.core.errors import ConflictError, NotFoundError, UnavailableError
from kintsugi.core.version import __version__

T = TypeVar("T")

CACHED_ITEMS = 512
"""Immutable decisions and documents kept in memory."""


class Store:
    """Jobs, their logs and decisions in one SQL database."""

    def __init__(self, database_url: str, *, read_only: bool = False) -> None:
        """Nothing is connected yet; one that is `read_only` never writes, and is refused where it would have to.

        Raises:
            InvalidInputError: the URL cannot be used.
        """
        self._database = Database(database_url, read_only=read_only)
        self._is_read_only = read_only
        self._open = require_current if read_only else upgrade
        self._group = GroupCommit(self._database)
        self.shelf = Shelf(self._database)
        self.agenda = Agenda(self._database)
        self._decisions: Recent[tuple[str, int], StoredDecision] = Recent(CACHED_ITEMS)
        self._decoded: Callable[[Any, str], Any] = lru_cache(CACHED_ITEMS)(self._decode)
        self._mark = Mark()
        self._forgetful: list[Callable[[], None]] = [self._forget]
        self.times_set_back = 0
        """How often it was noticed that the database was emptied or set back."""

    @property
    def database(self) -> Database:
        """Where everything is stored, for what is no part of a job's log."""
        return self._database

    def open(self) -> None:
        """Bring the schema up to this version; where it is only read, require that it is.

        Raises:
            InvalidInputError: the database is of another version, or was not made by this program.
            UnavailableError: the database does not answer, or cannot be written and is not opened to be read alone.
        """
        self._open(self._database)
        self._database.fill()
        if not self._is_read_only:
            self._database.require_writable()

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()

    def ping(self) -> None:
        """Look whether the database can be used.

        Raises:
            UnavailableError: it is not of this program's version any more, can only be read, does not answer, or takes nothing: a
                write failed, and so does the one that is tried.
        """
        with self._database.reading():
            self.ping_to_read()
            self._database.require_writable()
        self._database.require_written()

    def ping_to_read(self) -> None:
        """Look whether the database can be read.

        Raises:
            UnavailableError: it is not of this program's version any more, or does not answer.
        """
        require_unchanged(self._database)

    def when_set_back(self, forget: Callable[[], None]) -> None:
        """Have `forget` called, in any thread, once what was read or written is not there any more."""
        self._forgetful.append(forget)

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """What notices within this that the database was set back has everything forgotten that follows from it."""
        try:
            yield
        except SetBackError as error:
            self.times_set_back += 1
            for forget in self._forgetful:
                forget()
            structlog.get_logger("kintsugi.api").error("the database was set back", reason=error.message)
            raise

    def look_back(self) -> None:
        """Look whether the database still holds what was the last entry of all at the look before; by one thread at a time.

        Raises:
            SetBackError: it does not.
            UnavailableError: it does not answer, or can only be read.
        """
        self._database.look_at_file()
        with self.noticing(), self._database.reading() as connection:
            self._database.require_writable()
            self._mark = moved(connection, self._mark)

    def create(self, job: StoredJob, documents: Sequence[Document], decision: StoredDecision, key: WriteKey | None) -> None:
        """Store a job with its first decision.

        Raises:
            OvertakenError: a job with this id is there already.
        """
        with self._database.writing() as connection:
            for document in sorted(documents, key=lambda document: document.digest):  # one order for all: no deadlock
                _put(connection, document)
            connection.execute(insert(JOBS), codec.encode(job))
            connection.execute(ADD_DECISION, row_of_decision(job.id, decision))
            _remember(connection, key, job.id, 0)

    def append(
        self,
        job: str,
        head: Head,
        entries: Sequence[Entry],
        *,
        documents: Sequence[Document] = (),
        decision: StoredDecision | None = None,
        key: WriteKey | None = None,
        history: History | None = None,
        deadline: Appointment | None = None,
    ) -> None:
        """Append entries to a job's log, with the decision they led to, in one transaction.

        Args:
            job: id of the job.
            head: of its log, as the entries were made for it.
            entries: with the numbers that follow the head's.
            documents: that the decision refers to.
            decision: that the last entry led to.
            key: under which the write is remembered.
            history: after the last entry; it is stored where it is due.
            deadline: how the job's next one moves.

        Raises:
            TakenError: another writer used one of the numbers, event ids or generations first.
            OvertakenError: another writer was in the way.
            SetBackError: the log does not hold its head any more.
        """

        def work(connection: Connection) -> None:
            for document in documents:
                _put(connection, document)
            connection.execute(ADD_ENTRIES, numbered(connection, job, head, [row_of_entry(job, entry) for entry in entries]))
            if decision is not None:
                connection.execute(ADD_DECISION, row_of_decision(job, decision))
            if history is not None and states.is_due(head.number, history.number):
                connection.execute(ADD_STATE, row_of_history(job, history))
            if deadline is not None:
                move(connection, job, deadline.before, deadline.after)
            if isinstance(entries[-1].content, Ending):
                _end(connection, job, entries[-1].received_at)
            _remember(connection, key, job, entries[-1].number)

        decisions = self._decisions
        with self.noticing():
            self._group.write(work)
        if decision is not None:
            decisions.put((job, decision.generation), decision)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Makes all that this thread reads within one transaction."""
        with self._database.reading():
            yield

    def job(self, job: str) -> StoredJob | None:
        """The job of this id, if there is one."""
        with self._database.reading() as connection:
            row = connection.execute(select(JOBS).where(JOBS.c.id == job)).one_or_none()
        return None if row is None else StoredJob(**row._mapping)

    def num_jobs(self) -> int:
        """How many jobs go on, whoever asks."""
        with self._database.reading() as connection:
            begun, ended = (connection.execute(select(func.count()).select_from(of)).scalar_one() for of in (JOBS, ENDINGS))
        return begun - ended

    def job_ids(self, *, after: str, limit: int, ended: bool | None = None) -> list[str]:
        """Ids of jobs that the caller may know of, ascending, above `after`; where `ended` says so only the ended or the others."""
        query = select(JOBS.c.id).where(JOBS.c.id > after).order_by(JOBS.c.id).limit(limit)
        if ended is not None:
            is_over = select(ENDINGS.c.job).where(ENDINGS.c.job == JOBS.c.id).exists()
            query = query.where(is_over if ended else ~is_over)
        if (only := caller().only_job) is not None:
            query = query.where(JOBS.c.id == only)
        with self._database.reading() as connection:
            return list(connection.execute(query).scalars())

    def entries(self, job: str, *, after: int = 0, kind: str | None = None, limit: int | None = None) -> list[Entry]:
        """Log entries of a job above number `after`, ascending."""
        query = ENTRIES_AFTER if kind is None else ENTRIES_AFTER.where(LOG.c.kind == kind)
        most = LARGEST_INTEGER if limit is None else limit
        with self._database.reading() as connection:
            return [entry_of(row) for row in connection.execute(query, {"job": job, "after": after, "most": most})]

    def entries_behind(self, job: str, head: Head) -> list[Entry]:
        """Log entries of a job behind its `head`, ascending.

        Raises:
            SetBackError: the log does not hold its head any more.
        """
        with self._database.reading() as connection:
            rows = head.rows_from(connection, job)
        if not head.is_in(rows[0] if rows else None):
            self._require(job, head)
        return [entry_of(row) for row in rows if row.number is not None and row.number > head.number]

    def num_entries(self, job: str) -> int:
        """How many entries a job's log has."""
        query = select(func.max(LOG.c.number)).where(LOG.c.job == job)
        with self._database.reading() as connection:
            return connection.execute(query).scalar_one() or 0

    def entry(self, job: str, number: int) -> Entry:
        """One log entry of a job, which what is stored beside the log names.

        Raises:
            ContradictoryError: the log does not hold it.
        """
        found = self.entries(job, after=number - 1, limit=1)
        if not found or found[0].number != number:
            raise contradictory(job, f"entry {number} is named, and not in its log")
        return found[0]

    def latest_history(self, job: str) -> History | None:
        """The newest of a job's stored histories, if this version of the program stored any."""
        with self._database.reading() as connection:
            row = connection.execute(LATEST_STATE, {"job": job, "planner_version": __version__}).one_or_none()
        return None if row is None else states.unpacked(row.history)

    def kept_histories(self, job: str, numbers: Sequence[int]) -> dict[int, History]:
        """The histories that this version of the program stored with log entries `numbers`, by number."""
        asked = {"job": job, "numbers": numbers, "planner_version": __version__}
        with self._database.reading() as connection:
            found = ((row.number, states.unpacked(row.history)) for row in connection.execute(STATES_AT, asked))
            return {number: history for number, history in found if history is not None}

    def entries_of_events(self, job: str, event_ids: Sequence[str]) -> dict[str, Entry]:
        """Log entries by event id, of those ids that were seen."""
        found: dict[str, Entry] = {}
        with self._database.reading() as connection:
            for start in range(0, len(event_ids), 500):
                asked = {"job": job, "event_ids": event_ids[start : start + 500]}
                found.update({row.event_id: entry_of(row) for row in connection.execute(ENTRIES_OF_EVENTS, asked)})
        return found

    def latest_numbers(self, jobs: Sequence[str]) -> dict[str, int]:
        """Number of the last entry of each job's log; 0 where nothing was logged."""
        latest = select(func.max(LOG.c.number)).where(LOG.c.job == JOBS.c.id).scalar_subquery()
        query = select(JOBS.c.id, func.coalesce(latest, 0)).where(JOBS.c.id.in_(jobs))
        with self._database.reading() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def latest_generations(self, jobs: Sequence[str]) -> dict[str, int]:
        """Generation of each job's latest decision."""
        latest = select(func.max(DECISIONS.c.generation)).where(DECISIONS.c.job == JOBS.c.id).scalar_subquery()
        query = select(JOBS.c.id, latest).where(JOBS.c.id.in_(jobs))
        with self._database.reading() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def remembered(self, key: WriteKey | None) -> tuple[str, int] | None:
        """Job and log number of the write that this key stood for.

        Raises:
            ConflictError: the key came with another request before.
        """
        if key is None:
            return None
        with self._database.reading() as connection:
            row = connection.execute(KEY, {"scope": key.scope, "key": key.key}).one_or_none()
        if row is None:
            return None
        if row.request_digest != key.request_digest:
            raise ConflictError("was used for another request; choose a new key", field="Idempotency-Key", value=shown_key(key.key))
        return row.job, row.number

    def decision(self, job: str, generation: int) -> StoredDecision:
        """The decision of one generation of a job.

        Raises:
            NotFoundError: nothing was decided for this generation.
        """
        decisions = self._decisions  # another one takes its place where this is read of a past that is forgotten meanwhile
        decision = decisions.get((job, generation)) or self._read_decision(job, generation)
        decisions.put((job, generation), decision)
        return decision

    def present_decision(self, job: str, generation: int) -> StoredDecision:
        """As `decision`, for those who do not look at the job first: not of a past that the database does not hold any more.

        Raises:
            NotFoundError: nothing was decided for this generation.
            SetBackError: what is in memory was, and is not there any more.
        """
        decision = self.decision(job, generation)
        with self._database.reading() as connection:
            at = connection.execute(DECIDED_AT, {"job": job, "generation": generation}).scalar_one_or_none()
        if at != decision.decided_at:
            self._require(job, Head(number=decision.number, at=decision.decided_at))
        return decision

    def kept_decision(self, job: str, generation: int) -> StoredDecision | None:
        """The decision of one generation of a job, if it is in memory."""
        return self._decisions.get((job, generation))

    def document(self, kind: type[T], digest: str) -> T:
        """The document of this digest, decoded once."""
        result: T = self._decoded(kind, digest)
        return result

    def body(self, digest: str) -> str:
        """The text of the document that is stored under this digest.

        Raises:
            UnavailableError: it is not there any more: the database was set back a moment ago.
        """
        with self._database.reading() as connection:
            body: str | None = connection.execute(select(DOCUMENTS.c.body).where(DOCUMENTS.c.digest == digest)).scalar_one_or_none()
        if body is None:
            raise UnavailableError("what a job refers to is not there: the database was emptied or set back", field=DATABASE_FIELD)
        return body

    def _require(self, job: str, head: Head) -> None:
        """Require a job's log to hold its head now: what a longer read sees may be of a time before it."""
        with self.noticing():
            if self._database.is_reading:
                with self._database.reading_anew() as connection:
                    if head.is_in(next(iter(head.rows_from(connection, job)), None)):
                        return
            raise set_back(job, head)

    def _forget(self) -> None:
        self._decisions, self._mark = Recent(CACHED_ITEMS), Mark()

    def _decode(self, kind: type[T], digest: str) -> T:
        return loaded(kind, self.body(digest))

    def _read_decision(self, job: str, generation: int) -> StoredDecision:
        query = select(DECISIONS).where(DECISIONS.c.job == job, DECISIONS.c.generation == generation)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFoundError(f"job {job!r} has no decision of this generation", field="generation", value=generation)
        return decision_of(row)


def _put(connection: Connection, document: Document) -> None:
    if connection.execute(DOCUMENT, {"digest": document.digest}).first() is None:
        connection.execute(add_document(connection.dialect.name), codec.encode(document))


def _end(connection: Connection, job: str, at: str) -> None:
    """Note that a job has ended, and drop what was made ahead for it."""
    connection.execute(insert(ENDINGS), {"job": job, "ended_at": at})
    connection.execute(delete(CONTINGENCIES).where(CONTINGENCIES.c.job == job))


def _remember(connection: Connection, key: WriteKey | None, job: str, number: int) -> None:
    if key is not None:
        connection.execute(ADD_KEY, {**codec.encode(key), "job": job, "number": number})
