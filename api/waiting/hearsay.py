"""What each process of the service heard itself, told to all others over the database: none of them hears everybody.

A balancer gives each host's connection to one of the processes. What one has not heard may have been heard by another one, which
tells so several times in every timeout.
"""

import json
import time
from collections.abc import Callable
from uuid import uuid4

from sqlalchemy import Connection, Double, cast, delete, extract, func, insert, select

from api.storage.database import Database
from api.storage.engines import POSTGRESQL
from api.storage.sweeping import sweep
from api.storage.tables import SIGNS
from api.waiting.exchanges import OVERDUE_PERIODS, Heard

_KEPT_SECONDS = 3600.0
"""How long what a process told is kept; one that has ended tells no more."""
_SWEPT_AT_ONCE = 100
"""Old words that are deleted at each exchange, but for those that processes which were stopped for long replace right now."""


class Hearsay:
    """Of one process, about jobs or about overlays. Times are by this process's clock; between processes the database's counts."""

    def __init__(self, database: Database, about: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`about` tells signs of life of one kind from those of others; `clock` is the one by which they are heard, in seconds."""
        self._database, self._about, self._clock = database, about, clock
        self._process = uuid4().hex

    def exchange(self, heard: Heard, *, period_seconds: float, since: float) -> dict[str, dict[str, float]]:
        """Tell all others who was heard here, in the place of what was told before, and be told by them.

        Whom a process heard whose word is overdue counts as heard until it was: where that has ended its hosts come to another
        one, and have their whole timeout for it.

        Args:
            heard: here.
            period_seconds: from this exchange to the next.
            since: when exchanges began to succeed, after which others have to have told something to be overdue.

        Raises:
            UnavailableError: the database does not answer; nothing was told.
        """
        others: dict[str, dict[str, float]] = {}
        with self._database.writing() as connection:
            own = (SIGNS.c.process == self._process) & (SIGNS.c.about == self._about)
            connection.execute(delete(SIGNS).where(own))
            now, own_now = _seconds(connection), self._clock()
            ages = {job: {worker: round(own_now - at, 3) for worker, at in workers.items()} for job, workers in heard.items()}
            row = {"process": self._process, "about": self._about, "told_at": now, "period_seconds": period_seconds}
            connection.execute(insert(SIGNS), row | {"body": json.dumps(ages)})
            sweep(connection, SIGNS, SIGNS.c.told_at < now - _KEPT_SECONDS, most=_SWEPT_AT_ONCE)
            told = connection.execute(select(SIGNS).where(SIGNS.c.process != self._process, SIGNS.c.about == self._about)).all()
        for word in told:
            if word.told_at > now:  # the clock was set back since: its next word counts
                continue
            told_at, overdue_at = own_now - (now - word.told_at), OVERDUE_PERIODS * word.period_seconds
            least = max(told_at + overdue_at, since) if now - word.told_at > overdue_at else float("-inf")
            for job, workers in json.loads(word.body).items():
                known = others.setdefault(job, {})
                known |= {worker: max(told_at - age, least, known.get(worker, least)) for worker, age in workers.items()}
        return others


def _seconds(connection: Connection) -> float:
    """A clock that all processes share: the server's; for a file, its machine's, which nobody sets."""
    if connection.dialect.name != POSTGRESQL:
        return time.monotonic()
    found: float = connection.execute(select(cast(extract("epoch", func.clock_timestamp()), Double))).scalar_one()
    return found
