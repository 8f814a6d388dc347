"""What happened in a cell and when: one line per event, written by the processes of the job while it runs.

Instants are on this machine's monotonic clock, which all processes share. Lines reach the kernel one by one, so they survive
the process that wrote them.
"""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kintsugi.core.codec import dumps, loads
from kintsugi.core.errors import InvalidInputError

EVENTS = "events.jsonl"


class Kind(StrEnum):
    """What happened."""

    LAUNCHED = "launched"
    """A life of the job began."""
    TRAINING = "training"
    """All workers go on with a step."""
    STEP = "step"
    """A step is committed."""
    STRUCK = "struck"
    """The whole job ends."""
    INTERRUPTED = "interrupted"
    """A worker was lost, or others left their step for one that came."""
    TRAINED = "trained"
    """All steps are done, and everything is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line."""

    kind: Kind
    at: float
    """Seconds."""
    step: int | None = None
    loss: float | None = None
    workers: int | None = None
    """TRAINING: how many take part."""
    lost: tuple[str, ...] = ()
    """INTERRUPTED: empty where a worker came."""


class EventLog:
    """Appends to the events of a cell."""

    def __init__(self, run: Path) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(run / EVENTS, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def write(self, event: Event) -> None:
        """Append one event."""
        os.write(self._descriptor, f"{dumps(event)}\n".encode())

    def close(self) -> None:
        """Write no more."""
        os.close(self._descriptor)


def read_events(run: Path) -> tuple[Event, ...]:
    """All events of a cell, in their order.

    Raises:
        InvalidInputError: there are none, or a line is no event.
    """
    path = run / EVENTS
    if not path.is_file():
        raise InvalidInputError("holds no events: the job never started", field="run", value=str(run))
    return tuple(loads(Event, line) for line in path.read_text().splitlines())
