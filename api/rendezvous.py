"""Where torchrun's agents meet: small values by run and key, changed only by those who know the version they replace.

The service does not look into the values; torch's own rendezvous keeps its state in one of them and changes it by
compare-and-swap, which the version makes sure of over several processes of the service. Values of runs that nobody changed
for a week are forgotten.
"""

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, delete, insert, select, update

from api.storage.database import Database, OvertakenError
from api.storage.tables import RENDEZVOUS
from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError, NotFoundError
from kintsugi.core.profile import PYDANTIC_CONFIG

MOST_BYTES = 262_144
MOST_LETTERS = 200
KEPT = timedelta(days=7)


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

    def put(self, run: str, key: str, write: MeetingWrite) -> Meeting:
        """Put a value under a key if its version is the expected one; else what is there, `is_set` false.

        Raises:
            OvertakenError: another writer was in the way; ask again.
        """
        now = datetime.now(UTC)
        with self._database.writing() as connection:
            found = _found(connection, run, key)
            present = 0 if found is None else found.version
            if write.expected_version not in (None, present):
                return _refused(run, key, found)
            row = {
                "run": run,
                "key": key,
                "value": write.content,
                "version": present + 1,
                "generation": write.generation,
                "changed_at": now.isoformat(),
            }
            if found is None:
                connection.execute(insert(RENDEZVOUS), row)
                connection.execute(delete(RENDEZVOUS).where(RENDEZVOUS.c.changed_at < (now - KEPT).isoformat()))
            else:
                _replace(connection, row, present)
        return Meeting(run=run, key=key, value=write.value, version=present + 1, generation=write.generation)

    def drop(self, run: str, key: str) -> None:
        """Forget what is under a key, if anything is."""
        with self._database.writing() as connection:
            connection.execute(delete(RENDEZVOUS).where(RENDEZVOUS.c.run == run, RENDEZVOUS.c.key == key))


def _found(connection: Connection, run: str, key: str) -> Meeting | None:
    statement = select(RENDEZVOUS).where(RENDEZVOUS.c.run == run, RENDEZVOUS.c.key == key)
    row = connection.execute(statement).one_or_none()
    if row is None:
        return None
    value = base64.b64encode(row.value).decode()
    return Meeting(run=run, key=key, value=value, version=row.version, generation=row.generation)


def _replace(connection: Connection, row: dict[str, object], version: int) -> None:
    columns = RENDEZVOUS.c
    mine = (columns.run == row["run"]) & (columns.key == row["key"]) & (columns.version == version)
    if connection.execute(update(RENDEZVOUS).where(mine).values(**row)).rowcount != 1:
        raise OvertakenError("another writer was first; try again")


def _refused(run: str, key: str, found: Meeting | None) -> Meeting:
    if found is None:
        return Meeting(run=run, key=key, value="", version=0, generation=0, is_set=False)
    return Meeting(run=run, key=key, value=found.value, version=found.version, generation=found.generation, is_set=False)
