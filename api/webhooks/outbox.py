"""What is on its way: news that are put down once for every webhook, leased to one sender at a time, and settled."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import getitem
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, exists, insert, literal_column, or_, select, tuple_, update

from api.moments import moment_of, text_of
from api.storage.database import Database
from api.storage.legible import legible
from api.storage.sweeping import sweep
from api.storage.tables import DECISIONS, DELIVERIES, LOG, WEBHOOKS
from api.webhooks.hooks import DeliveryStatus, HookKind
from api.webhooks.news import News

KINDS_SEPARATOR = " "
LONGEST_PAUSE_SECONDS = 600.0
"""Between two attempts."""
FAR_SECONDS = LONGEST_PAUSE_SECONDS + 60.0
"""No delivery is due so far ahead, and no lease so long, unless the clock was set back meanwhile."""
MOST_BEHIND = 100
"""Webhooks that are brought up to date in one go."""
RELEASED = {"lease": None, "leased_until": None}
"""Of a delivery about which an attempt that is under way says nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far into its job's past a webhook was told."""

    job: str
    webhook: str
    kinds: str
    """As they are stored."""
    generation: int
    number: int
    """Of the log entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A delivery that this process may send until its lease ends."""

    job: str
    webhook: str
    event: str
    url: str
    secret: str
    body: str
    retry_until: str
    attempts: int
    lease: str
    leased_until: str

    @property
    def message_id(self) -> str:
        """The same at every attempt, and of no other news, also where the database was set back in between."""
        return f"{self.job}.{self.webhook}.{self._told('id') or self.event}"

    @property
    def generation(self) -> int | None:
        """Of the job when it happened; None where the body is not as it was stored."""
        generation: int | None = self._told("data", "generation")
        return generation

    def _told(self, *names: str) -> Any:
        """What stands in the body under these names, one within the other; None where it is not as it was stored."""
        with suppress(LookupError, TypeError, ValueError):
            return reduce(getitem, names, json.loads(self.body))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How a delivery stands after an attempt."""

    status: DeliveryStatus
    attempts: int
    due_at: str
    last_status: int | None
    last_error: str | None


class Outbox:
    """The deliveries of all jobs; safe for several processes on one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> datetime:
        """The present, by which deliveries are due and leases end: the same for all processes.

        Raises:
            UnavailableError: the database does not answer.
        """
        return self._database.now()

    def behind(self, after: tuple[str, str] = ("", "")) -> list[Place]:
        """Webhooks whose jobs have decisions or log entries that they were not told of, up to `MOST_BEHIND`.

        Args:
            after: job and id of the webhook that they come behind, in the order of these.
        """
        newer = exists().where(DECISIONS.c.job == WEBHOOKS.c.job, DECISIONS.c.generation > WEBHOOKS.c.generation)
        later = exists().where(LOG.c.job == WEBHOOKS.c.job, LOG.c.number > WEBHOOKS.c.number)
        order = (WEBHOOKS.c.job, WEBHOOKS.c.id)
        query = select(WEBHOOKS).where(or_(newer, later), tuple_(*order) > after).order_by(*order).limit(MOST_BEHIND)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [Place(job=row.job, webhook=row.id, kinds=row.kinds, generation=row.generation, number=row.number) for row in rows]

    def put(self, place: Place, after: Place, news: Sequence[News], *, now: str, retry_until: str) -> None:
        """Put news down for a webhook and move it from `place` to `after`, unless another process did, or it asks for others now.

        Raises:
            OvertakenError: another process put them down at the same moment.
        """
        columns = WEBHOOKS.c
        here = and_(
            columns.job == place.job,
            columns.id == place.webhook,
            columns.generation == place.generation,
            columns.number == place.number,
            columns.kinds == place.kinds,
        )
        with self._database.writing() as connection:
            moved = connection.execute(update(WEBHOOKS).where(here).values(generation=after.generation, number=after.number))
            if moved.rowcount and news:
                connection.execute(insert(DELIVERIES), [_new_row(place, item, now, retry_until) for item in news])

    def is_due(self, now: str, skipped: Collection[tuple[str, str]], *, most_of_a_job: int | None = None) -> bool:
        """Whether some delivery can be sent now, as `lease` would have it."""
        due = _due(now, skipped, most_of_a_job)
        query: Select[Any] = select(literal_column("1")).select_from(DELIVERIES).where(due).limit(1)
        with self._database.reading() as connection:
            return connection.execute(query).first() is not None

    def lease(
        self,
        now: str,
        until: str,
        lease: str,
        *,
        most: int,
        most_of_a_job: int | None = None,
        skipped: Collection[tuple[str, str]] = (),
    ) -> list[Parcel]:
        """Deliveries that nobody else sends until `until`: of each webhook the one that waits longest.

        Args:
            now: the present.
            until: when others may send them again.
            lease: a name for this lease, never used before.
            most: how many.
            most_of_a_job: how many of one job, those that are skipped included; null for as many as there are.
            skipped: job and id of webhooks that are being sent to already.
        """
        columns = DELIVERIES.c
        query: Select[Any] = (
            select(DELIVERIES, WEBHOOKS.c.url, WEBHOOKS.c.secret)
            .join(WEBHOOKS, and_(WEBHOOKS.c.job == columns.job, WEBHOOKS.c.id == columns.webhook))
            .where(_due(now, skipped, most_of_a_job))
            .order_by(columns.due_at, columns.job, columns.webhook, columns.event)
            .limit(most)
            .with_for_update(of=DELIVERIES, skip_locked=True)
        )
        with self._database.writing() as connection:
            first = {(row.job, row.webhook): row for row in reversed(connection.execute(query).all())}
            chosen = _shared_out(list(first.values()), Counter(job for job, _ in skipped), most_of_a_job)
            for row in chosen:
                mine = _one(row.job, row.webhook, row.event)
                connection.execute(update(DELIVERIES).where(mine).values(lease=lease, leased_until=until))
        return [_parcel(row, lease, until) for row in chosen]

    def is_leased(self, parcel: Parcel) -> bool:
        """Whether a delivery is its holder's to send still: its webhook was not changed or removed, and it is nobody else's."""
        query: Select[Any] = select(literal_column("1")).select_from(DELIVERIES).where(_held(parcel))
        with self._database.reading() as connection:
            return connection.execute(query).first() is not None

    def settle(self, parcel: Parcel, settlement: Settlement) -> bool:
        """Store how a delivery stands; false where its lease went to another process meanwhile, or the webhook is gone."""
        values: dict[str, Any] = {
            "status": settlement.status.value,
            "attempts": settlement.attempts,
            "due_at": settlement.due_at,
            "last_status": settlement.last_status,
            "last_error": settlement.last_error,
            **RELEASED,
        }
        with self._database.writing() as connection:
            return connection.execute(update(DELIVERIES).where(_held(parcel)).values(values)).rowcount > 0

    def forget(self, before: str, *, most: int) -> int:
        """Delete up to `most` deliveries that were made or given up before a moment; their number."""
        columns = DELIVERIES.c
        ended = columns.status.in_([status.value for status in DeliveryStatus if status is not DeliveryStatus.PENDING])
        with self._database.writing() as connection:
            return sweep(connection, DELIVERIES, and_(ended, columns.due_at < before), most=most)


