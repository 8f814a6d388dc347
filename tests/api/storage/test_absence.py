"""Where a database does not answer one finds out by waiting, and nobody waits for the sum of all waits."""

import sqlite3
import time
from contextlib import closing

import pytest
from sqlalchemy import text

from api.storage import absence, engines
from api.storage.absence import LONG_SECONDS, REST_SECONDS, Absence
from api.storage.database import Database
from kintsugi.core.errors import UnavailableError

NUM_WRITERS = 20
LOCK_SECONDS = 1.0


def away(seconds, clock, *, field="database_url"):
    """As a database that is away."""
    clock.seconds += seconds
    raise UnavailableError("the database does not answer", field=field)


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


def test_after_a_long_wait_in_vain_nobody_waits_for_a_while():
    clock = Clock()
    found = Absence(clock=clock)
    with pytest.raises(UnavailableError), found.noticed():
        away(LONG_SECONDS, clock)
    with pytest.raises(UnavailableError, match="does not answer"), found.noticed():
        raise AssertionError("it is not asked")
    clock.seconds += REST_SECONDS
    with found.noticed():
        pass


@pytest.mark.parametrize(("seconds", "field"), [(LONG_SECONDS / 2, "database_url"), (LONG_SECONDS, "planning")])
def test_a_short_failure_and_one_of_something_else_keep_nobody_away(seconds, field):
    clock = Clock()
    found = Absence(clock=clock)
    with pytest.raises(UnavailableError), found.noticed():
        away(seconds, clock, field=field)
    with found.noticed():
        pass


def test_writers_behind_each_other_wait_as_long_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "LOCK_SECONDS", LOCK_SECONDS)
    monkeypatch.setattr(absence, "LONG_SECONDS", LOCK_SECONDS / 2)
    monkeypatch.setattr(absence, "REST_SECONDS", 600.0)  # of 20 writers nineteen come meanwhile, however slow they are
    file = tmp_path / "locked.sqlite3"
    database = Database(f"sqlite:///{file}")
    try:
        with database.writing() as connection:
            connection.execute(text("create table numbers (number integer)"))
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("begin immediate")
            begun_at = time.monotonic()
            for _ in range(NUM_WRITERS):
                with pytest.raises(UnavailableError, match="locked"), database.writing():
                    raise AssertionError("it is locked")
            assert time.monotonic() - begun_at < NUM_WRITERS * LOCK_SECONDS / 2
            with database.reading() as connection:
                assert connection.execute(text("select count(*) from numbers")).scalar_one() == 0
    finally:
        database.close()
