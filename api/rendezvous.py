"""Where torchrun's agents meet: small values by run and key, changed only by those who know the version they replace.

The service does not look into the values; torch's own rendezvous keeps its state in one of them and changes it by
compare-and-swap, which the version makes sure of over several processes of the service. Values of runs that nobody changed
for a week are forgotten. A write whose answer was lost is asked for again with its `Idempotency-Key`: it is remembered for
`REPEATED`, much longer than clients go on asking, and by the row that says so in the transaction that wrote.
"""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, insert, select, update

from api.access.callers import own_key, shown_key
from api.storage.database import Database, OvertakenError
from api.storage.sweeping import sweep
from api.storage.tables import RENDEZVOUS, RENDEZVOUS_WRITES
from kintsugi.core import checks, codec
from kintsugi.core.errors import ConflictError, InvalidInputError, NotFoundError
from kintsugi.core.profile import PYDANTIC_CONFIG

T = TypeVar("T")

MOST_BYTES = 262_144
MOST_LETTERS = 200
KEPT = timedelta(days=7)
SWEPT_AT_ONCE = 1_000
"""Old values, and old writes, that are deleted as a new key is set."""
REPEATED = timedelta(minutes=10)
"""How long a write that is asked for again is known; torchrun's agents go on for two minutes at most."""
DROPPED = "dropped"
"""In the place of the digest of what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingWrite:
    """What to put under a key, and what it may replace."""

    __pydantic_config__ = PYDANTIC_CONFIG

    value: str
    """Base64, at most 256 KiB once decoded."""
    expected_version: int | None = None
    """Of what is replaced; 0 where nothing may be there; null replaces anything."""
    generation: int = 0
    """Round of the rendezvous that the value belongs to."""

    def __post_init__(self) -> None:
        checks.non_negative("generation", self.generation)
        if self.expected_version is not None:
            checks.non_negative("expected_version", self.expected_version)
        if len(self.content) > MOST_BYTES:
            raise InvalidInputError(f"must be at most {MOST_BYTES} bytes", field="value", value=len(self.content))

    @property
    def content(self) -> bytes:
        """The value itself."""
        try:
            return base64.b64decode(self.value, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInputError("is no base64", field="value", value=self.value[:100]) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What is under a key now."""

    __pydantic_config__ = PYDANTIC_CONFIG

    run: str
    key: str
    value: str
    """Base64."""
    version: int
    """From 1, one more with every change."""
    generation: int
    """Round of the rendezvous that the value belongs to."""
    is_set: bool = True
    """Whether a write took effect; where it did not, this is what stands in its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One write that is asked for, perhaps not for the first time."""

    run: str
    key: str
    own_key: str | None
    """The `Idempotency-Key` that it came with, if any."""
    digest: str
    at: datetime
    """In UTC, by the clock that all processes on the database share, for their texts are compared."""

    def made(self, connection: Connection) -> int | None:
        """The version that it made when it was asked for before; None where it did nothing yet.

        Raises:
            ConflictError: its key came with another write.
        """
        if self.own_key is None:
            return None
        columns = RENDEZVOUS_WRITES.c
        mine = and_(self.place(RENDEZVOUS_WRITES), columns.write == self.own_key)
        row = connection.execute(select(columns.digest, columns.version).where(mine)).one_or_none()
        if row is None:
            return None
        if row.digest != self.digest:
            message, shown = "was used for another request; choose a new key", shown_key(self.own_key)
            raise ConflictError(message, field="Idempotency-Key", value=shown)
        version: int = row.version
        return version

    def remember(self, connection: Connection, version: int) -> None:
        """Note the version that it made, and forget those that nobody asks for again."""
        if self.own_key is None:
            return
        old = RENDEZVOUS_WRITES.c.changed_at < (self.at - REPEATED).isoformat()
        connection.execute(delete(RENDEZVOUS_WRITES).where(self.place(RENDEZVOUS_WRITES), old))
        row = {"run": self.run, "key": self.key, "write": self.own_key, "digest": self.digest}
        connection.execute(insert(RENDEZVOUS_WRITES), {**row, "version": version, "changed_at": self.at.isoformat()})

    def place(self, table: Table) -> ColumnElement[bool]:
        """The rows of its key."""
        return _at(table, self.run, self.key)


