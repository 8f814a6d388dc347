"""The log of each overlay on the disk: append-only, one line for each event, with the overlay that it led to beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Row, bindparam, func, insert, select, union, update

from api.access.callers import caller
from api.storage.database import Database, OvertakenError
from api.storage.legible import loaded
from api.storage.tables import OVERLAY_LOG, OVERLAYS
from kintsugi.core import codec
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEntry, OverlayEvent

ADD_ENTRY, ADD_OVERLAY = insert(OVERLAY_LOG), insert(OVERLAYS)
PRESENT = select(OVERLAYS).where(OVERLAYS.c.job == bindparam("name"))
ENTRIES_AFTER = (
    select(OVERLAY_LOG)
    .where(OVERLAY_LOG.c.job == bindparam("name"), OVERLAY_LOG.c.number > bindparam("after"))
    .order_by(OVERLAY_LOG.c.number)
    .limit(bindparam("most"))
)
ENTRY_OF_EVENT = select(OVERLAY_LOG).where(OVERLAY_LOG.c.job == bindparam("name"), OVERLAY_LOG.c.event_id == bindparam("event"))
REPLACE = (
    update(OVERLAYS)
    .where(OVERLAYS.c.job == bindparam("name"), OVERLAYS.c.number == bindparam("before"))
    .values(number=bindparam("new_number"), generation=bindparam("new_generation"), body=bindparam("new_body"))
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Page:
    """An overlay as it stands after a line of its log, and as it is sent."""

    number: int
    overlay: Overlay
    body: bytes
    """Canonical JSON."""

    @classmethod
    def of(cls, number: int, overlay: Overlay) -> "Page":
        """The page of an overlay, put into words once."""
        return cls(number=number, overlay=overlay, body=codec.dumps(overlay).encode())


class Book:
    """Logs and overlays of all jobs in the service's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, job: str, known: Page | None = None) -> Page | None:
        """The present page of `job`; `known` itself where it is that, None before the first event.

        Raises:
            UnavailableError: the database does not answer.
        """
        with self._database.reading() as connection:
            row = connection.execute(PRESENT, {"name": job}).one_or_none()
        if row is None:
            return None
        body = row.body.encode()
        if known is not None and (known.number, known.body) == (row.number, body):  # as long a log may be of another past
            return known
        return Page(number=row.number, overlay=loaded(Overlay, row.body), body=body)

    def append(self, job: str, entry: OverlayEntry, page: Page) -> None:
        """Write one line and the page after it, durably.

        Raises:
            OvertakenError: another writer was first with this number or event.
        """
        row = {
            "job": job,
            "number": entry.number,
            "event_id": entry.event.id,
            "body": codec.dumps(entry.event),
            "at": entry.at,
            "term": entry.term,
            "generation": entry.generation,
        }
        with self._database.writing() as connection:
            connection.execute(ADD_ENTRY, row)
            _put_page(connection, job, entry, page)

    def entry(self, job: str, event: str) -> OverlayEntry | None:
        """The line of the event of this id, if there is one."""
        with self._database.reading() as connection:
            row = connection.execute(ENTRY_OF_EVENT, {"name": job, "event": event}).one_or_none()
        return None if row is None else _entry_of(row)

    def entries(self, job: str, after: int, limit: int) -> tuple[OverlayEntry, ...]:
        """Up to `limit` lines behind number `after`."""
        with self._database.reading() as connection:
            return tuple(_entry_of(row) for row in connection.execute(ENTRIES_AFTER, {"name": job, "after": after, "most": limit}))

    def last_number(self, job: str) -> int:
        """The number of the last line of a log, 0 where there is none."""
        with self._database.reading() as connection:
            return connection.execute(select(func.max(OVERLAY_LOG.c.number)).where(OVERLAY_LOG.c.job == job)).scalar_one() or 0

    def jobs(self) -> list[str]:
        """The jobs that have an overlay, or lines of a log of one; ascending."""
        with self._database.reading() as connection:
            return sorted(connection.execute(union(select(OVERLAYS.c.job), select(OVERLAY_LOG.c.job))).scalars())

    def generations(self, jobs: Sequence[str]) -> dict[str, int]:
        """The latest generation of each of `jobs` that has an overlay."""
        query = select(OVERLAYS.c.job, OVERLAYS.c.generation).where(OVERLAYS.c.job.in_(jobs))
        with self._database.reading() as connection:
            return {row.job: row.generation for row in connection.execute(query)}

    def overlays(self, limit: int) -> tuple[Overlay, ...]:
        """Up to `limit` overlays that the caller may know of, by name."""
        query = select(OVERLAYS.c.body).order_by(OVERLAYS.c.job).limit(limit)
        if (only := caller().only_job) is not None:
            query = query.where(OVERLAYS.c.job == only)
        with self._database.reading() as connection:
            return tuple(loaded(Overlay, body) for body in connection.execute(query).scalars())

    def num_overlays(self) -> int:
        """How many overlays there are, whoever asks."""
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(OVERLAYS)).scalar_one()


def _put_page(connection: Connection, job: str, entry: OverlayEntry, page: Page) -> None:
    if entry.number == 1:
        row = {"job": job, "number": 1, "generation": entry.generation, "body": page.body.decode()}
        connection.execute(ADD_OVERLAY, row)
        return
    new = {"new_number": entry.number, "new_generation": entry.generation, "new_body": page.body.decode()}
    if connection.execute(REPLACE, {"name": job, "before": entry.number - 1, **new}).rowcount != 1:
        raise OvertakenError("another writer was first; try again")


def _entry_of(row: Row[tuple[object, ...]]) -> OverlayEntry:
    return OverlayEntry(
        number=row.number, event=loaded(OverlayEvent, row.body), at=row.at, term=row.term, generation=row.generation
    )
