"""Bursts of events that the agents of a job tell at the same time; the job's window gives them one plan."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.traffic.events import Load, Row, Told, report_applied, survived
from kintsugi.core.cluster import worker_name
from kintsugi.core.handling import Handling
from kintsugi.core.membership import Event, EventKind

NUM_OBSERVERS = 5
"""Agents that report the same loss; the worker that the burst before took is back besides."""
BURST = NUM_OBSERVERS + 1
"""Events."""
WINDOW_SECONDS = 0.5
"""The jobs' `coalesce_seconds`."""
SPREAD_SECONDS = 0.3
"""From a burst's first event to its last."""


@dataclass(slots=True, kw_only=True)
class Site(Told):
    """The agents of one job, each with a connection."""

    async def train(self, start: float, period_seconds: float, num_periods: int) -> None:
        """Live through a burst in every period from `start` on, late ones at once."""
        for number in range(num_periods):
            due = start + number * period_seconds
            events = self.burst(number)
            dues = [due + n * SPREAD_SECONDS / len(events) for n in range(len(events))]
            told = map(self.tell, self.connections, events, dues)
            self.generation = max(await asyncio.gather(*told))
            await report_applied(self.connections[0], self.job, self.generation)

    def burst(self, number: int) -> list[Event]:
        """Burst `number`: a worker is lost, and who was lost before is back; the first worker stays."""
        told = [self._event(EventKind.WORKER_FAILED, number, by) for by in range(NUM_OBSERVERS)]
        return [*told, self._event(EventKind.WORKER_JOINED, number - 1, 0)] if number else told

    def _event(self, kind: EventKind, number: int, by: int) -> Event:
        """What becomes of the worker that burst `number` takes, as agent `by` tells it."""
        worker, life = worker_name(1 + number % (self.num_workers - 1)), number // (self.num_workers - 1)
        return Event(
            kind=kind,
            id=f"{kind.value}-{number}-{by}",
            generation=self.generation,
            worker=worker,
            incarnation=life + (kind is EventKind.WORKER_JOINED),
        )


def weathered(folder: Path, num_jobs: int, rate: float, seconds: float) -> Iterator[Row]:
    """Bursts at the asked rate of events for so long, and what a kill leaves of them."""
    return survived(
        Load(
            name=f"bursts of {BURST}, one plan within {WINDOW_SECONDS} s, {num_jobs} jobs",
            database=folder / "storms.sqlite3",
            num_jobs=num_jobs,
            events_per_second=rate,
            num_periods=max(2, round(rate * seconds / (BURST * num_jobs))),
            events_per_period=BURST,
            handling=Handling(coalesce_seconds=WINDOW_SECONDS),
            teller=Site,
        )
    )
