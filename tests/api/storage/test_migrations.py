"""The schema: migrations make what the tables say, once, whoever starts first; other databases are refused by name."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

import api.storage.migrations
from api.storage.store import Store
from api.storage.tables import KEPT, METADATA
from api.storage.upgrade import HEAD
from kintsugi.core.errors import InvalidInputError
from tests.databases import SQLITE, prepare

pytestmark = pytest.mark.both_databases


@contextmanager
def connected(url):
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def do(url, *statements):
    with connected(url) as connection:
        for statement in statements:
            connection.execute(text(statement))


def test_the_migrations_make_what_the_tables_say(database_url):
    with connected(database_url) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, METADATA) == []
        for name, table in METADATA.tables.items():
            assert inspect(connection).get_pk_constraint(name)["constrained_columns"] == [c.name for c in table.primary_key]


def test_the_newest_migration_is_the_one_that_the_code_works_with():
    script = ScriptDirectory(str(Path(api.storage.migrations.__file__).parent))
    assert script.get_heads() == [HEAD]


def test_of_those_that_start_at_once_one_makes_the_tables(empty_url):
    with ThreadPoolExecutor(4) as starters:
        assert list(starters.map(prepare, [empty_url] * 4)) == [None] * 4
    with connected(empty_url) as connection:
        assert connection.execute(text("select version_num from alembic_version")).scalars().all() == [HEAD]
        assert set(METADATA.tables) < set(inspect(connection).get_table_names())


def test_what_an_earlier_version_stored_is_there_after_an_upgrade(empty_url, monkeypatch):
    monkeypatch.setattr("api.storage.upgrade.HEAD", "0001")
    with monkeypatch.context() as earlier:
        earlier.setattr("api.storage.upgrade._check_shape", lambda _: None)
        prepare(empty_url)
    fill(empty_url, with_endings=False)
    monkeypatch.undo()
    prepare(empty_url)
    with connected(empty_url) as connection:
        assert connection.execute(text("select version_num from alembic_version")).scalar_one() == HEAD
        assert connection.execute(text("select id from jobs")).scalars().all() == ["j"]
        assert connection.execute(text("select count(*) from endings")).scalar_one() == 0


def test_who_only_reads_what_an_earlier_version_made_is_not_told_to_upgrade_it(empty_url):
    prepare(empty_url)
    do(empty_url, "update alembic_version set version_num = '0001'")
    with pytest.raises(InvalidInputError, match="read it with the kintsugi that made it, or a copy"):
        opened(empty_url, read_only=True)


def test_tables_of_other_programs_are_left_alone(empty_url, tmp_path):
    """A database of PostgreSQL may be shared; a file that holds theirs is theirs, and stays as it is, bit for bit."""
    do(empty_url, "create table theirs (number integer)")
    if empty_url.startswith(SQLITE):
        before = contents(tmp_path)
        for read_only in (True, False):
            with pytest.raises(InvalidInputError, match=r"holds tables of unknown origin \(theirs\) and no version"):
                opened(empty_url, read_only=read_only)
        assert contents(tmp_path) == before
        return
    with pytest.raises(InvalidInputError, match="holds none of Kintsugi's tables; kintsugi serve"):
        opened(empty_url, read_only=True)
    prepare(empty_url)
    with connected(empty_url) as connection:
        assert "theirs" in inspect(connection).get_table_names()


@pytest.mark.parametrize("version", ["0001", "1975ea83b712"])
def test_a_version_of_another_program_is_refused(empty_url, tmp_path, version):
    do(empty_url, "create table alembic_version (version_num varchar(32))", f"insert into alembic_version values ('{version}')")
    before = contents(tmp_path)
    with pytest.raises(InvalidInputError, match=f"is of version {version} of another program"):
        prepare(empty_url)
    assert contents(tmp_path) == before


def test_a_file_is_written_through_a_log_once_it_is_taken(empty_url):
    if empty_url.startswith(SQLITE):
        prepare(empty_url)
        with connected(empty_url) as connection:
            assert connection.execute(text("pragma journal_mode")).scalar_one() == "wal"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def opened(url, *, read_only):
    store = Store(url, read_only=read_only)
    try:
        store.open()
    finally:
        store.close()


def test_a_database_of_a_later_version_is_refused(empty_url):
    prepare(empty_url)
    do(empty_url, "update alembic_version set version_num = '9999'")
    with pytest.raises(InvalidInputError, match="install a newer kintsugi") as caught:
        prepare(empty_url)
    assert (caught.value.field, caught.value.value) == ("database_url", "9999")


def test_tables_of_unknown_origin_are_refused(empty_url):
    do(empty_url, "create table jobs (id integer)")
    with pytest.raises(InvalidInputError, match=r"unknown origin \(jobs\).*name another database"):
        prepare(empty_url)


def test_a_database_that_lacks_a_column_is_refused(empty_url):
    prepare(empty_url)
    do(empty_url, "alter table decisions drop column brief")
    with pytest.raises(InvalidInputError, match=r"lacks decisions\.brief"):
        prepare(empty_url)


@pytest.mark.parametrize("table", [table.name for table in KEPT])
def test_rows_that_are_kept_cannot_be_changed_or_deleted(database_url, table):
    column = METADATA.tables[table].primary_key.columns[0].name
    fill(database_url)
    for statement in (f"update {table} set {column} = {column}", f"delete from {table}"):
        with pytest.raises(DBAPIError, match=f"rows of {table} are never changed or deleted"):
            do(database_url, statement)


def fill(url, *, with_endings=True):
    do(
        url,
        "insert into documents values ('d', '{}')",
        "insert into jobs (id, created_at, request_digest, profile, cluster, settings, handling) "
        "values ('j', '', '', 'd', 'd', 'd', 'd')",
        "insert into log (job, number, kind, body, received_at, generation, decided, deferred, position) "
        "values ('j', 1, '', '', '', 0, true, false, 1)",
        "insert into decisions values ('j', 0, 0, '', '', '', '', '', '')",
        "insert into overlay_log values ('j', 1, 'e', '', '', 1, 1)",
        "insert into leases values ('j', 1, 'w00', '{}', '')",
    )
    if with_endings:
        do(url, "insert into endings values ('j', '')")
