"""One present for all processes on a database, so that deadlines of jobs pass at the same moment at each of them."""

import time
from contextlib import suppress
from datetime import datetime, timedelta

import anyio
from anyio.to_thread import run_sync

from api.moments import text_of, utc_now
from api.storage.database import Database
from kintsugi.core.errors import UnavailableError

LOOK_SECONDS = 1.0
"""How often the clock is compared with the database's."""
TOLERATED = timedelta(seconds=1)
"""By how much the two may differ before this one is set; it so makes no small steps back."""


class SharedClock:
    """The database's clock, going on by this process's monotonic one between looks; the machine's before the first look."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._anchor = utc_now(), time.monotonic()
        self._closing = anyio.Event()

    def now(self) -> str:
        """The present: RFC 3339, UTC; asks no database."""
        return text_of(self._present())

    def look(self) -> None:
        """Set it by the database's clock where the two differ.

        Raises:
            UnavailableError: the database does not answer; the clock goes on.
        """
        asked_at = time.monotonic()
        shared = self._database.now()
        answered_at = time.monotonic()
        waited = timedelta(seconds=answered_at - asked_at)  # in which it was what it says, sooner or later
        if not -TOLERATED <= self._present() - shared <= TOLERATED + waited:
            self._anchor = shared, answered_at

    def close(self) -> None:
        """End the looking."""
        self._closing.set()

    async def run(self) -> None:
        """Look again and again until it is closed."""
        while not self._closing.is_set():
            with suppress(UnavailableError):  # of which those tell who need what it holds
                await run_sync(self.look)
            with anyio.move_on_after(LOOK_SECONDS):
                await self._closing.wait()

    def _present(self) -> datetime:
        moment, at = self._anchor  # at once, for a look in another thread may set both
        return moment + timedelta(seconds=time.monotonic() - at)
