"""An overlay's log played back: what every line and its end lead to is compared with what is stored."""

import json
from collections.abc import Iterator
from dataclasses import replace

from api.differences import MISSING, Difference, differences
from api.overlay.book import Book, Page
from api.overlay.scheduler import subject
from api.replay import BEYOND, Replayed, impossible
from api.storage.database import Database
from kintsugi.core import codec
from kintsugi.core.errors import KintsugiError, NotFoundError
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEntry
from planner.overlay.negotiation import negotiate
from planner.overlay.synchronization import SynchronizationPlanner
from planner.overlay.topology import empty_overlay

PAGE = 1_000


class OverlayReplay:
    """Replays the overlay of one job."""

    def __init__(self, database: Database, job: str, planner: SynchronizationPlanner) -> None:
        """Only how far the log reaches is read yet.

        Args:
            database: only read.
            job: whose overlay.
            planner: that of the service, which chose the trees and rings.

        Raises:
            NotFoundError: the job has no overlay.
        """
        self.job = job
        self._book, self._planner = Book(database), planner
        with database.reading():  # both of one moment: the log may grow yet
            self._kept, self.num_entries = self._book.page(job), self._book.last_number(job)
        if self._kept is None and not self.num_entries:
            raise NotFoundError("this job has no overlay", field="job", value=job)

    def __iter__(self) -> Iterator[Replayed]:
        """One item for each line of the log, up to the first that makes no sense where it stands.

        Where something else is stored beside the log than it led to, a last item tells it.
        """
        overlay, number, at = empty_overlay(self.job), 0, ""
        for entry in self._entries():
            number, at = number + 1, entry.at
            told = Replayed(
                number=entry.number,
                at=at,
                what=f"{entry.event.kind.value} {subject(entry.event)}",
                generation=entry.generation,
                decided=entry.generation != overlay.generation,
            )
            if entry.number != number:
                yield replace(told, differences=tuple(differences(entry.number, number, "entry.number")))
                return
            try:
                overlay = negotiate(overlay, entry.event, at, self._planner)
            except KintsugiError as error:
                yield replace(told, differences=(impossible("entry", entry.event.kind.value, error),))
                return
            stored = {"term": entry.term, "generation": entry.generation}
            led_to = {"term": overlay.term, "generation": overlay.generation}
            yield replace(told, differences=tuple(differences(stored, led_to, "entry")))
        if found := tuple(_kept_compared(self._kept, number, overlay)):
            yield Replayed(number=number, at=at, what=BEYOND, generation=overlay.generation, decided=False, differences=found)

    def _entries(self) -> Iterator[OverlayEntry]:
        after = 0
        while entries := [one for one in self._book.entries(self.job, after, PAGE) if one.number <= self.num_entries]:
            yield from entries
            after = entries[-1].number


def _kept_compared(kept: Page | None, number: int, overlay: Overlay) -> Iterator[Difference]:
    """Whether the overlay that is kept beside the log is the one that it leads to."""
    if kept is None:
        yield Difference(field="overlay", stored=MISSING, replayed=f"generation {overlay.generation}")
        return
    yield from differences(kept.number, number, "overlay.number")
    yield from differences(json.loads(kept.body), json.loads(codec.dumps(overlay)), "overlay")
