"""Carries news to webhooks: looks for what is due, sends, tries again ever more seldom, gives up visibly."""

import time
from datetime import timedelta
from uuid import uuid4

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from structlog.contextvars import bound_contextvars

from api.metrics import Metrics
from api.moments import moment_of, text_of, utc_now
from api.outages import Outage
from api.webhooks.collector import Collector
from api.webhooks.guard import Guard
from api.webhooks.hooks import DeliveryStatus
from api.webhooks.manners import Manners
from api.webhooks.news import CONTENT_TYPE
from api.webhooks.outbox import Outbox, Parcel
from api.webhooks.sender import Attempt, Sender, TakenBackError
from api.webhooks.signing import signed_headers
from kintsugi.core.errors import KintsugiError, UnavailableError
from kintsugi.core.version import __version__

MOST_AT_ONCE = 16
"""Deliveries that one process sends at the same time, each to another webhook."""
MOST_OF_A_JOB = 4
"""Of these the deliveries of one job: its receivers may all be slow, and the other jobs' are not to wait for them."""
LOOK_SECONDS = 0.2
"""How often news and deliveries that are due are looked for."""
LONGEST_LOOK_SECONDS = 10.0
"""How seldom that becomes while the database is away."""
LEASE_MARGIN_SECONDS = 5.0
"""Beyond the longest attempt: how long others wait for a process that may have ended in the middle of one."""
LAST_SECONDS = 2.0
"""How long a stopping service lets attempts finish; what does not is sent again by whoever finds it."""
SWEEP_SECONDS = 600.0
"""How often old deliveries are forgotten."""
SWEPT_AT_ONCE = 1_000
"""Old deliveries that are forgotten from one look to the next: other writers wait no longer than that takes."""
LEASE_IS_OVER = "does not send a delivery: the service was stopped for longer than it is this process's to send"
TAKEN_BACK = "does not send a delivery: it was changed or removed as its receiver was reached"
NOT_COUNTED = "an attempt does not count: by its end the delivery was changed, removed, or somebody else's"