@legible
def kinds_of(stored: str) -> tuple[HookKind, ...]:
    """What a webhook is told, from the form in which that is stored."""
    return tuple(map(HookKind, stored.split(KINDS_SEPARATOR)))


def moved(place: Place, *, generation: int, number: int) -> Place:
    """The place after a webhook was told up to `generation` and log entry `number`."""
    return replace(place, generation=generation, number=number)


def _due(now: str, skipped: Collection[tuple[str, str]], most_of_a_job: int | None) -> ColumnElement[bool]:
    """What is sent now: what is due, but for what others send; both said by a clock that was not set back since."""
    taken = Counter(job for job, _ in skipped)
    full = [] if most_of_a_job is None else sorted(job for job, number in taken.items() if number >= most_of_a_job)
    columns, far = DELIVERIES.c, text_of(moment_of(now) + timedelta(seconds=FAR_SECONDS))
    others = [or_(columns.job != job, columns.webhook != webhook) for job, webhook in skipped]
    due = or_(columns.due_at <= now, columns.due_at > far)
    free = or_(columns.leased_until.is_(None), columns.leased_until < now, columns.leased_until > far)
    return and_(columns.status == DeliveryStatus.PENDING.value, due, free, columns.job.not_in(full), *others)


def _shared_out(rows: Sequence[Row[Any]], taken: Counter[str], most_of_a_job: int | None) -> list[Row[Any]]:
    """Of each job no more than it may have beside what is taken already: a receiver that never answers costs its own job alone."""
    chosen = []
    for row in rows:
        if most_of_a_job is None or taken[row.job] < most_of_a_job:
            taken[row.job] += 1
            chosen.append(row)
    return chosen


def deliveries_to(job: str, webhook: str) -> ColumnElement[bool]:
    """All deliveries of a webhook."""
    return and_(DELIVERIES.c.job == job, DELIVERIES.c.webhook == webhook)


def _one(job: str, webhook: str, event: str) -> ColumnElement[bool]:
    return and_(deliveries_to(job, webhook), DELIVERIES.c.event == event)


def _held(parcel: Parcel) -> ColumnElement[bool]:
    return and_(_one(parcel.job, parcel.webhook, parcel.event), DELIVERIES.c.lease == parcel.lease)


def _new_row(place: Place, news: News, now: str, retry_until: str) -> dict[str, Any]:
    return {
        "job": place.job,
        "webhook": place.webhook,
        "event": news.id,
        "body": news.body,
        "created_at": now,
        "retry_until": retry_until,
        "status": DeliveryStatus.PENDING.value,
        "attempts": 0,
        "due_at": now,
    }


def _parcel(row: Any, lease: str, leased_until: str) -> Parcel:
    return Parcel(
        job=row.job,
        webhook=row.webhook,
        event=row.event,
        url=row.url,
        secret=row.secret,
        body=row.body,
        retry_until=row.retry_until,
        attempts=row.attempts,
        lease=lease,
        leased_until=leased_until,
    )
