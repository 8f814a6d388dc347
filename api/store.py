"""Durable storage: every write is one transaction that is on disk before the caller goes on."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, func, insert, select

from api.database import Database
from api.history import Entry
from api.recent import Recent
from api.shelf import Shelf
from api.statements import ADD_DECISION, ADD_DOCUMENT, ADD_ENTRIES, ADD_KEY, DOCUMENT, ENTRIES_AFTER, ENTRIES_OF_EVENTS, KEY
from api.stored import Document, StoredDecision, StoredJob, WriteKey
from api.tables import DECISIONS, DOCUMENTS, JOBS, LOG
from api.upgrade import upgrade
from api.wording import Wording
from kintsugi.core import codec
from kintsugi.core.checks import LARGEST_INTEGER
from kintsugi.core.errors import ConflictError, NotFoundError
from kintsugi.core.membership import Event
from kintsugi.core.messages import Report

T = TypeVar("T")

EVENT, REPORT = "event", "report"

CACHED_ITEMS = 512
"""Immutable decisions and documents kept in memory."""


class Store:
    """Jobs, their logs and decisions in one SQL database."""

    def __init__(self, database_url: str) -> None:
        self._database = Database(database_url)
        self.shelf = Shelf(self._database)
        self._decisions: Recent[tuple[str, int], StoredDecision] = Recent(CACHED_ITEMS)
        self._decoded: Callable[[Any, str], Any] = lru_cache(CACHED_ITEMS)(self._decode)

    @property
    def database(self) -> Database:
        """Where everything is stored, for what is no part of a job's log."""
        return self._database

    @property
    def database(self) -> Database:
        """Where everything is stored, for what is no part of a job's log."""
        return self._database

    def open(self) -> None:
        """Bring the schema up to this version.

        Raises:
            InvalidInputError: the database is of a later version, or was not made by this program.
            UnavailableError: the database does not answer.
        """
        upgrade(self._database)

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()

    def ping(self) -> None:
        """Read something.

        Raises:
            UnavailableError: the database does not answer.
        """
        with self._database.reading() as connection:
            connection.execute(select(JOBS.c.id).limit(1))

    def create(self, job: StoredJob, documents: Sequence[Document], decision: StoredDecision, key: WriteKey | None) -> None:
        """Store a job with its first decision.

        Raises:
            OvertakenError: a job with this id is there already.
        """
        with self._database.writing() as connection:
            for document in sorted(documents, key=lambda document: document.digest):  # one order for all: no deadlock
                _put(connection, document)
            connection.execute(insert(JOBS), codec.encode(job))
            connection.execute(ADD_DECISION, _row_of_decision(job.id, decision))
            _remember(connection, key, job.id, 0)

    def append(
        self,
        job: str,
        entries: Sequence[Entry],
        *,
        documents: Sequence[Document] = (),
        decision: StoredDecision | None = None,
        key: WriteKey | None = None,
    ) -> None:
        """Append entries to a job's log, with the decision they led to, in one transaction.

        Raises:
            OvertakenError: another writer used one of the numbers, event ids or generations first.
        """
        with self._database.writing() as connection:
            for document in documents:
                _put(connection, document)
            connection.execute(ADD_ENTRIES, [_row_of(job, entry) for entry in entries])
            if decision is not None:
                connection.execute(ADD_DECISION, _row_of_decision(job, decision))
            _remember(connection, key, job, entries[-1].number)
        if decision is not None:
            self._decisions.put((job, decision.generation), decision)

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

    def job_ids(self, *, after: str, limit: int) -> list[str]:
        """Ids of jobs, ascending, above `after`."""
        query = select(JOBS.c.id).where(JOBS.c.id > after).order_by(JOBS.c.id).limit(limit)
        with self._database.reading() as connection:
            return list(connection.execute(query).scalars())

    def entries(self, job: str, *, after: int = 0, kind: str | None = None, limit: int | None = None) -> list[Entry]:
        """Log entries of a job above number `after`, ascending."""
        query = ENTRIES_AFTER if kind is None else ENTRIES_AFTER.where(LOG.c.kind == kind)
        most = LARGEST_INTEGER if limit is None else limit
        with self._database.reading() as connection:
            return [_entry_of(row) for row in connection.execute(query, {"job": job, "after": after, "most": most})]

    def entry(self, job: str, number: int) -> Entry:
        """One log entry of a job."""
        return self.entries(job, after=number - 1, limit=1)[0]

    def entries_of_events(self, job: str, event_ids: Sequence[str]) -> dict[str, Entry]:
        """Log entries by event id, of those ids that were seen."""
        found: dict[str, Entry] = {}
        with self._database.reading() as connection:
            for start in range(0, len(event_ids), 500):
                asked = {"job": job, "event_ids": event_ids[start : start + 500]}
                found.update({row.event_id: _entry_of(row) for row in connection.execute(ENTRIES_OF_EVENTS, asked)})
        return found

    def latest_generations(self, jobs: Sequence[str]) -> dict[str, int]:
        """Generation of each job's latest decision."""
        query = select(DECISIONS.c.job, func.max(DECISIONS.c.generation)).where(DECISIONS.c.job.in_(jobs)).group_by(DECISIONS.c.job)
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
            raise ConflictError("was used for another request; choose a new key", field="Idempotency-Key", value=key.key)
        return row.job, row.number

    def decision(self, job: str, generation: int) -> StoredDecision:
        """The decision of one generation of a job.

        Raises:
            NotFoundError: nothing was decided for this generation.
        """
        decision = self._decisions.get((job, generation)) or self._read_decision(job, generation)
        self._decisions.put((job, generation), decision)
        return decision

    def kept_decision(self, job: str, generation: int) -> StoredDecision | None:
        """The decision of one generation of a job, if it is in memory."""
        return self._decisions.get((job, generation))

    def document(self, kind: type[T], digest: str) -> T:
        """The document of this digest, decoded once."""
        result: T = self._decoded(kind, digest)
        return result

    def _decode(self, kind: type[T], digest: str) -> T:
        return codec.loads(kind, self._read_body(digest))

    def _read_body(self, digest: str) -> str:
        with self._database.reading() as connection:
            body: str = connection.execute(select(DOCUMENTS.c.body).where(DOCUMENTS.c.digest == digest)).scalar_one()
        return body

    def _read_decision(self, job: str, generation: int) -> StoredDecision:
        query = select(DECISIONS).where(DECISIONS.c.job == job, DECISIONS.c.generation == generation)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFoundError(f"job {job!r} has no decision of this generation", field="generation", value=generation)
        return _decision_of(row)


