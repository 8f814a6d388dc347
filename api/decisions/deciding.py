"""From a job's history to what follows from it: a decision, made ahead or now, or the error in its place."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import structlog

from api.decisions import planning
from api.decisions.contingencies import Contingencies
from api.decisions.tries import Tries
from api.decisions.workshop import NobodyThereError, Workshop
from api.metrics import Metrics
from api.spans import span
from api.storage.shelf import Decided
from kintsugi.core.decision import Decision
from kintsugi.core.errors import KintsugiError, UnavailableError
from kintsugi.core.job import Snapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What follows from new log entries: a decision with its snapshot, the error in its place, or nothing."""

    snapshot: Snapshot | None = None
    decided: Decided | None = None
    problem: Mapping[str, Any] | None = None


class Decider:
    """Decides, and tells metrics and log what was decided.

    Short searches that come one by one are made where they are asked for. Once two come at the same time the workshop is begun,
    and takes all of them as soon as it is ready: so a service that is asked little holds no further processes. Long ones are the
    workshop's alone, which is begun once a job is known that may ask for one: they hold up nobody here, and what they
    take, or crash, is not the service's. While they hold all of its processes the short ones are made here.
    """

    def __init__(self, metrics: Metrics, ahead: Contingencies | None, workshop: Workshop) -> None:
        self._metrics = metrics
        self._ahead = ahead
        self._workshop = workshop
        self._tries = Tries()
        self._num_searching = self._num_long = 0
        self._lock = Lock()
        self._log = structlog.get_logger("kintsugi.api")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A decision that is asked for and not stored, timed and logged.

        Raises:
            KintsugiError: there is none.
            UnavailableError: the process that searched ended.
        """
        with self._timing(snapshot):
            decision = self._made(planning.decide, snapshot)
        self._tell(snapshot, None, decision.policy.value, decision.reason)
        return decision

    def decided(self, snapshot: Snapshot, job: str) -> Decided:
        """A job's decision as it is stored, timed and logged.

        Raises:
            KintsugiError: there is none.
            PlanningFailedError: the search for it failed too often.
            UnavailableError: the process that searched ended.
        """
        with self._timing(snapshot), self._tries.of(snapshot):
            decided = self._made(planning.decided, snapshot)
        self._tell(snapshot, job, decided.policy, decided.reason)
        return decided

    def outcome(self, snapshot: Snapshot, job: str) -> Outcome:
        """The decision for a job's snapshot, or the error in its place."""
        found = self._made_ahead(snapshot, job)
        try:
            return Outcome(snapshot=snapshot, decided=found or self.decided(snapshot, job))
        except UnavailableError:
            raise  # nothing is known of the plan: who asks again may be told
        except KintsugiError as error:
            self._metrics.refusals.labels(error.code).inc()
            self._log.warning("no plan", job=job, generation=snapshot.generation, error=error.as_dict())
            return Outcome(problem=error.as_dict())

    def expect_long(self) -> None:
        """Be ready for long searches."""
        self._workshop.start()

    def look_ahead(self, job: str, snapshot: Callable[[], Snapshot]) -> None:
        """Have plans made ahead of the snapshot that `snapshot` gives."""
        if self._ahead is not None:
            self._ahead.submit(job, snapshot)

    def forget(self, job: str) -> None:
        """Have no more plans made ahead for a job."""
        if self._ahead is not None:
            self._ahead.forget(job)

    @contextmanager
    def _timing(self, snapshot: Snapshot) -> Iterator[None]:
        with self._metrics.planning(), span("plan", generation=snapshot.generation, workers=len(snapshot.alive)):
            yield

    def _made(self, make: Callable[[Snapshot], T], snapshot: Snapshot) -> T:
        """What `make` makes of a snapshot, here or in the workshop."""
        if planning.is_quick(snapshot):
            return make(snapshot)
        is_long = planning.is_long(snapshot.profile.num_layers, len(snapshot.alive))
        with self._searching(is_long) as is_alone:
            if is_long or not is_alone:
                self._workshop.start()
            if self._goes_there(is_long):
                with suppress(NobodyThereError):
                    return self._workshop.do(make, snapshot)
            return make(snapshot)

    def _goes_there(self, is_long: bool) -> bool:
        """Whether the workshop makes a search: a long one waits until it is ready, a short one for none but short ones."""
        return self._workshop.size > 0 if is_long else self._workshop.is_ready and self._num_long < self._workshop.size

    @contextmanager
    def _searching(self, is_long: bool) -> Iterator[bool]:
        """Whether nobody else searches."""
        with self._lock:
            self._num_searching += 1
            self._num_long += is_long
            is_alone = self._num_searching == 1
        try:
            yield is_alone
        finally:
            with self._lock:
                self._num_searching -= 1
                self._num_long -= is_long

    def _made_ahead(self, snapshot: Snapshot, job: str) -> Decided | None:
        """The decision for a snapshot that was thought of before: the same that `decide` would find."""
        if self._ahead is None:
            return None
        started = time.perf_counter()
        found = self._ahead.find(job, snapshot)
        self._metrics.contingencies.labels(str(found is not None).lower()).inc()
        if found is not None:
            self._metrics.planned(time.perf_counter() - started)
            self._tell(snapshot, job, found.policy, found.reason)
        return found

    def _tell(self, snapshot: Snapshot, job: str | None, policy: str, reason: str) -> None:
        self._metrics.decisions.labels(policy).inc()
        self._log.info("decided", job=job, generation=snapshot.generation, policy=policy, reason=reason)
