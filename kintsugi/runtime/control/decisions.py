"""Where the agent's decisions come from: the service, or the planner in this very process."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

from kintsugi.client import Client
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.ending import Ending, Outcome
from kintsugi.core.errors import (
    ConflictError,
    InfeasibleError,
    KintsugiError,
    NotFoundError,
    StaleGenerationError,
    UnavailableError,
    told_as,
)
from kintsugi.core.handling import Handling, PlanStatus
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.logs import get_logger, told_if_long
from kintsugi.core.membership import Event, Membership
from kintsugi.core.messages import Answer, JobView, Measurement, Report, ReportStatus
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from kintsugi.runtime.control.begun import BegunJobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a job is planned from."""

    name: str
    profile: Profile
    cluster: Cluster
    settings: JobSettings
    plan: Plan | None = None
    """Start from this plan instead of searching for one."""
    handling: Handling | None = None
    """What has to happen before a plan of the service counts; null asks for nothing."""


_RESTAMPS = 10
"""How often events are told again because the job's generation moved on in between."""
_RETOLD_EVENTS = 1_000
"""How many of its latest events a job tells again to a service whose database was set back: what that lacks is the latest."""
_SET_BACK = "the service's database was emptied or set back behind this job"
_LOOK_SECONDS = 5.0
"""How often it is looked whether a plan that waits for approval was refused."""
_HURRIED_SECONDS = 6.0
"""For all that a job has to ask and tell at its end; what is under way has half of it."""
_UNSETTLED = (PlanStatus.PROPOSED, PlanStatus.SUPERSEDED)
"""Of a plan that is not to be carried out: what becomes of it, or of the one in its place, is to be seen."""
_APPROVAL_SECONDS = 86_400.0
"""How long an approval is waited for; jobs set shorter times (`Handling.approval_timeout_seconds`)."""


E = TypeVar("E", bound=KintsugiError)


class Decisions(Protocol):
    """Answers membership events with plans. Calls come from one thread at a time."""

    def start(self, request: JobRequest) -> Decision:
        """The first plan, of generation 0."""

    def after(self, events: Sequence[Event]) -> Decision:
        """The plan once all of `events` happened.

        Raises:
            InfeasibleError: no plan exists for the workers that are left.
            UnavailableError: no answer came in time.
        """

    def applied(self, generation: int) -> None:
        """The workers' state lies where the plan of `generation` puts it."""

    def rejected(self, generation: int, reason: str) -> None:
        """The plan of `generation` is not carried out."""

    def measured(self, generation: int, measured: Measurement) -> None:
        """What was measured under the plan of `generation`."""

    def ended(self, ending: Ending) -> None:
        """The job is over; nothing is asked or told any more."""

    def hurried(self) -> AbstractContextManager[None]:
        """While this is entered, nobody else is waited for longer than a few seconds in all, in calls under way neither."""


@runtime_checkable
class Ahead(Protocol):
    """A source of decisions that makes some ahead, and keeps what workers decided without it. For any thread."""

    def made_ahead(self, generation: int) -> Mapping[str, Decision]:
        """The decisions that would be of `generation`, as far as they are made, by the fingerprints of their snapshots.

        Raises:
            KintsugiError: they cannot be had now.
        """

    def keep(self, generation: int, agreement: str) -> None:
        """Have what the workers agreed on for a generation of theirs held for ever.

        Raises:
            ConflictError: another agreement is held for it.
        """


@runtime_checkable
class Awaiting(Protocol):
    """A source of decisions that may wait for somebody's word on a plan, and does not once the plan is out of date."""

    is_overtaken: Callable[[], bool]
    """Whether more has happened than it was asked about."""


def planned(snapshot: Snapshot) -> Decision:
    """`replan`, which on a machine where it has never run has loops to compile."""
    from planner.replan import replan  # here, for workers and plain scripts load this module, and do not plan

    with _told_if_long():
        return replan(snapshot)


def _first(snapshot: Snapshot) -> Decision:
    from planner.adoption import adopt

    if snapshot.plan is None:
        return planned(snapshot)
    with _told_if_long():
        return adopt(snapshot)


def _told_if_long() -> AbstractContextManager[None]:
    words = "still looks for a plan; where the planner has never run, its loops are compiled first, which takes a minute or two"
    return told_if_long(get_logger("kintsugi.runtime"), words)


