"""The webhooks of jobs: added, changed, removed, shown, with what became of their deliveries."""

import hashlib
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, select, update

from api.access.callers import caller, own_key
from api.http.cursors import Cursors
from api.moments import text_of, utc_now
from api.problems import PreconditionFailedError
from api.storage.database import Database, OvertakenError
from api.storage.legible import legible
from api.storage.tables import DECISIONS, DELIVERIES, JOBS, LOG, WEBHOOKS
from api.webhooks.guard import Guard
from api.webhooks.hooks import (
    Delivery,
    DeliveryPage,
    DeliveryStatus,
    NewWebhook,
    Webhook,
    WebhookList,
    WebhookTarget,
)
from api.webhooks.outbox import KINDS_SEPARATOR, RELEASED, deliveries_to, kinds_of
from api.webhooks.urls import receiver_of, split_url
from kintsugi.core.errors import ConflictError, NotFoundError

MOST_WEBHOOKS = 20
"""Of one job."""


class Registry:
    """Reads and writes the webhooks of all jobs."""

    def __init__(self, database: Database, guard: Guard, *, retry_seconds: float) -> None:
        self._database = database
        self._guard = guard
        self._retrying = timedelta(seconds=retry_seconds)

    async def check(self, target: WebhookTarget) -> None:
        """Refuse a target that would be refused whenever something is sent.

        Raises:
            TargetRefusedError: the URL's host is an address that nothing is sent to, or a name of one.
        """
        await self._guard.check_host(split_url(target.url).hostname or "")

    def add(self, job: str, new: NewWebhook, idempotency_key: str | None = None) -> tuple[Webhook, bool]:
        """The webhook, and whether it is new; the same request again gives the same webhook.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: the id or the key belongs to another webhook, or the job has as many as it may.
        """
        webhook = new.id or _id_of(job, idempotency_key)
        try:
            return self._added(job, webhook, new)
        except OvertakenError:
            return self._added(job, webhook, new)

    def change(self, job: str, webhook: str, target: WebhookTarget, expected: str | None = None) -> Webhook:
        """The webhook after its url, secret and kinds were replaced; what is pending goes to the new url.

        Args:
            job: id of the job.
            webhook: id of the webhook.
            target: the new url, secret and kinds.
            expected: `changed_at` of the webhook that is to be changed; None changes any.

        Raises:
            NotFoundError: there is no such webhook.
            PreconditionFailedError: it is another one than expected.
        """
        now = text_of(utc_now())
        with self._database.writing() as connection:
            _require(connection, job, webhook, expected)
            connection.execute(update(WEBHOOKS).where(_one(job, webhook)).values({**_values(target), "changed_at": now}))
            connection.execute(update(DELIVERIES).where(deliveries_to(job, webhook)).values(RELEASED))
        return self.webhook(job, webhook)

    def remove(self, job: str, webhook: str, expected: str | None = None) -> None:
        """Remove a webhook with all its deliveries.

        Raises:
            NotFoundError: there is no such webhook.
            PreconditionFailedError: it is another one than expected.
        """
        with self._database.writing() as connection:
            _require(connection, job, webhook, expected)
            connection.execute(delete(DELIVERIES).where(deliveries_to(job, webhook)))
            connection.execute(delete(WEBHOOKS).where(_one(job, webhook)))

    def webhook(self, job: str, webhook: str) -> Webhook:
        """One webhook.

        Raises:
            NotFoundError: there is no such webhook.
        """
        return _shown(self._row(job, webhook))

    def webhooks(self, job: str) -> WebhookList:
        """All webhooks of a job.

        Raises:
            NotFoundError: there is no such job.
        """
        with self._database.reading() as connection:
            if connection.execute(select(JOBS.c.id).where(JOBS.c.id == job)).first() is None:
                raise _no_job(job)
            rows = connection.execute(select(WEBHOOKS).where(WEBHOOKS.c.job == job).order_by(WEBHOOKS.c.id)).all()
        return WebhookList(webhooks=tuple(map(_shown, rows)))

    def deliveries(self, job: str, webhook: str, status: DeliveryStatus | None, cursor: str | None, limit: int) -> DeliveryPage:
        """Up to `limit` deliveries of a webhook after `cursor`, the oldest first.

        Raises:
            NotFoundError: there is no such webhook.
            InvalidInputError: the cursor is of another list.
        """
        self._row(job, webhook)
        cursors, columns = Cursors("deliveries", job, webhook), DELIVERIES.c
        created_at, event = cursors.pair(cursor)
        query = (
            select(DELIVERIES)
            .where(columns.job == job, columns.webhook == webhook)
            .where((columns.created_at > created_at) | and_(columns.created_at == created_at, columns.event > event))
            .order_by(columns.created_at, columns.event)
            .limit(limit + 1)
        )
        query = query if status is None else query.where(columns.status == status.value)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        last = rows[limit - 1] if len(rows) > limit else None
        return DeliveryPage(
            deliveries=tuple(map(_delivery, rows[:limit])),
            next_cursor=None if last is None else cursors.after(last.created_at, last.event),
        )

    def send_again(self, job: str, webhook: str, event: str) -> Delivery:
        """The delivery, due at once and retried as long as a new one.

        Raises:
            NotFoundError: there is no such delivery.
        """
        here, now = and_(deliveries_to(job, webhook), DELIVERIES.c.event == event), self._database.now()
        fresh = {
            "status": DeliveryStatus.PENDING.value,
            "attempts": 0,
            "due_at": text_of(now),
            "retry_until": text_of(now + self._retrying),
            **RELEASED,
        }
        with self._database.writing() as connection:
            connection.execute(update(DELIVERIES).where(here).values(fresh))
            row = connection.execute(select(DELIVERIES).where(here)).one_or_none()
        if row is None:
            raise NotFoundError("the webhook has no delivery of this id", field="delivery", value=event)
        return _delivery(row)

    def _row(self, job: str, webhook: str) -> Row[Any]:
        with self._database.reading() as connection:
            row = connection.execute(select(WEBHOOKS).where(_one(job, webhook))).one_or_none()
        if row is None:
            raise _no_webhook(webhook)
        return row

    def _added(self, job: str, webhook: str, new: NewWebhook) -> tuple[Webhook, bool]:
        now = text_of(utc_now())
        with self._database.writing() as connection:
            if connection.execute(select(JOBS.c.id).where(JOBS.c.id == job)).first() is None:
                raise _no_job(job)
            rows = connection.execute(select(WEBHOOKS).where(WEBHOOKS.c.job == job)).all()
            known = next((row for row in rows if row.id == webhook), None)
            if known is not None:
                return _same(known, new), False
            if len(rows) >= MOST_WEBHOOKS:
                raise ConflictError(
                    f"the job has {MOST_WEBHOOKS} webhooks, the most there may be: remove one", field="job", value=job
                )
            generation = connection.execute(select(func.max(DECISIONS.c.generation)).where(DECISIONS.c.job == job)).scalar_one()
            number = connection.execute(select(func.max(LOG.c.number)).where(LOG.c.job == job)).scalar_one() or 0
            connection.execute(
                insert(WEBHOOKS),
                {
                    "job": job,
                    "id": webhook,
                    "created_at": now,
                    "changed_at": now,
                    "generation": generation,
                    "number": number,
                    **_values(new),
                },
            )
        return self.webhook(job, webhook), True


