"""From the log to the outbox: every decision and every missing plan is put down once for every webhook that asked for it.

Nothing is written on the way from an event to its plan: each webhook has a durable place in its job's past, and what
lies behind it is found again after any crash.
"""

from collections.abc import Sequence
from datetime import timedelta
from itertools import zip_longest

from api.jobs.history import Entry
from api.moments import text_of
from api.outages import Outages
from api.pages import ending_record
from api.storage.database import OvertakenError
from api.storage.legible import IllegibleError
from api.storage.store import Store
from api.webhooks.hooks import HookKind
from api.webhooks.news import News, job_ended, plan_decided, plan_missing
from api.webhooks.outbox import MOST_BEHIND, Outbox, Place, kinds_of, moved
from kintsugi.core.ending import Ending

MOST_NEWS = 200
"""Log entries and decisions that one webhook is brought up to date with in one go."""
FIRST = ("", "")
"""Job and id that come before those of all webhooks."""


class Collector:
    """Puts news down; several processes may do so at once."""

    def __init__(self, store: Store, outbox: Outbox, *, retry_seconds: float) -> None:
        self._store = store
        self._outbox = outbox
        self._retrying = timedelta(seconds=retry_seconds)
        self._illegible = Outages("tell webhooks of a job")
        self._after = FIRST

    def collect(self) -> None:
        """Bring webhooks up to date, so many at a time as are looked for: who cannot be is passed by, and hides no others.

        Raises:
            UnavailableError: the database does not answer.
        """
        places = self._outbox.behind(self._after)
        self._after = (places[-1].job, places[-1].webhook) if len(places) == MOST_BEHIND else FIRST
        for place in places:
            try:
                after, news = self._news(place)
            except IllegibleError as error:  # one job's misfortune is not the others'
                self._illegible.goes_on(place.job, error)
                continue
            self._illegible.is_over(place.job)
            now = self._outbox.now()
            try:
                self._outbox.put(place, after, news, now=text_of(now), retry_until=text_of(now + self._retrying))
            except OvertakenError:
                continue  # another process put them down

    def _news(self, place: Place) -> tuple[Place, Sequence[News]]:
        """What happened after `place`, and the place after it."""
        job, kinds, news = place.job, kinds_of(place.kinds), []
        with self._store.looking():
            latest = self._store.latest_generations([job]).get(job, place.generation)  # the database may have been emptied since
            read = self._store.entries(job, after=place.number, limit=MOST_NEWS + 1)
            generations = range(place.generation + 1, min(latest, place.generation + MOST_NEWS) + 1)
            decisions = [self._store.present_decision(job, generation) for generation in generations]
        entries, following = read[:MOST_NEWS], read[MOST_NEWS:]
        if HookKind.PLAN_DECIDED in kinds:
            news += [plan_decided(job, decision) for decision in decisions]
        if HookKind.PLAN_MISSING in kinds:
            news += [
                plan_missing(job, entry.number, entry.received_at, entry.generation, entry.problem)
                for entry in _last_of_each_write(entries, following)
                if entry.problem is not None
            ]
        if HookKind.JOB_ENDED in kinds:
            news += [job_ended(job, ending_record(entry)) for entry in entries if isinstance(entry.content, Ending)]
        generation = generations[-1] if generations else place.generation
        return moved(place, generation=generation, number=entries[-1].number if entries else place.number), news


def _last_of_each_write(entries: Sequence[Entry], following: Sequence[Entry]) -> Sequence[Entry]:
    """Events that were told together have one moment, and one answer: that of their last, which may be among the following."""
    after = zip_longest(entries, (*entries[1:], *following))
    return [entry for entry, later in after if later is None or later.received_at != entry.received_at]
