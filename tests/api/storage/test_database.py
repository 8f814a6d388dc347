"""Transactions: reads within a read see one state, failures are told as what they mean."""

import stat

import pytest
from sqlalchemy import text

from api.storage.database import Database, OvertakenError
from api.storage.store import Store
from kintsugi.core.errors import InvalidInputError, UnavailableError

pytestmark = pytest.mark.both_databases


@pytest.fixture
def database(database_url):
    database = Database(database_url)
    try:
        do(database, "drop table if exists numbers", "create table numbers (number integer primary key)")
        yield database
        do(database, "drop table numbers")
    finally:
        database.close()


def do(database, *statements):
    with database.writing() as connection:
        for statement in statements:
            connection.execute(text(statement))


def numbers(database):
    with database.reading() as connection:
        return connection.execute(text("select number from numbers")).scalars().all()


def put(database, *values, fail=None):
    with database.writing() as connection:
        for number in values:
            connection.execute(text("insert into numbers values (:number)"), {"number": number})
        if fail is not None:
            raise fail


def test_reads_within_a_read_see_its_state_and_later_ones_the_present(database):
    with database.reading():
        assert numbers(database) == []
        put(database, 1)
        assert numbers(database) == []
    assert numbers(database) == [1]


def test_a_read_that_fails_leaves_the_thread_free_to_read_again(database):
    with pytest.raises(ZeroDivisionError), database.reading():
        raise ZeroDivisionError
    put(database, 1)
    assert numbers(database) == [1]


def test_who_comes_second_is_told_so_and_writes_nothing(database):
    put(database, 1)
    with pytest.raises(OvertakenError):
        put(database, 2, 1)
    assert numbers(database) == [1]


@pytest.mark.both_databases
def test_only_what_is_there_already_is_another_writers_doing(database):
    """A column of a later version, or rows that were taken away by hand, are no reason to try again."""
    do(database, "drop table numbers", "create table numbers (number integer primary key, later text not null)")
    with pytest.raises(UnavailableError, match=r"refuses what belongs into it.*later.*restore a backup") as refused:
        do(database, "insert into numbers (number) values (1234)")
    assert "1234" not in str(refused.value)
    do(database, "insert into numbers values (1, 'x')", "create table others (number integer references numbers (number))")
    try:
        with pytest.raises(UnavailableError, match="refuses what belongs into it"):
            do(database, "insert into others values (2)")
        with pytest.raises(OvertakenError, match="another writer was first"):
            do(database, "insert into numbers values (1, 'y')")
    finally:
        do(database, "drop table others")


def test_a_write_that_is_not_finished_is_undone(database):
    with pytest.raises(ZeroDivisionError):
        put(database, 1, fail=ZeroDivisionError())
    assert numbers(database) == []


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "nonsense", "oracle+nothing://x", "sqlite:///file:x?uri=true&timeout=soon"]
)
def test_a_database_that_cannot_be_used_is_refused_by_name(url):
    with pytest.raises(InvalidInputError) as caught:
        Database(url)
    assert caught.value.field == "database_url"


def test_a_file_is_made_for_its_owner_alone_and_one_that_is_there_is_left_as_it_is(tmp_path):
    own, shared = tmp_path / "own.sqlite3", tmp_path / "shared.sqlite3"
    shared.touch()
    shared.chmod(0o640)
    for path, mode in ((own, 0o600), (shared, 0o640)):
        store = Store(f"sqlite:///{path}")
        store.open()
        modes = {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.glob(f"{path.name}*")}
        store.close()
        assert modes == {mode}


def test_a_file_that_cannot_be_is_refused_by_name(tmp_path):
    for url, message in (
        (f"sqlite:///{tmp_path}", "is a folder; name a file in it"),
        (f"sqlite:///{tmp_path}/nope/x.sqlite3", "lies in a folder that is not there"),
        (f"sqlite:///{tmp_path}/x.sqlite3?mode=ro", r"leave out what stands behind the \?"),
    ):
        with pytest.raises(InvalidInputError, match=message) as caught:
            Database(url)
        assert caught.value.field == "database_url"
        assert caught.value.value == ("mode" if "?" in url else url.removeprefix("sqlite:///"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no database" * 100, "is no SQLite database.*name another one"),
        (b"SQLite format 3\0\x10\0\x01\x01\0\x40\x20\x20" + b"\xff" * 8_000, "is damaged.*restore a backup"),
    ],
)
def test_a_file_that_holds_something_else_is_told_with_the_way_out(tmp_path, content, message):
    path = tmp_path / "x.sqlite3"
    path.write_bytes(content)
    store = Store(f"sqlite:///{path}")
    try:
        with pytest.raises(UnavailableError, match=message):
            store.open()
    finally:
        store.close()
    assert path.read_bytes() == content


@pytest.mark.parametrize("url", ["postgresql://u:secret@host:abc/x", "postgresql://u:a@b:secret@host/x"])
def test_a_port_that_is_no_number_is_told_without_the_password(url):
    with pytest.raises(InvalidInputError, match="port is no number") as caught:
        Database(url)
    assert "secret" not in str(caught.value)
