"""What each process of the service heard itself, told to all others over the database: none of them hears everybody.

A balancer gives each host's connection to one of the processes. What one has not heard may have been heard by another one, which
tells so several times in every timeout; whoever is about to declare a loss asks first.
"""

import json
import time
from collections.abc import Callable, Mapping
from uuid import uuid4

from sqlalchemy import Connection, Double, cast, delete, extract, func, insert, select

from api.storage.database import Database
from api.storage.engines import POSTGRESQL
from api.storage.tables import SIGNS

_KEPT_SECONDS = 3600.0
"""How long what a process told is kept; one that has ended tells no more."""


class Hearsay:
    """Of one process, about jobs or about overlays. Times are by this process's clock; between processes the database's counts."""

    def __init__(self, database: Database, about: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`about` tells signs of life of one kind from those of others; `clock` is the one by which they are heard, in seconds."""
        self._database, self._about, self._clock = database, about, clock
        self._process = uuid4().hex

    def give(self, heard: Mapping[str, Mapping[str, float]]) -> None:
        """Replace what was told before: by job and worker, when it was heard here last, in seconds.

        Raises:
            UnavailableError: the database does not answer.
        """
        with self._database.writing() as connection:
            now, own_now = _seconds(connection), self._clock()
            ages = {job: {worker: round(own_now - at, 3) for worker, at in workers.items()} for job, workers in heard.items()}
            own = (SIGNS.c.process == self._process) & (SIGNS.c.about == self._about)
            connection.execute(delete(SIGNS).where(own | (SIGNS.c.told_at < now - _KEPT_SECONDS)))
            row = {"process": self._process, "about": self._about, "told_at": now, "body": json.dumps(ages)}
            connection.execute(insert(SIGNS), row)

    def heard(self, job: str) -> dict[str, float]:
        """When any other process heard each worker of a job last, in seconds; those that none has heard are not there.

        Raises:
            UnavailableError: the database does not answer.
        """
        theirs = (SIGNS.c.process != self._process) & (SIGNS.c.about == self._about)
        with self._database.reading() as connection:
            rows = connection.execute(select(SIGNS.c.told_at, SIGNS.c.body).where(theirs)).all()
            now, own_now = _seconds(connection), self._clock()
        found: dict[str, float] = {}
        for told_at, body in rows:
            for worker, age in json.loads(body).get(job, {}).items():
                found[worker] = max(found.get(worker, float("-inf")), own_now - (now - told_at) - age)
        return found


def _seconds(connection: Connection) -> float:
    """The database's clock, which is that of all processes; that of a file is its machine's."""
    if connection.dialect.name != POSTGRESQL:
        return time.time()
    found: float = connection.execute(select(cast(extract("epoch", func.clock_timestamp()), Double))).scalar_one()
    return found
