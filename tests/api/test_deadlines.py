"""Deadlines are logged as they pass, whatever becomes of one job, and whatever the clock does."""

import time
from itertools import pairwise

import anyio
import pytest
from structlog.testing import capture_logs

from api import deadlines
from api.storage.engines import DATABASE_FIELD
from api.storage.legible import IllegibleError
from kintsugi.core.errors import UnavailableError

NUM_LOOKS = 5
CLOCK_SECONDS = 0.001
"""By which the event loop's timers may be early."""


class Agenda:
    """Two jobs whose deadlines have passed; one cannot be read, or decided about."""

    def __init__(self, error=None):
        self.num_looks, self.logged = 0, []
        self.error = error or IllegibleError("holds what this version does not understand")

    def due(self, now):
        self.num_looks += 1
        return ["illegible", "other"]

    def next_after(self, now):
        return None

    async def expire(self, job):
        if job == "illegible":
            raise self.error
        self.logged.append(job)


@pytest.mark.anyio
@pytest.mark.parametrize("error", [None, UnavailableError("its plan cannot be made"), OverflowError("a mistake of ours")])
async def test_a_job_that_cannot_be_read_keeps_no_deadline_of_others_and_is_not_tried_without_a_pause(error, monkeypatch):
    monkeypatch.setattr(deadlines, "LOOK_SECONDS", 0.05)

    class Watched(Agenda):
        def due(self, now):
            looked_at.append(time.monotonic())
            if len(looked_at) == NUM_LOOKS:
                looking.close()
            return super().due(now)

    agenda, looked_at = Watched(error), []
    looking = deadlines.Deadlines(agenda, lambda: "2027-01-01T00:00:00.000000Z", agenda.expire, at_a_time=2)
    with anyio.fail_after(30):
        await looking.run()
    assert agenda.logged == ["other"] * (NUM_LOOKS - 1)
    pauses = [after - before for before, after in pairwise(looked_at)]
    assert min(pauses) >= 0.05 - CLOCK_SECONDS


@pytest.mark.anyio
async def test_a_job_whose_deadlines_take_long_to_log_keeps_none_of_others_and_is_not_begun_twice(monkeypatch):
    monkeypatch.setattr(deadlines, "LOOK_SECONDS", 0.001)

    class Slow(Agenda):
        num_begun, goes_on = 0, anyio.Event()

        async def expire(self, job):
            if job == "illegible":
                self.num_begun += 1
                await self.goes_on.wait()
            self.logged.append(job)
            if self.logged.count("other") == 3:
                looking.close()
                self.goes_on.set()

    agenda = Slow()
    looking = deadlines.Deadlines(agenda, lambda: "2027-01-01T00:00:00.000000Z", agenda.expire, at_a_time=2)
    with anyio.fail_after(30):
        await looking.run()
    assert agenda.logged == ["other"] * 3 + ["illegible"]
    assert agenda.num_begun == 1


@pytest.mark.anyio
async def test_no_more_deadlines_are_logged_at_a_time_than_may_be_and_none_after_the_end():
    first_goes_on, begun = anyio.Event(), []
    agenda = Agenda()

    async def expire(job):
        begun.append(job)
        await first_goes_on.wait()

    looking = deadlines.Deadlines(agenda, lambda: "2027-01-01T00:00:00.000000Z", expire, at_a_time=1)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(looking.run)
            while not agenda.num_looks or not begun:
                await anyio.sleep(0.001)
            await anyio.wait_all_tasks_blocked()
            looking.close()
            first_goes_on.set()
    assert begun == ["illegible"]


@pytest.mark.anyio
@pytest.mark.usefixtures("talkative")
async def test_a_database_that_takes_no_deadline_is_told_of_once_for_all_jobs(monkeypatch):
    monkeypatch.setattr(deadlines, "LOOK_SECONDS", 0.001)

    class ReadOnly(Agenda):
        def due(self, now):
            if self.num_looks == 3:
                looking.close()
                return []
            return super().due(now)

        async def expire(self, job):
            raise UnavailableError("the disk is full", field=DATABASE_FIELD)

    agenda = ReadOnly()
    looking = deadlines.Deadlines(agenda, lambda: "2027-01-01T00:00:00.000000Z", agenda.expire, at_a_time=2)
    with capture_logs() as logs, anyio.fail_after(30):
        await looking.run()
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["cannot log deadlines"]


@pytest.mark.anyio
async def test_a_deadline_that_passes_while_the_database_is_away_is_not_looked_for_without_a_pause(monkeypatch):
    pauses, pause_seconds = [], deadlines.Deadlines._pause_seconds

    class Away(Agenda):
        def due(self, now):
            self.num_looks += 1
            if self.num_looks == 3:
                looking.close()
            if self.num_looks > 1:
                raise UnavailableError("away")
            return []

        def next_after(self, now):
            return now

    def recorded(looking):
        pauses.append(pause_seconds(looking))
        return 0.0

    monkeypatch.setattr(deadlines.Deadlines, "_pause_seconds", recorded)
    agenda = Away()
    looking = deadlines.Deadlines(agenda, lambda: "2027-01-01T00:00:00.000000Z", agenda.expire, at_a_time=2)
    with anyio.fail_after(30):
        await looking.run()
    assert pauses == [0.0, deadlines.LOOK_SECONDS, deadlines.LOOK_SECONDS]


@pytest.mark.anyio
async def test_all_deadlines_are_looked_at_where_the_clock_was_set_back(monkeypatch):
    monkeypatch.setattr(deadlines, "LOOK_SECONDS", 0.001)
    moments, asked = iter(("2026-01-02", "2026-01-03", "2026-01-01", "2026-01-02")), []

    class Quiet:
        def due(self, now):
            asked.append(now)
            if len(asked) == 4:
                looking.close()
            return []

        def next_after(self, now):
            return None

    looking = deadlines.Deadlines(Quiet(), lambda: next(moments), Agenda().expire, at_a_time=2)
    with anyio.fail_after(30):
        await looking.run()
    assert asked == [deadlines.END_OF_TIME, "2026-01-03", deadlines.END_OF_TIME, "2026-01-02"]
