"""Of what goes on failing the log has few lines, and of its end one."""

import itertools

import anyio
import pytest
import structlog

from api.metrics import Metrics
from api.moments import utc_now
from api.outages import REMINDER_SECONDS, Outage
from api.webhooks import courier
from api.webhooks.guard import Guard
from api.webhooks.manners import Manners
from kintsugi.core.errors import UnavailableError

AWAY = UnavailableError("the database does not answer")


@pytest.mark.usefixtures("talkative")
def test_an_outage_is_told_at_first_once_a_minute_and_when_it_is_over():
    seconds = 0.0
    outage = Outage("look", clock=lambda: seconds)
    with structlog.testing.capture_logs() as lines:
        outage.is_over()
        for _ in range(3 * int(REMINDER_SECONDS)):
            outage.goes_on(AWAY)
            seconds += 1.0
        outage.is_over()
        outage.is_over()
        outage.goes_on(AWAY)
    told = [(line["event"], line.get("attempts", line.get("failed_attempts"))) for line in lines]
    assert told == [("cannot look", 1), ("cannot look", 61), ("cannot look", 121), ("can look again", 180), ("cannot look", 1)]


def test_pauses_become_longer_and_are_short_again_when_it_is_over():
    outage = Outage("look")
    pauses = []
    for _ in range(5):
        pauses.append(outage.pause_seconds(0.2, 2.0))
        outage.goes_on(AWAY)
    assert pauses == [0.2, 0.4, 0.8, 1.6, 2.0]
    outage.is_over()
    assert outage.pause_seconds(0.2, 2.0) == 0.2


class Collector:
    """Finds its database away three times."""

    def __init__(self):
        self._times = itertools.count()
        self.found = anyio.Event()

    def collect(self):
        if next(self._times) < 3:
            raise AWAY
        anyio.from_thread.run_sync(self.found.set)


class Outbox:
    now = staticmethod(utc_now)

    def forget(self, before, *, most):
        return 0

    def is_due(self, now, skipped, *, most_of_a_job):
        return False


@pytest.mark.anyio
@pytest.mark.usefixtures("talkative")
async def test_who_carries_news_waits_for_the_database_in_two_lines(monkeypatch):
    monkeypatch.setattr(courier, "LOOK_SECONDS", 0.001)
    collector = Collector()
    carrying = courier.Courier(collector, Outbox(), Guard(loopback=True), Metrics(), Manners())
    with structlog.testing.capture_logs() as lines, anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(carrying.run)
            await collector.found.wait()
            carrying.close()
    assert [line["event"] for line in lines] == ["cannot look for deliveries", "can look for deliveries again"]
