"""The database's schema: made or brought up to this version when the service starts, by one process at a time."""

from pathlib import Path

from sqlalchemy import Connection, column, func, inspect, select, table

from api.storage.database import Database
from api.storage.engines import DATABASE_FIELD, POSTGRESQL
from api.storage.tables import METADATA
from kintsugi.core.errors import InvalidInputError, UnavailableError, some

HEAD = "0004"
"""The version that this code works with: that of the newest file in `api/storage/migrations/versions`."""
LOCK = 0x6B696E74
"""Number of the lock under which PostgreSQL is upgraded."""
WAY_OUT = "name another database, or move this one away to begin anew"

_VERSIONS = table("alembic_version", column("version_num"))


def upgrade(database: Database) -> None:
    """Bring the schema up to `HEAD`; several processes may try at once.

    Raises:
        InvalidInputError: the database is of a later version, or was not made by this program.
        UnavailableError: the database does not answer.
    """
    with database.reading() as connection:
        version = _version(connection)
    database.write_ahead()  # not before: a file that is refused stays as it is
    if version == HEAD:
        return
    with database.writing() as connection:
        if connection.dialect.name == POSTGRESQL:
            connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
        if _version(connection) != HEAD:
            _carry_out(connection)


def require_current(database: Database) -> None:
    """Require the schema to be of version `HEAD`, without changing it.

    Raises:
        InvalidInputError: it is of another version, or was not made by this program.
        UnavailableError: the database does not answer.
    """
    with database.reading() as connection:
        version = _version(connection)
        if version is None:
            lacking = "holds none of Kintsugi's tables" if inspect(connection).get_table_names() else "is empty"
            raise InvalidInputError(f"{lacking}; kintsugi serve brings it up to date", field=DATABASE_FIELD)
    if version != HEAD:
        way_out = "read it with the kintsugi that made it, or a copy that kintsugi serve has upgraded for good"
        message = f"is of version {version}, this program reads {HEAD}; {way_out}"
        raise InvalidInputError(message, field=DATABASE_FIELD, value=version)


def require_unchanged(database: Database) -> None:
    """Require the schema to be of version `HEAD` still, as it was when it was opened; quick enough for a probe.

    Raises:
        UnavailableError: a process of another version upgraded it, or a backup took its place; or it does not answer.
    """
    with database.reading() as connection:
        version = connection.execute(select(_VERSIONS.c.version_num)).scalar_one_or_none()
    if version != HEAD:
        message = f"is of version {version} by now, and this process works with {HEAD}: all on one database must be of one version"
        raise UnavailableError(message, field=DATABASE_FIELD, value=version)


def _version(connection: Connection) -> str | None:
    """The schema's version; None for a database without tables of ours."""
    names = set(inspect(connection).get_table_names())
    version: str | None = None
    if _VERSIONS.name in names:
        version = connection.execute(select(_VERSIONS.c.version_num)).scalar_one_or_none()
    if version is None:
        _refuse_strangers(connection, names - {_VERSIONS.name})
        return None
    if names.isdisjoint(METADATA.tables):
        message = f"is of version {version} of another program, and holds none of Kintsugi's tables; {WAY_OUT}"
        raise InvalidInputError(message, field=DATABASE_FIELD, value=version)
    if version > HEAD:
        message = f"is of version {version}, this program knows versions up to {HEAD}; install a newer kintsugi, or {WAY_OUT}"
        raise InvalidInputError(message, field=DATABASE_FIELD, value=version)
    if version == HEAD:
        _check_shape(connection)
    return version


def _refuse_strangers(connection: Connection, names: set[str]) -> None:
    """Require a database without a version to hold none of these tables; one of PostgreSQL may be shared with other programs."""
    strangers = sorted(names & set(METADATA.tables) if connection.dialect.name == POSTGRESQL else names)
    if strangers:
        message = f"holds tables of unknown origin ({some(strangers)}) and no version; {WAY_OUT}"
        raise InvalidInputError(message, field=DATABASE_FIELD)


def _check_shape(connection: Connection) -> None:
    found = inspect(connection).get_multi_columns()
    there = {(name, item["name"]) for (_, name), columns in found.items() for item in columns}
    wanted = {(name, item.name) for name, made in METADATA.tables.items() for item in made.columns}
    if missing := sorted(wanted - there):
        what = ", ".join(f"{name}.{item}" for name, item in missing)
        raise InvalidInputError(f"is of version {HEAD} but lacks {what}; {WAY_OUT}", field=DATABASE_FIELD)


def _carry_out(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
