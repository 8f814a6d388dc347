"""Deadlines are logged as they pass, whatever becomes of one job, and whatever the clock does."""

import anyio
import pytest

from api import deadlines
from api.storage.legible import IllegibleError
from kintsugi.core.errors import UnavailableError


class Agenda:
    """Two jobs whose deadlines have passed; one cannot be read, or decided about."""

    def __init__(self, error=None):
        self.num_looks, self.logged = 0, []
        self.error = error or IllegibleError("holds what this version does not understand")

    def due(self, now):
        self.num_looks += 1
        return ["illegible", "other"]

    def next_at(self):
        return "2026-01-01T00:00:00.000000Z"

    async def expire(self, job):
        if job == "illegible":
            raise self.error
        self.logged.append(job)


@pytest.mark.anyio
@pytest.mark.parametrize("error", [None, UnavailableError("its plan cannot be made"), OverflowError("a mistake of ours")])
async def test_a_job_that_cannot_be_read_keeps_no_deadline_of_others_and_is_not_tried_without_a_pause(error, monkeypatch):
    monkeypatch.setattr(deadlines, "LOOK_SECONDS", 0.1)
    agenda = Agenda(error)
    looking = deadlines.Deadlines(agenda, lambda: "2027-01-01T00:00:00.000000Z", agenda.expire)
    with anyio.move_on_after(0.5):
        await looking.run()
    assert agenda.logged
    assert set(agenda.logged) == {"other"}
    assert agenda.num_looks <= 6


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

    def recorded(looking):
        pauses.append(pause_seconds(looking))
        return 0.0

    monkeypatch.setattr(deadlines.Deadlines, "_pause_seconds", recorded)
    agenda = Away()
    looking = deadlines.Deadlines(agenda, lambda: "2027-01-01T00:00:00.000000Z", agenda.expire)
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

        def next_at(self):
            return None

    looking = deadlines.Deadlines(Quiet(), lambda: next(moments), Agenda().expire)
    with anyio.fail_after(30):
        await looking.run()
    assert asked == [deadlines.END_OF_TIME, "2026-01-03", deadlines.END_OF_TIME, "2026-01-02"]