def _id_of(job: str, idempotency_key: str | None) -> str:
    """An id that the same key of the same token gives again."""
    if (own := own_key(idempotency_key)) is None:
        return uuid4().hex
    return hashlib.sha256(f"{job}\n{own}".encode()).hexdigest()[:32]


def _same(row: Row[Any], new: NewWebhook) -> Webhook:
    if any(getattr(row, name) != value for name, value in _values(new).items()):
        raise ConflictError("belongs to a webhook that was created from another request", field="id", value=row.id)
    return _shown(row)


def _values(target: WebhookTarget) -> dict[str, str]:
    return {"url": target.url, "secret": target.secret, "kinds": KINDS_SEPARATOR.join(kind.value for kind in target.kinds)}


def _one(job: str, webhook: str) -> ColumnElement[bool]:
    return and_(WEBHOOKS.c.job == job, WEBHOOKS.c.id == webhook)


def _require(connection: Connection, job: str, webhook: str, expected: str | None) -> None:
    """Take the webhook for this transaction alone, and require that it is the expected one."""
    row = connection.execute(select(WEBHOOKS.c.changed_at).where(_one(job, webhook)).with_for_update()).one_or_none()
    if row is None:
        raise _no_webhook(webhook)
    if expected is not None and row.changed_at != expected:
        raise PreconditionFailedError("the webhook was changed meanwhile: fetch it again", field="If-Match")


@legible
def _shown(row: Row[Any]) -> Webhook:
    return Webhook(
        id=row.id,
        job=row.job,
        url=row.url if caller().administers else receiver_of(row.url),
        kinds=kinds_of(row.kinds),
        created_at=row.created_at,
        changed_at=row.changed_at,
    )


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        id=row.event,
        status=DeliveryStatus(row.status),
        created_at=row.created_at,
        attempts=row.attempts,
        due_at=row.due_at,
        last_status=row.last_status,
        last_error=row.last_error,
    )


def _no_job(job: str) -> NotFoundError:
    return NotFoundError("there is no job of this id", field="job", value=job)


def _no_webhook(webhook: str) -> NotFoundError:
    return NotFoundError("the job has no webhook of this id", field="webhook", value=webhook)
