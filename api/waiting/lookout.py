"""Notices that the database was emptied or set back while nobody wrote to it, and has those forget who tell without asking it."""

from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.to_thread import run_sync

from api.storage.store import Store
from kintsugi.core.errors import UnavailableError

LOOK_SECONDS = 1.0


class Lookout:
    """Looks again and again until it is closed.

    Whoever writes to a job, or asks for it, notices at once; what is left are those who are told of jobs and do not ask.

    Args:
        store: looks back.
        forget: called in the event loop after anybody noticed.
    """

    def __init__(self, store: Store, forget: Callable[[], None]) -> None:
        self._store = store
        self._forget = forget
        self._closing = anyio.Event()

    def close(self) -> None:
        """End the looking."""
        self._closing.set()

    async def run(self) -> None:
        """Look until closed."""
        noticed = self._store.times_set_back
        while not self._closing.is_set():
            with suppress(UnavailableError):  # which others tell of
                await run_sync(self._store.look_back)
            if noticed != self._store.times_set_back:
                noticed = self._store.times_set_back
                self._forget()
            with anyio.move_on_after(LOOK_SECONDS):
                await self._closing.wait()
