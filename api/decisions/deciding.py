"""From a job's history to what follows from it: a decision, made ahead or now, or the error in its place."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from api.decisions import planning
from api.decisions.contingencies import Contingencies
from api.metrics import Metrics
from api.spans import span
from api.storage.shelf import Decided
from kintsugi.core.decision import Decision
from kintsugi.core.errors import KintsugiError
from kintsugi.core.job import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What follows from new log entries: a decision with its snapshot, the error in its place, or nothing."""

    snapshot: Snapshot | None = None
    decided: Decided | None = None
    problem: Mapping[str, Any] | None = None


class Decider:
    """Decides, and tells metrics and log what was decided."""

    def __init__(self, metrics: Metrics, ahead: Contingencies | None) -> None:
        self._metrics = metrics
        self._ahead = ahead
        self._log = structlog.get_logger("kintsugi.api")

    def decide(self, snapshot: Snapshot, job: str | None = None) -> Decision:
        """A decision, timed and logged.

        Raises:
            KintsugiError: there is none.
        """
        with self._metrics.planning(), span("plan", generation=snapshot.generation, workers=len(snapshot.alive)):
            decision = planning.decide(snapshot)
        self._tell(snapshot, job, decision.policy.value, decision.reason)
        return decision

    def outcome(self, snapshot: Snapshot, job: str) -> Outcome:
        """The decision for a job's snapshot, or the error in its place."""
        found = self._made_ahead(snapshot, job)
        try:
            return Outcome(snapshot=snapshot, decided=found or Decided.of(self.decide(snapshot, job)))
        except KintsugiError as error:
            self._metrics.refusals.labels(error.code).inc()
            self._log.warning("no plan", job=job, generation=snapshot.generation, error=error.as_dict())
            return Outcome(problem=error.as_dict())

    def look_ahead(self, job: str, snapshot: Callable[[], Snapshot]) -> None:
        """Have plans made ahead of the snapshot that `snapshot` gives."""
        if self._ahead is not None:
            self._ahead.submit(job, snapshot)

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
