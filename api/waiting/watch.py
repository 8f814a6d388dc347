"""Waiting for a newer plan, and taking turns on a job, without holding a thread."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.to_thread import run_sync

from api.outages import Outage
from kintsugi.core.errors import UnavailableError

POLL_SECONDS = 0.1
"""How often plans that another process made are looked for, while somebody waits."""


class Turns:
    """One write at a time for each job."""

    def __init__(self) -> None:
        self._locks: dict[str, anyio.Lock] = {}

    @asynccontextmanager
    async def of(self, job: str) -> AsyncIterator[None]:
        """The caller's turn on `job`."""
        lock = self._locks.setdefault(job, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(job, None)


@dataclass(slots=True)
class _Watched:
    generation: int = -1
    waiting: int = 0
    is_over: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)


class Watch:
    """Wakes those who wait for a generation above the one they have."""

    def __init__(self, latest: Callable[[Sequence[str]], Mapping[str, int]]) -> None:
        self._latest = latest
        self._watched: dict[str, _Watched] = {}
        self._somebody = anyio.Event()
        self._closed = False
        self._num_set_back = 0
        """How often a generation was told that is earlier than one before: what was read until then counts no more."""

    @property
    def is_closed(self) -> bool:
        """Whether the service is stopping and nobody is to wait any more."""
        return self._closed

    async def wait(self, job: str, above: int, seconds: float) -> int:
        """The generation above `above` that `job` has now; -1 after `seconds`, or when the service stops or has forgotten it."""
        watched = self._watched.setdefault(job, _Watched())
        watched.waiting += 1
        self._somebody.set()
        try:
            with anyio.move_on_after(seconds):
                while not self._closed and not watched.is_over and watched.generation <= above:
                    await watched.changed.wait()
            return watched.generation if watched.generation > above else -1
        finally:
            watched.waiting -= 1
            if not watched.waiting and not watched.is_over:
                self._watched.pop(job, None)

    def tell(self, job: str, generation: int) -> None:
        """Wake those who wait for a generation of `job` below `generation`, that to go on with; it may be an earlier one again."""
        watched = self._watched.get(job)
        if watched is not None and generation < watched.generation:
            watched.generation = generation
            self._num_set_back += 1
        self._found(job, generation)

    def _found(self, job: str, generation: int) -> None:
        """The same of one that was read a moment ago: what was told since is newer."""
        watched = self._watched.get(job)
        if watched is not None and generation > watched.generation:
            watched.generation = generation
            watched.changed.set()
            watched.changed = anyio.Event()

    def forget(self) -> None:
        """Wake everybody: the generations that were told are not in the database any more."""
        forgotten, self._watched = self._watched, {}
        self._num_set_back += 1
        for watched in forgotten.values():
            watched.generation, watched.is_over = -1, True
            watched.changed.set()

    def close(self) -> None:
        """Wake everybody."""
        self._closed = True
        self._somebody.set()
        for watched in self._watched.values():
            watched.changed.set()

    async def run(self) -> None:
        """Look for plans that other processes made, as long as somebody waits."""
        outage = Outage("look for new plans")
        while not self._closed:
            await self._somebody.wait()
            await anyio.sleep(POLL_SECONDS)
            if not self._watched:
                self._somebody = anyio.Event()
                continue
            set_back = self._num_set_back
            try:
                latest = await run_sync(self._latest, list(self._watched))
            except UnavailableError as error:
                outage.goes_on(error)
                continue
            outage.is_over()
            for job, generation in latest.items() if set_back == self._num_set_back else ():
                self._found(job, generation)