class Courier:
    """Serves the webhooks of all jobs, together with the couriers of other processes."""

    def __init__(self, collector: Collector, outbox: Outbox, guard: Guard, metrics: Metrics, manners: Manners) -> None:
        self._collector = collector
        self._outbox = outbox
        self._guard = guard
        self._metrics = metrics
        self._manners = manners
        self._log = structlog.get_logger("kintsugi.api")
        self._outage = Outage("look for deliveries")
        self._closed = False
        self._stirred = anyio.Event()
        self._busy: set[tuple[str, str]] = set()
        self._swept = float("-inf")

    def close(self) -> None:
        """Begin nothing any more."""
        self._closed = True
        self._stirred.set()

    async def run(self) -> None:
        """Deliver until closed."""
        timeout = self._manners.timeout_seconds
        async with (
            Sender(self._guard, timeout_seconds=timeout, most_at_once=MOST_AT_ONCE) as sender,
            anyio.create_task_group() as tasks,
        ):
            while not self._closed:
                await self._round(sender, tasks)
                with anyio.move_on_after(self._outage.pause_seconds(LOOK_SECONDS, LONGEST_LOOK_SECONDS)):
                    await self._stirred.wait()
            tasks.cancel_scope.deadline = anyio.current_time() + LAST_SECONDS

    async def _round(self, sender: Sender, tasks: TaskGroup) -> None:
        if not self._closed:
            self._stirred = anyio.Event()
        try:
            parcels = await run_sync(self._found, frozenset(self._busy))
        except KintsugiError as error:
            self._outage.goes_on(error)
            return
        self._outage.is_over()
        for parcel in parcels:
            self._busy.add((parcel.job, parcel.webhook))
            tasks.start_soon(self._deliver, sender, parcel)

    def _found(self, busy: frozenset[tuple[str, str]]) -> list[Parcel]:
        """What is to be sent now, one delivery of each webhook that is not busy, leased to this process."""
        self._collector.collect()
        self._sweep()
        most = MOST_AT_ONCE - len(busy)
        if most <= 0:
            return []
        now = self._outbox.now()
        if not self._outbox.is_due(text_of(now), busy, most_of_a_job=MOST_OF_A_JOB):
            return []
        until = now + timedelta(seconds=self._manners.timeout_seconds + LEASE_MARGIN_SECONDS)
        return self._outbox.lease(text_of(now), text_of(until), uuid4().hex, most=most, most_of_a_job=MOST_OF_A_JOB, skipped=busy)

    def _sweep(self) -> None:
        if time.monotonic() - self._swept < SWEEP_SECONDS:
            return
        before = text_of(self._outbox.now() - timedelta(seconds=self._manners.keep_seconds))
        if self._outbox.forget(before, most=SWEPT_AT_ONCE) < SWEPT_AT_ONCE:
            self._swept = time.monotonic()

    async def _deliver(self, sender: Sender, parcel: Parcel) -> None:
        try:
            now = await run_sync(self._outbox.now)
            if text_of(now) > parcel.leased_until:  # others sent it, or its webhook was removed or changed
                self._log.warning(LEASE_IS_OVER, job=parcel.job, delivery=parcel.message_id)
                return
            attempt = await self._attempt(sender, parcel)
            with bound_contextvars(job=parcel.job, generation=parcel.generation):
                pause_seconds = await run_sync(self._settle, parcel, attempt)
            await anyio.sleep(min(pause_seconds, LOOK_SECONDS))
        except TakenBackError:
            self._log.info(TAKEN_BACK, job=parcel.job, delivery=parcel.message_id)
        except KintsugiError as error:
            message = "cannot settle a delivery; it is sent again"
            self._log.warning(message, job=parcel.job, delivery=parcel.message_id, reason=error.message)
        finally:
            self._busy.discard((parcel.job, parcel.webhook))
            self._stirred.set()

    async def _attempt(self, sender: Sender, parcel: Parcel) -> Attempt:
        """One attempt; where it cannot be made of what is stored it failed as any other does: it is seen, and given up in time."""

        async def may_send() -> bool:
            return await run_sync(self._outbox.is_leased, parcel)

        try:
            return await sender.send(parcel.url, _headers(parcel), parcel.body, may_send=may_send)
        except (TakenBackError, UnavailableError):  # it says nothing of the receiver
            raise
        except Exception as error:  # one webhook's misfortune is not the others'
            self._log.warning("cannot send a delivery as it is stored", job=parcel.job, delivery=parcel.message_id, exc_info=error)
            return Attempt(error=f"cannot be sent as it is stored ({type(error).__name__}): change the webhook")

    def _settle(self, parcel: Parcel, attempt: Attempt) -> float:
        """Store what an attempt led to; the seconds until the next one, 0 where there is none, or another's."""
        now = self._outbox.now()
        settlement = self._manners.settlement(parcel, attempt, now)
        if not self._outbox.settle(parcel, settlement):
            self._log.info(NOT_COUNTED, delivery=parcel.message_id, error=attempt.error)
            return 0.0
        outcome = "failed" if settlement.status is DeliveryStatus.PENDING else settlement.status.value
        self._metrics.deliveries.labels(outcome).inc()
        log = self._log.warning if settlement.status is DeliveryStatus.DEAD else self._log.info
        log("webhook", delivery=parcel.message_id, outcome=outcome, attempts=settlement.attempts, error=attempt.error)
        return max(0.0, (moment_of(settlement.due_at) - now).total_seconds())


def _headers(parcel: Parcel) -> dict[str, str]:
    signed = signed_headers(parcel.secret, parcel.message_id, int(utc_now().timestamp()), parcel.body)
    return {"Content-Type": CONTENT_TYPE, "User-Agent": f"kintsugi/{__version__}", **signed}