class LocalDecisions:
    """The planner in this process: no service, nothing stored."""

    def start(self, request: JobRequest) -> Decision:
        """Search, or adopt the request's plan."""
        self._request = request
        self._membership = Membership.of(request.cluster)
        decision = _first(replace(self._snapshot(0, request.plan), settings=replace(request.settings, policy=None)))
        self._plans = {0: decision.plan}
        self._clusters = {0: self._membership.cluster}
        self._applied = decision.plan
        self._lost_after: dict[str, int] = {}
        """The latest generation when each worker was lost last."""
        return decision

    def after(self, events: Sequence[Event]) -> Decision:
        """Replan from the plan that was applied last. Events without a plan are forgotten: they are told again with others."""
        before = self._membership, self._lost_after
        generation = max(self._plans) + 1
        try:
            for event in events:
                self._take(event)
            decision = planned(self._snapshot(generation, self._applied))
        except KintsugiError:
            self._membership, self._lost_after = before
            raise
        self._plans[generation] = decision.plan
        self._clusters[generation] = self._membership.cluster
        return decision

    def applied(self, generation: int) -> None:
        """Plan from here on."""
        self._applied = self._plans[generation]

    def rejected(self, generation: int, reason: str) -> None:
        """Plan from the plan that was applied before."""

    def measured(self, generation: int, measured: Measurement) -> None:
        """Nothing is stored."""

    def ended(self, ending: Ending) -> None:
        """Nobody else knows of the job."""

    def hurried(self) -> AbstractContextManager[None]:
        """Nobody else is waited for."""
        return nullcontext()

    def _take(self, event: Event) -> None:
        bereft = self._membership.bereft_by(event)
        self._membership = self._membership.after(event)
        self._lost_after = self._lost_after | dict.fromkeys(bereft, max(self._plans))

    def _stateless(self, plan: Plan) -> tuple[str, ...]:
        """Workers that came back after their loss took the state with it that `plan` gave them."""
        since = plan.generation
        return tuple(w for w in self._membership.alive if w in plan.pipeline_of and self._lost_after.get(w, -1) >= since)

    def _snapshot(self, generation: int, plan: Plan | None) -> Snapshot:
        return Snapshot(
            profile=self._request.profile,
            cluster=self._membership.cluster,
            settings=self._request.settings,
            plan=plan,
            alive=self._membership.alive,
            generation=generation,
            stateless=() if plan is None or generation == 0 else self._stateless(plan),
            draining=() if plan is None else tuple(w for w in self._membership.draining if w in plan.pipeline_of),
            speeds_changed=plan is not None and generation > 0 and not self._is_as_fast_as_for(plan),
        )

    def _is_as_fast_as_for(self, plan: Plan) -> bool:
        return self._membership.cluster.is_as_fast_as(self._clusters[plan.generation], self._membership.alive)


