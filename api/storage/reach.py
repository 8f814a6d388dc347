"""How far into a job's log reaches what is stored beside it: nothing of it may be of entries that the log does not hold.

And what all logs together lack: their entries are numbered without gaps, so that one that is gone is missed unless it was the last.
"""

from sqlalchemy import func, select, union

from api.storage.database import Database
from api.storage.tables import DECISIONS, ENDINGS, JOBS, KEYS, LOG, STATES, WEBHOOKS

REACHING = {
    "decisions.generation": (func.max(DECISIONS.c.generation), DECISIONS.c.job),
    "states.number": (func.max(STATES.c.number), STATES.c.job),
    "idempotency_keys.number": (func.max(KEYS.c.number), KEYS.c.scope),  # of writes to a job its id is the scope
    "webhooks.number": (func.max(WEBHOOKS.c.number), WEBHOOKS.c.job),
    "webhooks.generation": (func.max(WEBHOOKS.c.generation), WEBHOOKS.c.job),
}
"""The furthest that each table names of a log, and the column that says of which job."""

NUMBERED = select(LOG.c.position, func.lag(LOG.c.position, 1, 0).over(order_by=LOG.c.position).label("before")).subquery()
GAPS = select(NUMBERED.c.before + 1, NUMBERED.c.position - 1).where(NUMBERED.c.position > NUMBERED.c.before + 1)
UNKNOWN_JOBS = union(*(select(of.c.job).where(of.c.job.not_in(select(JOBS.c.id))) for of in (LOG, DECISIONS)))


def gaps(database: Database) -> list[tuple[int, int]]:
    """The first and the last position of each stretch of all logs that is not there, ascending.

    Raises:
        UnavailableError: the database does not answer.
    """
    with database.reading() as connection:
        return sorted((first, last) for first, last in connection.execute(GAPS))


def unknown_jobs(database: Database) -> list[str]:
    """Ids of jobs that are not there, though their entries or decisions are; ascending.

    Raises:
        UnavailableError: the database does not answer.
    """
    with database.reading() as connection:
        return sorted(connection.execute(UNKNOWN_JOBS).scalars())


def reach(database: Database, job: str) -> dict[str, int]:
    """The last entry (`.number`) or generation that is named of a job's log, by table and column; none where there are no rows.

    Raises:
        UnavailableError: the database does not answer.
    """
    with database.reading() as connection:
        found = {name: connection.execute(select(last).where(of == job)).scalar_one() for name, (last, of) in REACHING.items()}
    return {name: last for name, last in found.items() if last is not None}


def is_ended(database: Database, job: str) -> bool:
    """Whether a job counts as ended.

    Raises:
        UnavailableError: the database does not answer.
    """
    with database.reading() as connection:
        return connection.execute(select(ENDINGS.c.job).where(ENDINGS.c.job == job)).first() is not None
