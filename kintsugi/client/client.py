"""The client: one method per operation."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from math import ceil
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from kintsugi.client.answers import answer_of, newer_of
from kintsugi.client.connection import Connection, path_of
from kintsugi.client.following import follow
from kintsugi.client.generations import GenerationCalls
from kintsugi.client.overlays import OverlayCalls
from kintsugi.client.patience import Patience
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision, Estimate
from kintsugi.core.ending import Ending, EndingRecord, Outcome
from kintsugi.core.errors import UnavailableError
from kintsugi.core.handling import LONGEST_COALESCING_SECONDS, ApprovalPage, ApprovalRecord, Handling, Verdict
from kintsugi.core.heartbeats import HeartbeatAnswer, Heartbeats
from kintsugi.core.job import DEFAULT_MTBF_SECONDS, JobSettings
from kintsugi.core.membership import Event
from kintsugi.core.messages import Answer, EventPage, JobPage, JobView, Pending, Report, ReportPage, ReportRecord
from kintsugi.core.news import News, NewsKind
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile

T = TypeVar("T")

GATHERING_SECONDS = 10.0
"""Longest wait of one request for a plan that gathers events: connections that are silent for long get lost on their way."""


class Client(OverlayCalls, GenerationCalls):
    """Talks to one service; a context manager. Writes carry idempotency keys, so that a retry never counts twice.

    Retries are told by the logger `kintsugi.client`, as warnings. One client may be used from several threads, and goes on in
    processes that are forked; who follows a stream there begins it there.

    Every method raises what the service refused with (`InvalidInputError`, `NotFoundError`, `StaleGenerationError`,
    `InfeasibleError`, ...) and `UnavailableError` when no answer came after all attempts: none at all, an error of the service's
    own, or one that is none of the service's, as of a proxy before it. What a later service says beyond this version's fields is
    left out.

    Args:
        url: of the service, such as `http://127.0.0.1:8000`; a path before `/v1`, of a proxy, may follow.
        token: bearer token that the service knows; by default what `KINTSUGI_TOKEN` holds.
        ca_file: PEM file of the certificates to trust; by default what `KINTSUGI_CA_FILE` names, else those of this machine.
        patience: how long to wait and how often to ask again.
        transport: what carries the requests, by default sockets.

    Raises:
        InvalidInputError: URL, token or file cannot be.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ca_file: str | None = None,
        patience: Patience | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._connection = Connection(url, token=token, ca_file=ca_file, patience=patience or Patience(), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def hurried(self, seconds: float) -> AbstractContextManager[None]:
        """While this is entered, all requests of this client together get so many seconds.

        Those that are under way get one half and are given up then, later ones what is left. Those that are given up raise
        `UnavailableError`; events are told, but no plan is waited for that other events or an approval hold up.
        """
        return self._connection.hurried(seconds)

    @property
    def is_hurried(self) -> bool:
        """Whether `hurried` is entered."""
        return self._connection.is_hurried

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
        handling: Handling | None = None,
    ) -> JobView:
        """Create a job, or get it again; `plan` adopts a plan that runs already, `handling` says who approves the later ones."""
        body = {
            "id": job,
            "profile": profile,
            "cluster": cluster,
            "workers": workers,
            "workers_per_host": workers_per_host,
            "settings": settings,
            "plan": plan,
            "handling": handling or Handling(),
        }
        return self._write(JobView, "/v1/jobs", body)

    def job(self, job: str) -> JobView:
        """A job as it stands."""
        return self._read(JobView, path_of(job))

    def jobs(self, *, cursor: str | None = None, limit: int = 100, ended: bool | None = None) -> JobPage:
        """A page of jobs; only of those that ended, or of those that go on, where `ended` says so."""
        only = None if ended is None else str(ended).lower()
        return self._read(JobPage, "/v1/jobs", {"cursor": cursor, "limit": limit, "ended": only})

    def end(self, job: str, outcome: Outcome, *, reason: str = "", by: str | None = None) -> EndingRecord:
        """Say that a job is over, why where it is not complete; it takes no events any more, and nobody in it is missed."""
        return self._write(EndingRecord, path_of(job, "ending"), Ending(outcome=outcome, reason=reason, by=by))

    def post_event(self, job: str, event: Event, *, brief: bool = False) -> Answer:
        """Report one event; the answer is the plan to go on with, if `brief` without alternatives and previous plan.

        In a job that coalesces events it comes once the job's `coalesce_seconds` are over; where approval is required its status
        is `proposed`: it is not to be carried out before somebody approved it.
        """
        return self._answered(job, event, brief)

    def post_events(self, job: str, events: Sequence[Event], *, brief: bool = False) -> Answer:
        """Report events that happened together and get the one plan for all of them, as `post_event` does."""
        return self._answered(job, {"events": events}, brief)

    def submit_events(
        self, job: str, events: Sequence[Event], *, wait_seconds: float = 0.0, brief: bool = False
    ) -> Answer | Pending:
        """Report events and wait at most `wait_seconds` for others: the plan, or when it is decided and where to look."""
        return self._submitted(job, {"events": events}, wait_seconds, brief)

    def events(self, job: str, *, cursor: str | None = None, limit: int = 100) -> EventPage:
        """A page of a job's events."""
        return self._read(EventPage, path_of(job, "events"), {"cursor": cursor, "limit": limit})

    def events_after(self, job: str, number: int, *, wait_seconds: float = 0.0, limit: int = 100) -> EventPage:
        """The job's events above log number `number`, as soon as there are any; an empty page when none came in time."""
        parameters = {"after": number, "wait_seconds": wait_seconds, "limit": limit}
        return self._read(EventPage, path_of(job, "events"), parameters, wait_seconds=wait_seconds)

    def plan(self, job: str, *, brief: bool = False) -> Answer:
        """The latest plan."""
        return self._read(Answer, path_of(job, "plan"), _detail(brief))

    def plan_after(self, job: str, generation: int, *, wait_seconds: float = 0.0, brief: bool = False) -> Answer | None:
        """The latest plan once its generation is above `generation`; None when none came within `wait_seconds`."""
        parameters = {"after_generation": generation, "wait_seconds": wait_seconds, **_detail(brief)}
        path = path_of(job, "plan")
        return self._connection.send("GET", path, newer_of(Answer), parameters=parameters, wait_seconds=wait_seconds)

    def plan_at(self, job: str, generation: int, *, brief: bool = False) -> Answer:
        """The plan of one generation."""
        return self._read(Answer, path_of(job, "plans", str(generation)), _detail(brief))

    def report(self, job: str, report: Report) -> ReportRecord:
        """Tell that a plan was applied or rejected, or what was measured."""
        return self._write(ReportRecord, path_of(job, "reports"), report)

    def reports(self, job: str, *, cursor: str | None = None, limit: int = 100) -> ReportPage:
        """A page of a job's reports."""
        return self._read(ReportPage, path_of(job, "reports"), {"cursor": cursor, "limit": limit})

    def reports_after(self, job: str, number: int, *, wait_seconds: float = 0.0, limit: int = 100) -> ReportPage:
        """The job's reports above log number `number`, as soon as there are any; an empty page when none came in time."""
        parameters = {"after": number, "wait_seconds": wait_seconds, "limit": limit}
        return self._read(ReportPage, path_of(job, "reports"), parameters, wait_seconds=wait_seconds)

    def approve(self, job: str, generation: int, *, by: str, reason: str = "", decided_at: str | None = None) -> ApprovalRecord:
        """Let a proposed plan count; one that was not decided at `decided_at`, where that is given, is not the one looked at."""
        said = {"decision": Verdict.APPROVE, "by": by, "reason": reason}
        return self._judge(job, generation, said, decided_at)

    def refuse(
        self, job: str, generation: int, *, by: str, reason: str, replan: bool = False, decided_at: str | None = None
    ) -> ApprovalRecord:
        """Refuse a proposed plan; `replan` decides anew at once without its policy, and the record tells the new generation.

        `decided_at` is as for `approve`.
        """
        said = {"decision": Verdict.REFUSE, "by": by, "reason": reason, "replan": replan}
        return self._judge(job, generation, said, decided_at)

    def approvals(self, job: str, *, cursor: str | None = None, limit: int = 100) -> ApprovalPage:
        """A page of what was said about a job's plans."""
        return self._read(ApprovalPage, path_of(job, "approvals"), {"cursor": cursor, "limit": limit})

    def heartbeat(self, job: str, heartbeats: Heartbeats) -> HeartbeatAnswer:
        """Tell that workers of a host are alive; the answer tells of newer plans."""
        return self._write(HeartbeatAnswer, path_of(job, "heartbeats"), heartbeats)

    def follow(
        self, job: str | None = None, *, after: int | None = None, kinds: Sequence[NewsKind] = (), brief: bool = True
    ) -> Generator[News, None, None]:
        """Events, reports and plans as they come, over as many connections as it takes; close the generator to stop.

        Args:
            job: whose; null for all jobs that the token allows.
            after: log number (of all jobs: position) to begin behind, 0 for the whole past; null begins with what comes next.
            kinds: what to be told of; nothing means everything.
            brief: plans without alternatives and previous plan.
        """
        path = "/v1/stream" if job is None else path_of(job, "stream")
        asked = {"after": after, "kinds": ",".join(kinds) or None, "detail": "brief" if brief else "full"}
        return follow(self._connection, path, asked)

    def plans(self, job: str, generation: int, *, wait_seconds: float = 30.0, brief: bool = True) -> Generator[Answer, None, None]:
        """The latest plan whenever it is newer than the one before, beginning above `generation`; some may be overtaken unseen."""
        while True:
            answer = self.plan_after(job, generation, wait_seconds=wait_seconds, brief=brief)
            if answer is not None:
                generation = answer.generation
                yield answer

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

    def _answered(self, job: str, body: Any, brief: bool) -> Answer:
        for _ in range(ceil(LONGEST_COALESCING_SECONDS / GATHERING_SECONDS) + 1):
            answer = self._submitted(job, body, 0.0 if self.is_hurried else GATHERING_SECONDS, brief)
            if isinstance(answer, Answer):
                return answer  # events that were seen change nothing: asking again is waiting for their one answer
            if self.is_hurried:
                raise UnavailableError(f"decides at {answer.decides_at}, which is not waited for", field="job", value=job)
        raise UnavailableError(f"did not decide about the events within {LONGEST_COALESCING_SECONDS:g} s", field="job", value=job)

    def _submitted(self, job: str, body: Any, wait_seconds: float, brief: bool) -> Answer | Pending:
        parameters = {"wait_seconds": wait_seconds, **_detail(brief)}
        path, content = path_of(job, "events"), codec.dumps(body)
        return self._connection.send(
            "POST", path, _answer_so_far, parameters=parameters, content=content, wait_seconds=wait_seconds
        )

    def _judge(self, job: str, generation: int, said: Mapping[str, Any], decided_at: str | None) -> ApprovalRecord:
        body = said if decided_at is None else {**said, "decided_at": decided_at}  # a service before this field would refuse it
        return self._write(ApprovalRecord, path_of(job, "plans", str(generation), "approval"), body)

    def _read(self, kind: type[T], path: str, parameters: Mapping[str, Any] | None = None, *, wait_seconds: float = 0.0) -> T:
        return self._connection.send("GET", path, answer_of(kind), parameters=parameters, wait_seconds=wait_seconds)

    def _write(self, kind: type[T], path: str, body: Any, parameters: Mapping[str, Any] | None = None) -> T:
        return self._connection.send("POST", path, answer_of(kind), parameters=parameters, content=codec.dumps(body))


def _detail(brief: bool) -> dict[str, str]:
    return {"detail": "brief"} if brief else {}


def _answer_so_far(response: httpx2.Response) -> Answer | Pending:
    return answer_of(Pending)(response) if response.status_code == httpx2.codes.ACCEPTED else answer_of(Answer)(response)
