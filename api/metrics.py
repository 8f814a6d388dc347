"""Prometheus metrics in base units, in a registry of one application."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from api.jobs.history import Content
from kintsugi.core.ending import Ending
from kintsugi.core.handling import Approval, Expiry
from kintsugi.core.membership import Event
from kintsugi.core.messages import Report

PLANNING_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

JOB_STATES = ("applied", "decided", "unplanned", "ended")


class Metrics:
    """All metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter("kintsugi_events", "Events logged.", ["kind"], registry=self.registry)
        self.reports = Counter("kintsugi_reports", "Reports logged.", ["status"], registry=self.registry)
        self.approvals = Counter("kintsugi_approvals", "Plans approved or refused.", ["decision"], registry=self.registry)
        self.endings = Counter("kintsugi_endings", "Jobs that ended.", ["outcome"], registry=self.registry)
        self.expiries = Counter(
            "kintsugi_expiries",
            "Deadlines that passed, by what was waited for: answer counts the plans that timed out.",
            ["waited_for"],
            registry=self.registry,
        )
        self.decisions = Counter(
            "kintsugi_decisions", "Decisions made, what-if studies included.", ["policy"], registry=self.registry
        )
        self.refusals = Counter(
            "kintsugi_plan_refusals", "Events and reports that no plan could answer.", ["code"], registry=self.registry
        )
        self.contingencies = Counter(
            "kintsugi_contingencies",
            "Decisions asked of the plans made ahead, and whether they were found there.",
            ["found"],
            registry=self.registry,
        )
        self.jobs = Gauge(
            "kintsugi_jobs",
            "Jobs seen by this process: their latest plan is applied, decided but not applied, or there is none; or they ended.",
            ["state"],
            registry=self.registry,
        )
        self.pending = Gauge("kintsugi_pending_jobs", "Jobs for which plans are still being made ahead.", registry=self.registry)
        self.waiting = Gauge(
            "kintsugi_waiting_clients",
            "Clients that wait for a newer plan, or for further events.",
            registry=self.registry,
        )
        self.streams = Gauge("kintsugi_stream_clients", "Clients that listen to a stream.", registry=self.registry)
        self.watched = Gauge("kintsugi_watched_workers", "Living workers whose heartbeats are awaited.", registry=self.registry)
        self.deliveries = Counter(
            "kintsugi_webhook_deliveries", "Attempts to tell a webhook, by how they ended.", ["outcome"], registry=self.registry
        )
        self.requests = Counter(
            "kintsugi_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "kintsugi_http_request_seconds",
            "Time to answer a request, waiting for a newer plan included.",
            ["method", "route"],
            buckets=PLANNING_BUCKETS,
            registry=self.registry,
        )
        self._planning_seconds = Histogram(
            "kintsugi_planning_seconds",
            "Time to decide, or to find what was decided ahead.",
            buckets=PLANNING_BUCKETS,
            registry=self.registry,
        )

    def count_jobs(self, states: Callable[[], Mapping[str, int]]) -> None:
        """Ask `states` for the jobs by state whenever metrics are read."""
        for state in JOB_STATES:
            self.jobs.labels(state).set_function(lambda state=state: float(states().get(state, 0)))  # type: ignore[misc]

    def planning(self) -> AbstractContextManager[object]:
        """Times one decision."""
        return self._planning_seconds.time()

    def planned(self, seconds: float) -> None:
        """Count a decision that took so long because it was made ahead."""
        self._planning_seconds.observe(seconds)

    def logged(self, contents: Iterable[Content]) -> None:
        """Count what was appended to a log."""
        for content in contents:
            match content:
                case Event():
                    self.events.labels(content.kind.value).inc()
                case Report():
                    self.reports.labels(content.status.value).inc()
                case Approval():
                    self.approvals.labels(content.decision.value).inc()
                case Ending():
                    self.endings.labels(content.outcome.value).inc()
                case Expiry():
                    self.expiries.labels(content.kind.value).inc()

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
