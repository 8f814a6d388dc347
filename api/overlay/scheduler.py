"""The scheduler, without HTTP: events in, overlays out, each durable before anybody is told."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from api.jobs.clock import utc_now
from api.overlay.book import Book, Page
from api.problems import LimitReachedError
from api.storage.database import Database, OvertakenError
from kintsugi.core import checks
from kintsugi.core.errors import ConflictError, InvalidInputError, NotFoundError, StaleTermError
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEntry, OverlayEvent, OverlayEventKind, OverlayLog
from planner.overlay.negotiation import negotiate
from planner.overlay.synchronization import SynchronizationPlanner, fastest
from planner.overlay.topology import empty_overlay

ATTEMPTS = 8
"""Of a write, where other processes on the same database are in its way."""
REMEMBERED = 1_024
"""Overlays that are kept in memory."""


class Scheduler:
    """Negotiates for all overlays; safe for several threads, and for several processes on one database."""

    def __init__(
        self,
        database: Database,
        *,
        planner: SynchronizationPlanner = fastest,
        max_overlays: int = 10_000,
        now: Callable[[], str] = utc_now,
    ) -> None:
        self.book = Book(database)
        self._planner = planner
        self._max_overlays = max_overlays
        self._now = now
        self._pages: dict[str, Page] = {}
        self._later_terms: dict[str, int] = {}

    def post(self, job: str, event: OverlayEvent, heard: Mapping[str, float] | None = None) -> Page:
        """The overlay after an event; one whose id was seen changes nothing.

        Args:
            job: whose overlay; it begins with the first `worker_joined`.
            event: what an agent tells.
            heard: seconds of the all-reduces that heartbeats told of, by worker.

        Raises:
            InvalidInputError: the overlay would begin under a name that cannot be read or asked for.
            NotFoundError: the event is about somebody who is not there.
            ConflictError: the overlay does not allow it, or the id belongs to another event.
            StaleTermError: whoever tells this has heard of a later scheduler.
        """
        event = replace(event, synchronization_seconds=dict(heard or {}))
        for _ in range(ATTEMPTS):
            try:
                return self._attempt(job, event)
            except OvertakenError:
                continue
        raise OvertakenError("other writers were first; try again", field="job", value=job)

    def restore(self, job: str, entries: Iterable[OverlayEntry]) -> None:
        """Play back the log of another scheduler, behind the lines that are here already.

        Nothing of a log with another past: this scheduler wrote lines that the others never got, as another one took over. Those
        stay, for nothing is ever removed, and it goes on from the overlay that it is told as it takes over in turn.

        Raises:
            InvalidInputError: a line is missing.
            KintsugiError: the lines are no log that this version wrote.
        """
        page = self._looked_up(job)
        own = self.book.entries(job, 0, page.number) if page is not None else ()
        for entry in entries:
            number = 0 if page is None else page.number
            if 0 < entry.number <= len(own) and not _is_same_line(own[entry.number - 1], entry):
                log = get_logger("kintsugi.api")
                log.warning("the log of another scheduler has another past, and is not played back", job=job, number=entry.number)
                return
            if entry.number <= number:
                continue
            if entry.number != number + 1:
                raise InvalidInputError(f"lines behind {number} are missing", field="number", value=entry.number)
            before = empty_overlay(job) if page is None else page.overlay
            page = Page.of(entry.number, negotiate(before, entry.event, entry.at, self._planner))
            self.book.append(job, entry, page)
            self._remember(job, page)

    def page(self, job: str, term: int = 0) -> Page:
        """The present overlay.

        Raises:
            NotFoundError: nobody joined yet.
            StaleTermError: whoever asks has heard of a later scheduler.
        """
        page = self._looked_up(job)
        if page is None:
            raise NotFoundError("this job has no overlay; it begins with an event worker_joined", field="job", value=job)
        self.check_term(page.overlay, term)
        return page

    def forget(self) -> None:
        """Forget the overlays that are kept in memory."""
        self._pages.clear()

    def known(self, job: str) -> Page | None:
        """The latest page of `job` that this process knows of, without a look at the database."""
        return self._pages.get(job)

    def latest(self, jobs: Sequence[str]) -> dict[str, int]:
        """The latest generation of each of `jobs`; what other processes wrote is looked up with it."""
        generations = self.book.generations(jobs)
        for job, generation in generations.items():
            known = self._pages.get(job)
            if known is None or known.overlay.generation < generation:
                self._looked_up(job)
        return generations

    def log(self, job: str, after: int, limit: int) -> OverlayLog:
        """Up to `limit` lines of the overlay's log behind number `after`.

        Raises:
            NotFoundError: nobody joined yet.
        """
        page = self.page(job)
        return OverlayLog(entries=self.book.entries(job, after, limit), last_number=page.number)

    @staticmethod
    def check_term(overlay: Overlay, term: int | None) -> None:
        """Require that nobody has taken over, as far as the caller knows.

        Raises:
            StaleTermError: somebody has.
        """
        if term is not None and term > overlay.term:
            message = f"this scheduler is of term {overlay.term} and decides nothing any more; ask the one of term {term}"
            raise StaleTermError(message, current_term=term, value=overlay.term)

    def hear_term(self, overlay: Overlay, term: int | None) -> None:
        """As `check_term`, for a worker's words: a later term is believed from then on, and nobody else's words are heard.

        Raises:
            StaleTermError: somebody has taken over.
        """
        latest = self._later_terms[overlay.name] = max(term or 0, self._later_terms.get(overlay.name, 0))
        self.check_term(overlay, latest)

    def _attempt(self, job: str, event: OverlayEvent) -> Page:
        page = self._looked_up(job)
        if page is not None and (seen := self.book.entry(job, event.id)) is not None:
            _require_same(seen.event, event)
            return page
        overlay = page.overlay if page is not None else self._beginning(job)
        if event.kind is not OverlayEventKind.SCHEDULER_CHANGED:
            self.hear_term(overlay, event.term)
        now = self._now()
        after = negotiate(overlay, event, now, self._planner)
        number = 1 if page is None else page.number + 1
        entry = OverlayEntry(number=number, event=event, at=now, term=after.term, generation=after.generation)
        written = Page.of(number, after)
        self.book.append(job, entry, written)
        return self._remember(job, written)

    def _beginning(self, job: str) -> Overlay:
        checks.path_segment("job", job)
        if self.book.num_overlays() >= self._max_overlays:
            message = f"the service holds {self._max_overlays} overlays already; KINTSUGI_MAX_JOBS sets the limit"
            raise LimitReachedError(message, field="job", value=job)
        return empty_overlay(job)

    def _looked_up(self, job: str) -> Page | None:
        known = self._pages.get(job)
        page = self.book.page(job, known)
        if page is known:
            return page
        if known is not None and (page is None or page.number < known.number):  # the database was emptied or set back
            self._pages.pop(job, None)
        return page if page is None else self._remember(job, page)

    def _remember(self, job: str, page: Page) -> Page:
        known = self._pages.pop(job, None)
        newest = page if known is None or known.number <= page.number else known
        self._pages[job] = newest
        if len(self._pages) > REMEMBERED:
            self._pages.pop(next(iter(self._pages)), None)
        return page


def _is_same_line(own: OverlayEntry, other: OverlayEntry) -> bool:
    return (own.number, own.event.id, own.at) == (other.number, other.event.id, other.at)


def _require_same(seen: OverlayEvent, event: OverlayEvent) -> None:
    """Require that an event whose id was seen is about the same, whoever tells it again and whatever was known then.

    Raises:
        ConflictError: it is another one.
    """
    if (seen.kind, subject(seen)) != (event.kind, subject(event)):
        message = f"belongs to another event, {seen.kind.value} of {subject(seen)}; give each event an id of its own"
        raise ConflictError(message, field="id", value=event.id)


def subject(event: OverlayEvent) -> str:
    """Whom or what an event is about: a worker, or the two of a link."""
    return event.worker or "" if event.link is None else " - ".join(sorted(event.link))