class Meetings:
    """The values of all runs, in the service's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def look(self, run: str, key: str) -> Meeting:
        """What is under a key.

        Raises:
            NotFoundError: nothing is.
        """
        with self._database.reading() as connection:
            found = _found(connection, run, key)
        if found is None:
            raise NotFoundError("nobody has set it", field="key", value=key)
        return found

    def put(self, run: str, key: str, write: MeetingWrite, idempotency_key: str | None = None) -> Meeting:
        """Put a value under a key if its version is the expected one; else what is there, `is_set` false.

        Raises:
            ConflictError: the idempotency key came with another write.
            OvertakenError: other writers were in the way twice; ask again.
        """
        asked = self._asked(run, key, idempotency_key, codec.digest(write))
        return _done(lambda: self._put(asked, write))

    def drop(self, run: str, key: str, idempotency_key: str | None = None) -> None:
        """Forget what is under a key, if anything is.

        Raises:
            ConflictError: the idempotency key came with another write.
            OvertakenError: other writers were in the way twice; ask again.
        """
        asked = self._asked(run, key, idempotency_key, DROPPED)
        _done(lambda: self._drop(asked))

    def _asked(self, run: str, key: str, idempotency_key: str | None, digest: str) -> _Asked:
        own, at = own_key(idempotency_key), self._database.now().astimezone(UTC)
        return _Asked(run=run, key=key, own_key=own, digest=digest, at=at)

    def _put(self, asked: _Asked, write: MeetingWrite) -> Meeting:
        with self._database.writing() as connection:
            found = _found(connection, asked.run, asked.key, locked=True)
            version = asked.made(connection)
            if version is None:
                present = 0 if found is None else found.version
                if write.expected_version not in (None, present):
                    return _refused(asked.run, asked.key, found)
                version = present + 1
                _set(connection, asked, write, version)
                asked.remember(connection, version)
        return Meeting(run=asked.run, key=asked.key, value=write.value, version=version, generation=write.generation)

    def _drop(self, asked: _Asked) -> None:
        with self._database.writing() as connection:
            _found(connection, asked.run, asked.key, locked=True)
            if asked.made(connection) is None:
                connection.execute(delete(RENDEZVOUS).where(asked.place(RENDEZVOUS)))
                asked.remember(connection, 0)


def _done(write: Callable[[], T]) -> T:
    """What comes of a write; where no row was there to wait for, of two the one that was overtaken looks again."""
    try:
        return write()
    except OvertakenError:
        return write()


def _at(table: Table, run: str, key: str) -> ColumnElement[bool]:
    return and_(table.c.run == run, table.c.key == key)


def _found(connection: Connection, run: str, key: str, *, locked: bool = False) -> Meeting | None:
    """What is under a key; `locked` keeps other writers waiting until the transaction ends."""
    statement = select(RENDEZVOUS).where(_at(RENDEZVOUS, run, key))
    row = connection.execute(statement.with_for_update() if locked else statement).one_or_none()
    if row is None:
        return None
    value = base64.b64encode(row.value).decode()
    return Meeting(run=run, key=key, value=value, version=row.version, generation=row.generation)


def _set(connection: Connection, asked: _Asked, write: MeetingWrite, version: int) -> None:
    row = {"value": write.content, "version": version, "generation": write.generation, "changed_at": asked.at.isoformat()}
    if version > 1:
        connection.execute(update(RENDEZVOUS).where(asked.place(RENDEZVOUS)).values(row))
        return
    connection.execute(insert(RENDEZVOUS), {"run": asked.run, "key": asked.key, **row})
    for table in (RENDEZVOUS, RENDEZVOUS_WRITES):
        sweep(connection, table, table.c.changed_at < (asked.at - KEPT).isoformat(), most=SWEPT_AT_ONCE)


def _refused(run: str, key: str, found: Meeting | None) -> Meeting:
    if found is None:
        return Meeting(run=run, key=key, value="", version=0, generation=0, is_set=False)
    return Meeting(run=run, key=key, value=found.value, version=found.version, generation=found.generation, is_set=False)
