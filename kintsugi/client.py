"""The light HTTP client: one method per operation, retries and timeouts on everything, errors as Kintsugi's own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx2
import stamina

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision, Estimate
from kintsugi.core.errors import InvalidInputError, KintsugiError, UnavailableError, error_from
from kintsugi.core.job import DEFAULT_MTBF_SECONDS, JobSettings
from kintsugi.core.membership import Event
from kintsugi.core.messages import Answer, EventPage, JobPage, JobView, Report, ReportPage, ReportRecord
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile

T = TypeVar("T")

UNAVAILABLE = frozenset({502, 503, 504})
"""What a service that restarts, or the proxy before it, answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client waits for the service and how often it asks again."""

    timeout_seconds: float = 30.0
    """For one answer, beyond the time that the call itself asks the service to wait."""
    connect_seconds: float = 5.0
    attempts: int = 6
    retry_seconds: float = 0.1
    """Before the first retry; each later one waits about twice as long."""
    longest_retry_seconds: float = 5.0


class _RetriableError(Exception):
    def __init__(self, error: UnavailableError) -> None:
        self.error = error


class Client:
    """Talks to one service; a context manager. Writes carry idempotency keys, so that a retry never counts twice.

    Every method raises what the service refused with (`InvalidInputError`, `NotFoundError`, `StaleGenerationError`,
    `InfeasibleError`, ...) and `UnavailableError` when no answer came after all attempts.
    """

    def __init__(self, url: str, *, patience: Patience | None = None, transport: httpx2.BaseTransport | None = None) -> None:
        self._patience = patience or Patience()
        self._timeout = httpx2.Timeout(self._patience.timeout_seconds, connect=self._patience.connect_seconds)
        try:
            self._http = httpx2.Client(base_url=url, timeout=self._timeout, transport=transport)
        except httpx2.InvalidURL as error:
            raise InvalidInputError(f"is no URL: {error}", field="url", value=url) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def create_job(
        self,
        *,
        profile: Profile,
        settings: JobSettings,
        cluster: Cluster | None = None,
        workers: int | None = None,
        workers_per_host: int = 1,
        job: str | None = None,
        plan: Plan | None = None,
    ) -> JobView:
        """Create a job, or get it again; `plan` adopts a plan that runs already."""
        body = {
            "id": job,
            "profile": profile,
            "cluster": cluster,
            "workers": workers,
            "workers_per_host": workers_per_host,
            "settings": settings,
            "plan": plan,
        }
        return self._write(JobView, "/v1/jobs", body)

    def job(self, job: str) -> JobView:
        """A job as it stands."""
        return self._read(JobView, _path(job))

    def jobs(self, *, cursor: str | None = None, limit: int = 100) -> JobPage:
        """A page of jobs."""
        return self._read(JobPage, "/v1/jobs", {"cursor": cursor, "limit": limit})

    def post_event(self, job: str, event: Event, *, brief: bool = False) -> Answer:
        """Report one event; the answer is the plan to go on with, if `brief` without alternatives and previous plan."""
        return self._write(Answer, _path(job, "events"), event, _detail(brief))

    def post_events(self, job: str, events: Sequence[Event], *, brief: bool = False) -> Answer:
        """Report events that happened together and get the one plan for all of them."""
        return self._write(Answer, _path(job, "events"), {"events": events}, _detail(brief))

    def events(self, job: str, *, cursor: str | None = None, limit: int = 100) -> EventPage:
        """A page of a job's events."""
        return self._read(EventPage, _path(job, "events"), {"cursor": cursor, "limit": limit})

    def plan(self, job: str, *, brief: bool = False) -> Answer:
        """The latest plan."""
        return self._read(Answer, _path(job, "plan"), _detail(brief))

    def plan_after(self, job: str, generation: int, *, wait_seconds: float = 0.0, brief: bool = False) -> Answer | None:
        """The latest plan once its generation is above `generation`; None when none came within `wait_seconds`."""
        parameters = {"after_generation": generation, "wait_seconds": wait_seconds, **_detail(brief)}
        response = self._send("GET", _path(job, "plan"), parameters=parameters, wait_seconds=wait_seconds)
        return None if response.status_code == httpx2.codes.NO_CONTENT else _decoded(Answer, response)

    def plan_at(self, job: str, generation: int, *, brief: bool = False) -> Answer:
        """The plan of one generation."""
        return self._read(Answer, _path(job, "plans", str(generation)), _detail(brief))

    def report(self, job: str, report: Report) -> ReportRecord:
        """Tell that a plan was applied or rejected, or what was measured."""
        return self._write(ReportRecord, _path(job, "reports"), report)

    def reports(self, job: str, *, cursor: str | None = None, limit: int = 100) -> ReportPage:
        """A page of a job's reports."""
        return self._read(ReportPage, _path(job, "reports"), {"cursor": cursor, "limit": limit})

    def estimate(
        self,
        plan: Plan,
        profile: Profile,
        cluster: Cluster,
        *,
        reconfiguration_seconds: float = 0.0,
        mtbf_seconds: float = DEFAULT_MTBF_SECONDS,
    ) -> Estimate:
        """What a plan costs."""
        body = {
            "plan": plan,
            "profile": profile,
            "cluster": cluster,
            "reconfiguration_seconds": reconfiguration_seconds,
            "mtbf_seconds": mtbf_seconds,
        }
        return self._write(Estimate, "/v1/estimates", body)

    def whatif(
        self,
        job: str,
        *,
        fail: Sequence[str] = (),
        fail_hosts: Sequence[str] = (),
        join: Sequence[str] = (),
        slow: Mapping[str, float] | None = None,
    ) -> Decision:
        """What would be decided for a job if workers or hosts failed, workers joined or ran at another speed ratio."""
        asked = {"job": job, "fail": fail, "fail_hosts": fail_hosts, "join": join, "slow": slow or {}}
        return self._write(Decision, "/v1/whatif", asked)

    def _read(self, kind: type[T], path: str, parameters: Mapping[str, Any] | None = None) -> T:
        return _decoded(kind, self._send("GET", path, parameters=parameters))

    def _write(self, kind: type[T], path: str, body: Any, parameters: Mapping[str, Any] | None = None) -> T:
        return _decoded(kind, self._send("POST", path, parameters=parameters, content=codec.dumps(body)))

    def _send(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        content: str | None = None,
        wait_seconds: float = 0.0,
    ) -> httpx2.Response:
        headers = {} if content is None else {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
        request = self._http.build_request(
            method,
            path,
            params={name: value for name, value in (parameters or {}).items() if value is not None},
            content=content,
            headers=headers,
            timeout=httpx2.Timeout(self._patience.timeout_seconds + wait_seconds, connect=self._patience.connect_seconds),
        )
        try:
            for attempt in self._attempts():
                with attempt:
                    return self._once(request)
        except _RetriableError as error:
            raise error.error from error.__cause__
        raise AssertionError("the last attempt returns or raises")

    def _attempts(self) -> Any:
        return stamina.retry_context(
            on=_RetriableError,
            attempts=self._patience.attempts,
            timeout=None,
            wait_initial=self._patience.retry_seconds,
            wait_max=self._patience.longest_retry_seconds,
            wait_jitter=self._patience.retry_seconds,
        )

    def _once(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = self._http.send(request)
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise _RetriableError(UnavailableError(f"the service does not answer: {reason}", field="url")) from error
        if response.status_code in UNAVAILABLE:
            raise _RetriableError(UnavailableError("the service cannot answer now", field="url"))
        if response.is_error:
            raise _refusal(response)
        return response


def _path(job: str, *parts: str) -> str:
    return "/".join(("/v1/jobs", quote(job, safe=""), *parts))


def _detail(brief: bool) -> dict[str, str]:
    return {"detail": "brief"} if brief else {}


def _decoded(kind: type[T], response: httpx2.Response) -> T:
    return codec.loads(kind, response.content)


def _refusal(response: httpx2.Response) -> KintsugiError:
    try:
        return error_from(response.json()["error"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        return KintsugiError(f"the service answered {response.status_code} without a problem document", field="url")
