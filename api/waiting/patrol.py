"""Looks again and again for who fell silent, as often as the shortest timeout asks for."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, Protocol, TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from api.outages import Outage, Outages
from api.waiting.exchanges import Exchanges, Heard
from kintsugi.core.errors import KintsugiError

TICKS = 20
"""Looks per timeout."""
SHORTEST_TICK_SECONDS, LONGEST_TICK_SECONDS = 0.02, 1.0


class Listening(Protocol):
    """What is heard of one job or overlay."""

    heard: dict[str, float]
    """When each worker was heard last by any process, or when it was first listened for, in seconds."""
    heard_here: dict[str, float]
    """When each of them gave a sign of life to this process last, in seconds."""

    @property
    def number(self) -> int:
        """Of what was looked at last: another one has gone on since."""

    def forgive(self, seconds: float, now: float) -> None:
        """Take time in which the service itself did not listen off everybody's silence, who was heard up to now."""


ListeningT = TypeVar("ListeningT", bound=Listening)


class Witness(Protocol):
    """Stands between the processes that listen."""

    def exchange(self, heard: Heard, *, period_seconds: float, since: float) -> Heard:
        """Tell the others who was heard here, by job and worker, in seconds, and be told whom they heard.

        Raises KintsugiError: that cannot be done now.
        """


class Patrol(ABC, Generic[ListeningT]):
    """Goes round all that is listened to, until the service stops; sleeps while nobody can fall silent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, witness: Witness | None = None) -> None:
        """`witness` is there where several processes may listen to one job."""
        self._clock = clock
        self._witness = witness
        self._exchanges = Exchanges()
        self._behind = Outage("take over what other processes of the service wrote")
        self._heard: dict[str, ListeningT] = {}
        """By job."""
        self._changed = anyio.Event()
        self._closed = False
        self._tick_seconds, self._due = LONGEST_TICK_SECONDS, math.inf
        """From one round to the next, and when that is."""
        self._noticed: dict[str, float] = {}
        """When somebody was found silent, by job."""
        self._untold = Outages("tell who fell silent")
        self._being_told: set[str] = set()
        """Jobs about which the log is told right now: what is planned for one keeps no loss of another."""

    @abstractmethod
    def _timeout_seconds(self) -> float | None:
        """The shortest silence that is a loss; None where none is."""

    @abstractmethod
    def _is_silent(self, job: str) -> bool:
        """Whether there may be something to tell."""

    @abstractmethod
    async def _tell(self, job: str) -> None:
        """Tell the log who fell silent; nobody where lateness was forgiven since: other processes may have heard them meanwhile.

        Raises:
            KintsugiError: that cannot be done now.
        """

    @abstractmethod
    def _numbers(self, jobs: Sequence[str]) -> Mapping[str, int]:
        """The latest number of each job, whoever wrote it. Raises KintsugiError: that cannot be read now."""

    @abstractmethod
    async def _look(self, job: str) -> ListeningT:
        """Take over who lives in a job now. Raises KintsugiError: that cannot be read, or there is nobody to listen to."""

    def close(self) -> None:
        """Listen to nobody any more."""
        self._closed = True
        self._changed.set()

    def forget(self) -> None:
        """Begin anew, as after a restart: each job with what is heard of it next."""
        self._heard, self._noticed = {}, {}

    async def run(self) -> None:
        """Declare who fell silent, until the service stops."""
        async with anyio.create_task_group() as tasks:
            while not self._closed:
                await self._tick()
                self._go_round(tasks)

    def _go_round(self, tasks: TaskGroup) -> None:
        self._look_for_silence(tasks)
        if self._witness is not None and self._exchanges.is_due(self._clock(), self._timeout_seconds(), self._noticed):
            tasks.start_soon(self._exchange, self._witness)

    def _look_for_silence(self, tasks: TaskGroup) -> None:
        at_rest = [] if self._closed else [job for job in self._heard if job not in self._being_told]
        for job in at_rest:
            if not self._is_silent(job):
                self._noticed.pop(job, None)
                self._untold.is_over(job)
            elif self._is_certain(job):
                self._being_told.add(job)
                tasks.start_soon(self._declare, job)

    def _is_certain(self, job: str) -> bool:
        """Whether no other process can have heard who was found silent: all would have told so since."""
        if self._witness is None:
            return True
        now = self._clock()
        return self._exchanges.are_known_since(self._noticed.setdefault(job, now), now)

    async def _declare(self, job: str) -> None:
        """Tell the log who fell silent, or whoever reads the service's why not."""
        try:
            await self._tell(job)
        except Exception as error:  # one job's misfortune is not the others'
            self._untold.goes_on(job, error)
        else:
            self._noticed.pop(job, None)
            self._untold.is_over(job)
        finally:
            self._being_told.discard(job)

    async def _exchange(self, witness: Witness) -> None:
        """Tell other processes who was heard here, and take over what they heard, and what they wrote."""
        began, period = self._exchanges.begin(self._clock(), self._timeout_seconds()), self._exchanges.period_seconds
        heard = {job: dict(listening.heard_here) for job, listening in self._heard.items()}
        exchange = partial(witness.exchange, heard, period_seconds=period, since=self._exchanges.since(began))
        try:
            elsewhere = await run_sync(exchange)
        except Exception as error:  # who is heard here is heard all the same, and nobody is declared
            self._exchanges.failed(error)
            return
        now = self._clock()
        away = self._exchanges.succeeded(began, now)
        self._noticed = {job: at for job, at in self._noticed.items() if job in self._heard}
        for job, listening in self._heard.items():
            if away:
                listening.forgive(away, now)
            known, told = listening.heard, elsewhere.get(job, {})
            known |= {worker: max(known[worker], at) for worker, at in told.items() if worker in known}
        try:
            await self._catch_up()
        except Exception as error:
            self._behind.goes_on(error)
        else:
            self._behind.is_over()

    async def _catch_up(self) -> None:
        """Look at what other processes wrote about: whoever is lost there is told so here, too."""
        numbers = await run_sync(self._numbers, list(self._heard))
        for job, number in numbers.items():
            listening = self._heard.get(job)
            if listening is not None and listening.number != number:
                with suppress(KintsugiError):  # it has ended, or cannot be read: one job's misfortune is not the others'
                    await self._look(job)

    def _begin(self, job: str, listening: ListeningT) -> ListeningT:
        """Listen to a job from now on."""
        self._heard[job] = listening
        self._changed.set()
        return listening

    async def _tick(self) -> None:
        timeout = self._timeout_seconds()
        if timeout is None:
            self._due = math.inf
            await self._wait(None)
            return
        self._tick_seconds = max(SHORTEST_TICK_SECONDS, min(LONGEST_TICK_SECONDS, timeout / TICKS))
        self._due = self._clock() + self._tick_seconds
        await self._wait(self._tick_seconds)
        self._forgive_lateness()

    async def _wait(self, seconds: float | None) -> None:
        """Until the time is over, or something changed."""
        with anyio.move_on_after(seconds):
            await self._changed.wait()
        if not self._closed:
            self._changed = anyio.Event()

    def _forgive_lateness(self) -> bool:
        """A service that was stopped or too busy to listen takes that time off everybody's silence; whether it was."""
        now = self._clock()
        late = now - self._due
        if late <= self._tick_seconds:
            return False
        structlog.get_logger("kintsugi.api").warning("did not listen to heartbeats for a while", seconds=round(late, 3))
        self._due = now
        self._exchanges.forgiven(late)
        for listening in self._heard.values():
            listening.forgive(late, now)
        return True
