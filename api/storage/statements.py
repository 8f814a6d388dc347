"""The statements on the way from an event to its plan, put together once: SQLAlchemy takes longer for it than SQLite to answer."""

from functools import cache
from importlib import import_module

from sqlalchemy import BigInteger, Insert, bindparam, insert, select

from api.storage.tables import CONTINGENCIES, DECISIONS, DOCUMENTS, KEYS, LOG, STATES

ENTRIES_AFTER = (
    select(LOG)
    .where(LOG.c.job == bindparam("job"), LOG.c.number > bindparam("after"))
    .order_by(LOG.c.number)
    .limit(bindparam("most", type_=BigInteger))
)
ENTRIES_OF_EVENTS = select(LOG).where(LOG.c.job == bindparam("job"), LOG.c.event_id.in_(bindparam("event_ids", expanding=True)))
KEY = select(KEYS).where(KEYS.c.scope == bindparam("scope"), KEYS.c.key == bindparam("key"))
DOCUMENT = select(DOCUMENTS.c.digest).where(DOCUMENTS.c.digest == bindparam("digest"))
CONTINGENCY = select(CONTINGENCIES).where(
    CONTINGENCIES.c.job == bindparam("job"),
    CONTINGENCIES.c.fingerprint == bindparam("fingerprint"),
    CONTINGENCIES.c.planner_version == bindparam("planner_version"),
)
STATES_OF_VERSION = select(STATES).where(STATES.c.job == bindparam("job"), STATES.c.planner_version == bindparam("planner_version"))
STATES_AT = STATES_OF_VERSION.where(STATES.c.number.in_(bindparam("numbers", expanding=True)))
LATEST_STATE = STATES_OF_VERSION.order_by(STATES.c.number.desc()).limit(1)
DECIDED_AT = select(DECISIONS.c.decided_at).where(
    DECISIONS.c.job == bindparam("job"), DECISIONS.c.generation == bindparam("generation")
)
ADD_ENTRIES, ADD_DECISION, ADD_KEY, ADD_STATE = (insert(table) for table in (LOG, DECISIONS, KEYS, STATES))


@cache
def add_document(dialect: str) -> Insert:
    """The statement that stores a document unless it is there: two jobs may bring the same one at once.

    Args:
        dialect: SQLAlchemy's name for the kind of database; what belongs to the other kind is not even imported.
    """
    insert_of = import_module(f"sqlalchemy.dialects.{dialect}").insert
    statement: Insert = insert_of(DOCUMENTS).on_conflict_do_nothing()
    return statement
