"""Asks for decisions in a thread of its own, so that the agent's protocol never waits for the service."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe

from kintsugi.core.decision import Decision
from kintsugi.core.ending import Ending
from kintsugi.core.errors import KintsugiError, UnavailableError, some
from kintsugi.core.logs import get_logger
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement, Report, ReportStatus
from kintsugi.runtime.control.decisions import Ahead, Awaiting, Decisions, JobRequest
from kintsugi.runtime.presence import Presence

_REPEAT_SECONDS = 0.5
"""Between two times that a source which does not answer is asked."""
_REMINDER_SECONDS = 60.0
"""How often it is told that a decision is still waited for."""


class Decider:
    """Calls `Decisions` in the order of the agent's words: one thread, nothing overtakes."""

    def __init__(self, decisions: Decisions, timeout_seconds: float, presence: Presence | None = None) -> None:
        """Nothing is asked yet.

        Args:
            decisions: the source.
            timeout_seconds: how long a decision may take that the source cannot give at once, as while it restarts.
            presence: of this process; null where it is never away.
        """
        self._source = decisions
        if isinstance(decisions, Awaiting):
            decisions.is_overtaken = self._has_more
        self._timeout_seconds = timeout_seconds
        self._presence = presence
        self._is_closing = threading.Event()
        self._log = get_logger("kintsugi.runtime")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decider")
        self._pending: Future[float] | None = None
        self._unanswered: list[Event] = []
        self._num_asked = 0
        """Of these, about how many the source was asked last."""
        self._num_refused = 0
        """Of these, to how many the source said that there is no plan."""
        self._untold: list[Report] = []
        self._unheld: deque[tuple[int, str]] = deque()
        self.wake, self._wake_sender = Pipe(duplex=False)
        """Readable once a decision is there."""
        self.decisions: list[Decision] = []

    @property
    def ahead(self) -> Ahead | None:
        """The source, where it makes decisions ahead."""
        return self._source if isinstance(self._source, Ahead) else None

    def tell_agreed(self, generation: int, agreement: str) -> None:
        """Have the source keep what workers agreed on by themselves, if it can; tried once, when the thread is free or closed."""
        self._unheld.append((generation, agreement))
        self._thread.submit(self._have_kept)

    def start(self, request: JobRequest) -> Decision:
        """Get the first decision; blocks."""
        self.decisions.append(self._source.start(request))
        return self.decisions[-1]

    def start_over(self, request: JobRequest) -> None:
        """Ask for the first decision of a job that begins anew; what was to be told about the old one is over."""
        self._unanswered.clear()
        self._num_refused = 0
        self._ask(lambda: self._start_over(request))

    def _start_over(self, request: JobRequest) -> None:
        self._untold.clear()  # in the one thread that tells: it may have been about to
        self.start(request)

    def submit(self, events: Sequence[Event]) -> None:
        """Ask for the decision after `events` and all that no decision answered yet; generations are filled in at their turn."""
        self._unanswered.extend(events)
        self._ask(self._decide_once)

    def unanswered(self, kind: EventKind) -> list[str]:
        """Workers of whom events of one kind were told that no decision answered yet; once nothing is being asked."""
        return [event.worker for event in self._unanswered if event.kind is kind and event.worker is not None]

    def _ask(self, question: Callable[[], object]) -> None:
        self._pending = self._thread.submit(self._decide, question)
        self._pending.add_done_callback(lambda _: self._wake_sender.send(None))

    def is_done(self) -> bool:
        """Whether the decision that was asked for last is there, or failed."""
        return self._pending is None or self._pending.done()

    def has_answer(self) -> bool:
        """Whether a decision is there to be taken."""
        return self._pending is not None and self._pending.done()

    def finish(self) -> float | None:
        """Take the decision that is done: when it came, on the monotonic clock; None where none was asked for.

        Raises:
            KintsugiError: why there is none.
        """
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def tell_applied(self, generation: int) -> None:
        """Report that the state lies where the plan of `generation` puts it; kept until it is told."""
        self._untold.append(Report(generation=generation, status=ReportStatus.APPLIED))
        self._thread.submit(self._tell)

    def tell_rejected(self, generation: int, reason: str) -> None:
        """Report that the plan of `generation` is not carried out; kept until it is told."""
        self._untold.append(Report(generation=generation, status=ReportStatus.REJECTED, reason=reason))
        self._thread.submit(self._tell)

    def tell_measured(self, generation: int, measured: Measurement) -> None:
        """Report what was measured; lost when the service does not answer."""
        self._thread.submit(self._tell_measured, generation, measured)

    def close(self, ending: Ending | None = None) -> None:
        """Tell what is left to tell, and at last how the job ended, if it did, as far as the source answers; end the thread.

        A source that does not answer gets a few seconds for all of it.
        """
        is_asking = not self.is_done()
        self._is_closing.set()
        with self._source.hurried():
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._have_kept()
            self._tell()
            if len(self._unanswered) > self._num_refused and not (is_asking and self._has_asked()):
                with suppress(KintsugiError):
                    self._decide_once()
            if ending is not None and self.decisions:  # without decisions it never began, or its name is another job's
                self._tell_ended(ending)
        self.wake.close()
        self._wake_sender.close()

    def _has_asked(self) -> bool:
        """Whether the question that came last was asked, for once the thread is at its end."""
        return self._pending is not None and not self._pending.cancelled()

    def _decide(self, question: Callable[[], object]) -> float:
        """The decision's instant, on the monotonic clock.

        Raises:
            UnavailableError: the source did not answer within the time.
            KintsugiError: there is no decision.
        """
        began_at, told_at = time.monotonic(), -math.inf
        while True:
            try:
                question()
                return time.monotonic()
            except UnavailableError as error:
                if time.monotonic() - told_at >= _REMINDER_SECONDS:
                    told_at, left = time.monotonic(), round(max(self._seconds_left(began_at), 0.0))
                    self._log.warning("waits for a decision", about=self._asked_about(), reason=error.message, seconds_left=left)
                if self._is_closing.wait(_REPEAT_SECONDS):
                    raise
                if self._seconds_left(began_at) < 0.0:
                    raise self._waited_in_vain(error) from error

    def _seconds_left(self, began_at: float) -> float:
        """For the source to answer: anew where this very process was away meanwhile, for then nobody asked it."""
        back_at = self._presence.back_at if self._presence is not None else began_at
        return max(began_at, back_at) + self._timeout_seconds - time.monotonic()

    def _asked_about(self) -> list[str]:
        """What happened that no decision answered yet; nothing where a job begins anew."""
        return [f"{event.kind.value} {event.worker}" for event in self._unanswered]

    def _waited_in_vain(self, error: UnavailableError) -> UnavailableError:
        about = some(self._asked_about()) or "the job's beginning anew"
        message = f"no decision on {about} came within {self._timeout_seconds:g} s (decision_timeout_seconds of AgentOptions)"
        return UnavailableError(f"{message}: {error.message}", field=error.field, value=error.value)

    def _decide_once(self) -> None:
        self._tell_all()
        events = tuple(self._unanswered)
        self._num_asked = len(events)
        if events:
            generation = self.decisions[-1].plan.generation
            try:
                self.decisions.append(self._source.after([replace(event, generation=generation) for event in events]))
            except UnavailableError:
                raise
            except KintsugiError:
                self._num_refused = len(events)
                raise
            del self._unanswered[: len(events)]
            self._num_refused = 0

    def _has_more(self) -> bool:
        return len(self._unanswered) > self._num_asked

    def _tell_measured(self, generation: int, measured: Measurement) -> None:
        with suppress(KintsugiError):
            self._source.measured(generation, measured)

    def _have_kept(self) -> None:
        while self._unheld:
            generation, agreement = self._unheld.popleft()
            if self.ahead is None:
                continue
            try:
                self.ahead.keep(generation, agreement)
            except KintsugiError as error:
                self._log.warning("the service does not hold what the workers agreed on", generation=generation, error=str(error))

    def _tell(self) -> None:
        with suppress(UnavailableError):
            self._tell_all()

    def _tell_ended(self, ending: Ending) -> None:
        try:
            self._source.ended(ending)
        except KintsugiError as error:
            self._log.warning("the service does not know that the job is over", outcome=ending.outcome.value, error=str(error))

    def _tell_all(self) -> None:
        """A decision must not be asked for before the service knows where the state lies."""
        while self._untold:
            report = self._untold[0]
            try:
                if report.status is ReportStatus.REJECTED:
                    self._source.rejected(report.generation, report.reason)
                else:
                    self._source.applied(report.generation)
            except UnavailableError:
                raise
            except KintsugiError as error:
                self._log.warning(
                    "a report was refused", status=report.status.value, generation=report.generation, error=str(error)
                )
            self._untold.pop(0)
