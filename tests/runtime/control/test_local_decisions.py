"""The planner in the agent's own process plans from the same snapshots as a service that was told the same."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.jobs.history import History
from api.jobs.lifecycle import Lifecycle
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.handling import Handling
from kintsugi.core.job import Snapshot
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.messages import Report, ReportStatus
from kintsugi.core.plan import Plan
from kintsugi.runtime.control import decisions
from kintsugi.runtime.control.decisions import LocalDecisions
from tests.runtime.runs import gpt_request

REQUEST = gpt_request(2, 2)
FIRST = LocalDecisions().start(REQUEST)
CLUSTER = REQUEST.cluster


def plan_of(generation: int) -> Plan:
    changes = {"pipelines": FIRST.plan.pipelines[:1], "rounds": ()} if generation % 2 else {}
    return replace(FIRST.plan, generation=generation, **changes)


class Both:
    """What was told to the planner here, and the log of a service that was told the same; every other plan uses half of all."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(decisions, "planned", self._plan)
        self.snapshots: list[Snapshot] = []
        self.is_infeasible = False
        self.local = LocalDecisions()
        self.local.start(REQUEST)
        self.history = History(
            membership=Membership.of(CLUSTER), lifecycle=Lifecycle.of(Handling(), created_at="2026-01-01T00:00:00Z", adopted=True)
        )
        self.clusters = [CLUSTER]
        self.lives = dict.fromkeys((worker.id for worker in CLUSTER.workers), 0)
        self.num_events = 0

    def _plan(self, snapshot: Snapshot) -> Decision:
        self.snapshots.append(snapshot)
        if self.is_infeasible:
            raise InfeasibleError("nothing fits")
        return replace(FIRST, plan=plan_of(snapshot.generation))

    def event(self, kind: EventKind, worker: str) -> Event:
        self.num_events += 1
        self.lives[worker] += kind is EventKind.WORKER_JOINED
        speed = 0.5 if kind is EventKind.STRAGGLER else None
        return Event(
            kind=kind, id=str(self.num_events), generation=0, worker=worker, incarnation=self.lives[worker], speed_ratio=speed
        )

    def tell(self, *events: Event) -> None:
        for event in events:
            self.history = self.history.after(event)
        self.local.after(events)
        told = self.snapshots[-1]
        applied = plan_of(self.history.applied_generation)
        cluster = self.history.membership.cluster
        assert told.plan == applied
        assert (told.generation, told.alive) == (self.history.generation + 1, self.history.membership.alive)
        assert (told.stateless, told.draining) == (self.history.stateless(applied), self.history.draining(applied))
        assert told.cluster == cluster
        was_as_fast = cluster.is_as_fast_as(self.clusters[applied.generation], self.history.membership.alive)
        assert told.speeds_changed is not was_as_fast
        self.history = self.history.decided("2026-01-01T00:00:00Z")
        self.clusters.append(cluster)

    def apply(self) -> None:
        self.local.applied(self.history.generation)
        report = Report(generation=self.history.generation, status=ReportStatus.APPLIED)
        self.history = self.history.after(report, "2026-01-01T00:00:00Z")


WORKERS = st.sampled_from([worker.id for worker in CLUSTER.workers])
KINDS = {
    "leave": EventKind.WORKER_DRAINING,
    "fail": EventKind.WORKER_FAILED,
    "stay": EventKind.WORKER_STAYING,
    "slow": EventKind.STRAGGLER,
    "recover": EventKind.RECOVERED,
}
MOVES = st.tuples(WORKERS, st.sampled_from(list(KINDS)), st.booleans())


@given(st.lists(MOVES, max_size=12))
def test_of_who_holds_what_and_how_fast_all_are(moves):
    with pytest.MonkeyPatch.context() as patch:
        both = Both(patch)
        for worker, move, is_applied in moves:
            membership = both.history.membership
            kind = KINDS[move]
            if worker not in membership.alive and (worker not in membership.draining or move not in ("fail", "stay")):
                kind = EventKind.WORKER_JOINED
            both.tell(both.event(kind, worker))
            if is_applied:
                both.apply()


def test_of_who_came_back_before_another_plan_ran():
    with pytest.MonkeyPatch.context() as patch:
        both = Both(patch)
        both.tell(both.event(EventKind.WORKER_FAILED, "w01"))
        both.tell(both.event(EventKind.WORKER_JOINED, "w01"), both.event(EventKind.WORKER_DRAINING, "w02"))
        assert (both.snapshots[-1].stateless, both.snapshots[-1].draining) == (("w01",), ("w02",))
        both.apply()
        both.tell(both.event(EventKind.STRAGGLER, "w03"))
        assert (both.snapshots[-1].stateless, both.snapshots[-1].speeds_changed) == ((), True)


def test_what_no_plan_came_of_is_told_again_or_has_not_happened():
    with pytest.MonkeyPatch.context() as patch:
        both = Both(patch)
        told = [both.event(EventKind.WORKER_FAILED, "w01"), both.event(EventKind.WORKER_DRAINING, "w02")]
        both.is_infeasible = True
        try:
            both.local.after(told)
        except InfeasibleError:
            both.is_infeasible = False
        both.tell(told[0])
        assert both.snapshots[-1].draining == ()
        assert both.snapshots[-1].generation == 1
