"""Looks again and again for who fell silent, as often as the shortest timeout asks for."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from api.outages import Outage, Outages

TICKS = 20
"""Looks per timeout."""
TELLINGS = 4
"""Per timeout: hosts tell three times in it that they live, and what was heard must not be old by the time that others read it."""
SHORTEST_TELLING_SECONDS, LONGEST_TELLING_SECONDS = 0.25, 5.0
"""From one to the next."""
SHORTEST_TICK_SECONDS, LONGEST_TICK_SECONDS = 0.02, 1.0


class Listening(Protocol):
    """What is heard of one job or overlay."""

    heard: dict[str, float]
    """When each worker was heard last by any process, or when it was first listened for, in seconds."""
    heard_here: dict[str, float]
    """When each of them gave a sign of life to this process last, in seconds."""

    def forgive(self, seconds: float) -> None:
        """Take time in which the service itself did not listen off everybody's silence."""


ListeningT = TypeVar("ListeningT", bound=Listening)


class Witness(Protocol):
    """Stands between the processes that listen."""

    def give(self, heard: Mapping[str, Mapping[str, float]]) -> None:
        """Tell the others who was heard here, by job and worker, in seconds. Raises KintsugiError: that cannot be done now."""

    def heard(self, job: str) -> Mapping[str, float]:
        """When others heard the workers of a job, in seconds. Raises KintsugiError: that cannot be known now."""


class Patrol(ABC, Generic[ListeningT]):
    """Goes round all that is listened to, until the service stops; sleeps while nobody can fall silent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, witness: Witness | None = None) -> None:
        """`witness` is there where several processes may listen to one job."""
        self._clock = clock
        self._witness = witness
        self._given_at, self._is_giving = float("-inf"), False
        self._ungiven = Outage("tell other processes of the service who was heard")
        self._heard: dict[str, ListeningT] = {}
        """By job."""
        self._changed = anyio.Event()
        self._closed = False
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
        """Tell the log who fell silent.

        Raises:
            KintsugiError: that cannot be done now.
        """

    def close(self) -> None:
        """Listen to nobody any more."""
        self._closed = True
        self._changed.set()

    def forget(self) -> None:
        """Begin anew, as after a restart: each job with what is heard of it next."""
        self._heard = {}

    async def run(self) -> None:
        """Declare who fell silent, until the service stops."""
        async with anyio.create_task_group() as tasks:
            while not self._closed:
                await self._tick()
                self._go_round(tasks)
                self._tell_others(tasks)

    def _go_round(self, tasks: TaskGroup) -> None:
        at_rest = [] if self._closed else [job for job in self._heard if job not in self._being_told]
        for job in at_rest:
            if self._is_silent(job):
                self._being_told.add(job)
                tasks.start_soon(self._declare, job)
            else:
                self._untold.is_over(job)

    async def _declare(self, job: str) -> None:
        """Tell the log who fell silent, or whoever reads the service's why not."""
        try:
            await self._ask_others(job)
            if self._is_silent(job):
                await self._tell(job)
        except Exception as error:  # one job's misfortune is not the others'
            self._untold.goes_on(job, error)
        else:
            self._untold.is_over(job)
        finally:
            self._being_told.discard(job)

    async def _ask_others(self, job: str) -> None:
        if self._witness is None:
            return
        heard = await run_sync(self._witness.heard, job)
        if (listening := self._heard.get(job)) is not None:
            known = listening.heard
            known |= {worker: max(known[worker], at) for worker, at in heard.items() if worker in known}

    def _tell_others(self, tasks: TaskGroup) -> None:
        timeout = self._timeout_seconds()
        if self._witness is None or timeout is None or self._is_giving or self._closed:
            return
        seconds = max(SHORTEST_TELLING_SECONDS, min(LONGEST_TELLING_SECONDS, timeout / TELLINGS))
        if self._clock() - self._given_at >= seconds:
            self._given_at, self._is_giving = self._clock(), True
            heard = {job: dict(listening.heard_here) for job, listening in self._heard.items()}
            tasks.start_soon(self._give, self._witness, heard)

    async def _give(self, witness: Witness, heard: Mapping[str, Mapping[str, float]]) -> None:
        try:
            await run_sync(witness.give, heard)
        except Exception as error:  # who is heard here is heard all the same
            self._ungiven.goes_on(error)
        else:
            self._ungiven.is_over()
        finally:
            self._is_giving = False

    def _begin(self, job: str, listening: ListeningT) -> ListeningT:
        """Listen to a job from now on."""
        self._heard[job] = listening
        self._changed.set()
        return listening

    async def _tick(self) -> None:
        timeout = self._timeout_seconds()
        if timeout is None:
            await self._wait(None)
            return
        seconds = max(SHORTEST_TICK_SECONDS, min(LONGEST_TICK_SECONDS, timeout / TICKS))
        due = self._clock() + seconds
        await self._wait(seconds)
        if (late := self._clock() - due) > seconds:
            self._forgive(late)

    async def _wait(self, seconds: float | None) -> None:
        """Until the time is over, or something changed."""
        with anyio.move_on_after(seconds):
            await self._changed.wait()
        if not self._closed:
            self._changed = anyio.Event()

    def _forgive(self, seconds: float) -> None:
        """A service that was stopped or too busy to listen takes that time off everybody's silence."""
        structlog.get_logger("kintsugi.api").warning("did not listen to heartbeats for a while", seconds=round(seconds, 3))
        for listening in self._heard.values():
            listening.forgive(seconds)