def _row_of_decision(job: str, decision: StoredDecision) -> dict[str, Any]:
    row = codec.encode(decision)
    return {"job": job, **row.pop("wording"), **row}


def _decision_of(row: Row[Any]) -> StoredDecision:
    values = {name: value for name, value in row._mapping.items() if name != "job"}
    return StoredDecision(wording=Wording(brief=values.pop("brief"), account=values.pop("account")), **values)


def _put(connection: Connection, document: Document) -> None:
    if connection.execute(DOCUMENT, {"digest": document.digest}).first() is None:
        connection.execute(ADD_DOCUMENT[connection.dialect.name], codec.encode(document))


def _remember(connection: Connection, key: WriteKey | None, job: str, number: int) -> None:
    if key is not None:
        connection.execute(ADD_KEY, {**codec.encode(key), "job": job, "number": number})


def _row_of(job: str, entry: Entry) -> dict[str, Any]:
    is_event = isinstance(entry.content, Event)
    return {
        "job": job,
        "number": entry.number,
        "kind": EVENT if is_event else REPORT,
        "event_id": entry.content.id if isinstance(entry.content, Event) else None,
        "body": codec.dumps(entry.content),
        "received_at": entry.received_at,
        "generation": entry.generation,
        "decided": entry.decided,
        "problem": None if entry.problem is None else codec.dumps(entry.problem),
    }


def _entry_of(row: Row[Any]) -> Entry:
    content: Event | Report = codec.loads(Event, row.body) if row.kind == EVENT else codec.loads(Report, row.body)
    return Entry(
        number=row.number,
        received_at=row.received_at,
        content=content,
        generation=row.generation,
        decided=row.decided,
        problem=None if row.problem is None else json.loads(row.problem),
    )