class ServiceDecisions:
    """The service, over HTTP: every event and decision is stored before it is acted on."""

    def __init__(self, client: Client, begun: BegunJobs | None = None) -> None:
        """`begun`: where it is kept, for another life, which jobs go on at the service; null keeps it nowhere."""
        self._client = client
        self._begun = begun
        self._log = get_logger("kintsugi.runtime")
        self._job = ""
        """Empty before there is one."""
        self.is_overtaken: Callable[[], bool] = lambda: False

    def start(self, request: JobRequest) -> Decision:
        """Create the job, or get it again; one that was started before is over."""
        self._told: deque[Event] = deque(maxlen=_RETOLD_EVENTS)
        with nullcontext() if self._begun is None else self._begun.beginning(request.name, self._is_there):
            view = self._created(request)
        before, self._job = self._job, request.name
        if before:
            self._end(before, f"begins anew as {request.name}")
        return view.decision

    def _is_there(self, job: str) -> bool:
        try:
            self._client.job(job)
        except NotFoundError:
            return False
        return True

    def _created(self, request: JobRequest) -> JobView:
        with told_as({"id": "name"}):
            view = self._client.create_job(
                job=request.name,
                profile=request.profile,
                cluster=request.cluster,
                settings=request.settings,
                plan=request.plan,
                handling=request.handling,
            )
        if view.ended is not None:
            raise ConflictError(
                f"has ended ({view.ended.ending.outcome.value}); choose another name", field="name", value=request.name
            )
        if view.summary.generation != 0:
            raise ConflictError("has run before, and workers were lost; choose another name", field="name", value=request.name)
        return view

    def _end(self, job: str, reason: str) -> None:
        try:
            self._client.end(job, Outcome.CANCELLED, reason=reason, by="agent")
            self._note_over(job)
        except KintsugiError as error:
            self._log.warning("the service does not know that a job is over", job=job, reason=reason, error=str(error))

    def after(self, events: Sequence[Event]) -> Decision:
        """Report the events; the answer is durable. Where others reported too, they count from the latest generation.

        A plan that has to be approved is waited for. A service that forgot events, for its database was set back, is told them
        again; from which plan its own leads does not matter, as state is moved from where it lies.

        Raises:
            NotFoundError: it forgot the job itself.
            InfeasibleError: no plan exists, or none from the older plan that it knows of.
        """
        generation, is_set_back = events[0].generation, False
        for _ in range(_RESTAMPS):
            asked = [replace(event, generation=generation) for event in (*(self._told if is_set_back else ()), *events)]
            try:
                answer = self._approved(self._client.post_events(self._job, asked, brief=True))
            except StaleGenerationError as error:
                is_set_back = is_set_back or error.current_generation < generation
                generation = error.current_generation
            except NotFoundError as error:
                if error.field == "job":
                    raise _explained(error) from None
                if is_set_back:
                    raise
                is_set_back = True  # all that this job's events name was there
            except InfeasibleError as error:
                if is_set_back:
                    raise _explained(error) from None
                raise
            else:
                if is_set_back:
                    self._log.warning(f"{_SET_BACK}; it was told again what it lacked", generation=answer.generation)
                self._told.extend(events)
                return answer.decision
        raise UnavailableError("others keep changing the job's membership", field="generation", value=events[0].generation)

    def _approved(self, answer: Answer) -> Answer:
        """The plan to go on with once `answer` was told.

        Raises:
            InfeasibleError: its plan was refused.
            UnavailableError: nobody said anything before more happened.
        """
        deadline = time.monotonic() + _APPROVAL_SECONDS
        while answer.status in _UNSETTLED and time.monotonic() < deadline and not self._client.is_hurried:
            if self.is_overtaken():
                raise UnavailableError("more happened before its plan was approved", field="generation", value=answer.generation)
            newer = self._client.plan_after(self._job, answer.generation - 1, wait_seconds=_LOOK_SECONDS, brief=True)
            answer = newer or self._latest(answer.generation)
        if answer.status in (*_UNSETTLED, PlanStatus.REFUSED):
            reason = answer.standing.reason if answer.standing is not None else ""
            raise InfeasibleError(f"the plan was not approved: {reason or 'nobody did in time'}")
        return answer

    def _latest(self, generation: int) -> Answer:
        """How the plan of a generation stands, or the latest one that was decided in its place."""
        answer = self._client.plan_at(self._job, generation, brief=True)
        if answer.status is not PlanStatus.SUPERSEDED:
            return answer
        return self._client.plan_at(self._job, self._client.job(self._job).summary.generation, brief=True)

    def applied(self, generation: int) -> None:
        """Tell the service where the state lies."""
        self._client.report(self._job, Report(generation=generation, status=ReportStatus.APPLIED))

    def rejected(self, generation: int, reason: str) -> None:
        """Tell the service that its plan is not carried out, and why."""
        self._client.report(self._job, Report(generation=generation, status=ReportStatus.REJECTED, reason=reason))

    def made_ahead(self, generation: int) -> Mapping[str, Decision]:
        """What the service has made ahead."""
        return {told.fingerprint: told.decision for told in self._client.all_contingencies(self._job, generation)}

    def keep(self, generation: int, agreement: str) -> None:
        """Under the service's lease on the generation."""
        self._client.claim_lease(self._job, generation, holder="agent", agreement=agreement)

    def measured(self, generation: int, measured: Measurement) -> None:
        """Tell the service what was measured."""
        self._client.report(self._job, Report(generation=generation, status=ReportStatus.MEASURED, measured=measured))

    def ended(self, ending: Ending) -> None:
        """Tell the service that nothing is to be planned or waited for any more."""
        self._client.end(self._job, ending.outcome, reason=ending.reason, by=ending.by)
        self._note_over(self._job)

    def _note_over(self, job: str) -> None:
        if self._begun is not None:
            self._begun.over(job)

    def hurried(self) -> AbstractContextManager[None]:
        """No approval is waited for, and the service only so long."""
        return self._client.hurried(_HURRIED_SECONDS)


def _explained(error: E) -> E:
    """The same error, with why it came."""
    error.message = f"{error.message}; {_SET_BACK}: start it again under another name, from its last checkpoint"
    return error
