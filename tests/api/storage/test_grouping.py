"""Writes that share a transaction: all are durable before they are told, and one that fails takes nobody with it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from api.storage.database import Database, OvertakenError, TakenError
from api.storage.grouping import GroupCommit
from kintsugi.core.errors import UnavailableError

NUM_WRITERS = 8


class Counting(Database):
    """Counts transactions, and holds the first until all writers have come."""

    def __init__(self, url, group_of):
        super().__init__(url)
        self.transactions, self._group_of = 0, group_of

    def writing(self):
        self.transactions += 1
        while self.transactions == 1 and len(self._group_of()._waiting) < NUM_WRITERS - 1:
            threading.Event().wait(0.001)
        return super().writing()


@pytest.fixture
def database(tmp_path):
    database = Counting(f"sqlite:///{tmp_path}/group.sqlite3", lambda: group)
    with Database.writing(database) as connection:
        connection.execute(text("create table numbers (number integer primary key)"))
    group = database.group = GroupCommit(database)
    yield database
    database.close()


def writing(number, *, failure=None):
    def work(connection):
        if failure is not None:
            raise failure
        connection.execute(text("insert into numbers values (:number)"), {"number": number})

    return work


def outcomes(database, works):
    """What became of each write, all begun at the same time."""

    def write(work):
        try:
            database.group.write(work)
        except Exception as error:
            return type(error)
        return None

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(write, works, timeout=240.0))


def numbers(database):
    with database.reading() as connection:
        return set(connection.execute(text("select number from numbers")).scalars())


def test_writers_that_come_together_share_a_transaction(database):
    assert outcomes(database, [writing(n) for n in range(NUM_WRITERS)]) == [None] * NUM_WRITERS
    assert numbers(database) == set(range(NUM_WRITERS))
    assert database.transactions == 2


def test_one_that_fails_fails_alone(database):
    works = [writing(n) for n in range(NUM_WRITERS - 2)]
    told = outcomes(database, [*works, writing(0), writing(9, failure=RuntimeError("broken"))])
    assert sorted(told[1:-2], key=str) == [None] * (NUM_WRITERS - 3)
    assert {told[0], told[-2]} == {None, TakenError}
    assert told[-1] is UnavailableError
    assert numbers(database) == set(range(NUM_WRITERS - 2))


def test_a_lone_write_raises_what_happened(database):
    database.transactions = 1
    database.group.write(writing(1))
    with pytest.raises(OvertakenError):
        database.group.write(writing(1))
    database.group.write(writing(2))
    assert numbers(database) == {1, 2}
