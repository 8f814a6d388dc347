"""Where the agent's decisions come from: the service, or the planner in this very process."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kintsugi.core.cluster import Cluster
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.membership import Event, Membership
from kintsugi.core.messages import Measurement
from kintsugi.core.plan import Decision, Plan
from kintsugi.core.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a job is planned from."""

    name: str
    profile: Profile
    cluster: Cluster
    settings: JobSettings
    plan: Plan | None = None
    """Start from this plan instead of searching for one."""


class Decisions(Protocol):
    """Answers membership events with plans. Calls come from one thread at a time."""

    def start(self, request: JobRequest) -> Decision:
        """The first plan, of generation 0."""

    def after(self, events: Sequence[Event]) -> Decision:
        """The plan once all of `events` happened.

        Raises:
            InfeasibleError: no plan exists for the workers that are left.
        """

    def applied(self, generation: int, measured: Measurement) -> None:
        """All workers run the plan of `generation`: their state lies where it puts it."""


class LocalDecisions:
    """The planner in this process: no service, nothing stored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def start(self, request: JobRequest) -> Decision:
        """Search, or adopt the request's plan."""
        from planner.replan import adopt, replan

        self._request = request
        self._membership = Membership.of(request.cluster)
        self._generation = 0
        snapshot = self._snapshot(None)
        decision = replan(snapshot) if request.plan is None else adopt(snapshot, request.plan)
        self._plans = {0: decision.plan}
        self._applied = decision.plan
        return decision

    def after(self, events: Sequence[Event]) -> Decision:
        """Replan from the plan that was applied last."""
        from planner.replan import replan

        with self._lock:
            for event in events:
                self._membership = self._membership.after(event)
            self._generation += 1
            decision = replan(self._snapshot(self._applied))
            self._plans[self._generation] = decision.plan
            return decision

    def applied(self, generation: int, measured: Measurement) -> None:  # noqa: ARG002  # nothing is stored
        """Plan from here on."""
        with self._lock:
            self._applied = self._plans[generation]

    def _snapshot(self, plan: Plan | None) -> Snapshot:
        return Snapshot(
            profile=self._request.profile,
            cluster=self._membership.cluster,
            settings=self._request.settings,
            plan=plan,
            alive=self._membership.alive,
            generation=self._generation,
        )
