"""The lifecycle of plans against a plain model of it, and its table against what is documented."""

import re
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from api.jobs.admission import check_approval, check_report
from api.jobs.history import Entry, History
from api.jobs.lifecycle import TRANSITIONS, Lifecycle
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import KintsugiError
from kintsugi.core.handling import Approval, DeadlineKind, Expiry, Handling, PlanStatus, Verdict
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.messages import Report, ReportStatus

AT = "2026-01-31T12:00:{:02d}.000000Z"
HANDLINGS = {
    "free": Handling(answer_timeout_seconds=5.0),
    "approval": Handling(
        requires_approval=True, approval_timeout_seconds=5.0, on_approval_timeout=Verdict.APPROVE, answer_timeout_seconds=3.0
    ),
    "advice": Handling(advise_only=True),
    "coalesce": Handling(coalesce_seconds=2.0),
}


class Plans(RuleBasedStateMachine):
    """One job's history; the model is a dictionary of statuses, and knows nothing of how the real one forgets."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.handling = kind, HANDLINGS[kind]
        first = Lifecycle.of(self.handling, created_at=AT.format(0), adopted=False)
        self.first = History(membership=Membership.of(Cluster.uniform(4)), lifecycle=first)
        self.history, self.entries, self.second, self.window = self.first, [], 0, None
        self.model = {0: "advised" if kind == "advice" else "applied"}
        self.approved, self.current, self.runs = {0}, 0, -1 if kind == "advice" else 0

    def log(self, content):
        """Append as the service does; every plan that is called for is found."""
        after = self.history.after(content, AT.format(self.second))
        called = after.calls_for_a_plan(self.history, [content])
        deferred = called and after.is_deferred([content])
        decided = called and not deferred
        at = AT.format(self.second)
        self.history = after.deferred(at) if deferred else after.decided(at) if decided else after
        entry = Entry(
            number=after.number,
            received_at=at,
            content=content,
            generation=self.history.generation,
            decided=decided,
            problem=None,
            deferred=deferred,
        )
        self.entries.append(entry)
        if deferred and self.window is None:
            self.window = self.second
        if decided:
            self.model_decision()

    def model_decision(self):
        latest = max(self.model)
        counts = self.kind != "approval"
        for generation, status in self.model.items():
            if status != "applied" and (counts or generation != self.current):
                self.model[generation] = "superseded"
        self.model[latest + 1] = {"advice": "advised", "approval": "proposed"}.get(self.kind, "approved")
        if counts:
            self.approved.add(latest + 1)
            self.current = latest + 1

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds):
        self.second = min(self.second + seconds, 59)

    def generation(self, data):
        """Any generation, and one that does not exist yet; in half of all cases the latest."""
        return data.draw(st.just(self.history.generation) | st.integers(0, self.history.generation + 1))

    @rule()
    def fail(self):
        alive = self.history.membership.alive
        kind, worker = (EventKind.WORKER_FAILED, alive[0]) if len(alive) > 1 else (EventKind.WORKER_JOINED, "w00")
        self.log(Event(kind=kind, id=f"e{len(self.entries)}", generation=self.history.generation, worker=worker))

    @rule(data=st.data(), status=st.sampled_from([ReportStatus.APPLIED, ReportStatus.REJECTED]))
    def report(self, data, status):
        generation = self.generation(data)
        report = Report(generation=generation, status=status, reason="because")
        allowed = generation in self.model and (generation in self.approved or generation < self.runs)
        allowed = allowed and (generation != self.runs if status is ReportStatus.REJECTED else generation >= self.runs)
        try:
            check_report(report, self.history)
        except KintsugiError:
            assert not allowed
            return
        assert allowed
        if status is ReportStatus.REJECTED and self.model[generation] in ("approved", "advised", "timed_out"):
            self.model[generation] = "rejected"
        if status is ReportStatus.APPLIED and generation > self.runs:
            starts_anew = self.kind == "approval"
            self.model = {g: "superseded" if g < generation or starts_anew else s for g, s in self.model.items()}
            self.model[generation], self.runs = "applied", generation
            self.current = generation if starts_anew else max(self.current, generation)
        self.log(report)

    @rule(data=st.data(), verdict=st.sampled_from(Verdict))
    def judge(self, data, verdict):
        generation = self.generation(data)
        approval = Approval(generation=generation, decision=verdict, by="Ada", reason="because")
        try:
            told = check_approval(approval, self.said(generation), self.history)
        except KintsugiError:
            assert self.model.get(generation) != "proposed"
            return
        if told is not None:
            assert told.content.decision is verdict
            return
        assert self.model[generation] == "proposed"
        self.judged(verdict)
        self.log(approval)

    def said(self, generation):
        return [e for e in self.entries if isinstance(e.content, Approval) and e.content.generation == generation]

    def judged(self, verdict):
        latest = max(self.model)
        self.model[latest] = "approved" if verdict is Verdict.APPROVE else "refused"
        if verdict is Verdict.APPROVE:
            self.approved.add(latest)
            self.current = latest
            for generation, status in self.model.items():
                if generation < latest and status != "applied":
                    self.model[generation] = "superseded"

    @rule()
    def expire(self):
        while (deadline := self.history.deadline) is not None and deadline.at <= AT.format(self.second):
            if deadline.kind is DeadlineKind.EVENTS:
                assert self.second - self.window >= self.handling.coalesce_seconds
                self.window = None
            elif deadline.kind is DeadlineKind.APPROVAL:
                self.judged(self.handling.on_approval_timeout)
            else:
                assert self.model[deadline.generation] == "approved"
                self.model[deadline.generation] = "timed_out"
            self.log(Expiry(kind=deadline.kind, generation=deadline.generation))

    @rule()
    def restart(self):
        history = self.first
        for entry in self.entries:
            history = history.replayed(entry)
        assert history == self.history
        self.history = codec.loads(History, codec.dumps(history))
        assert self.history == history

    @invariant()
    def plans_stand_as_the_model_says(self):
        lifecycle = self.history.lifecycle
        assert {g: lifecycle.standing(g).status.value for g in range(lifecycle.generation + 1)} == self.model
        assert (lifecycle.applied, lifecycle.current) == (self.runs, self.current)
        assert len(lifecycle.standings) <= 3
        assert (self.history.decides_at is None) == (self.window is None)
        waits = {"proposed": self.handling.approval_timeout_seconds, "approved": self.handling.answer_timeout_seconds}
        awaited = {generation for generation, status in self.model.items() if waits.get(status) is not None}
        assert {deadline.generation for deadline in lifecycle.deadlines} == awaited


@pytest.mark.parametrize("kind", HANDLINGS)
def test_plans_stand_as_the_model_says(kind):
    run_state_machine_as_test(lambda: Plans(kind), settings=settings(max_examples=40, stateful_step_count=25, deadline=None))


def test_the_documented_table_is_the_one_that_holds():
    text = Path(__file__).parents[3].joinpath("docs/jobs.md").read_text().partition("## How a plan stands")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| [^|]* \|$", text, re.MULTILINE)
    found = {status: set(re.findall(r"`(\w+)`", following)) for status, following in rows}
    assert found == {status.value: {after.value for after in following} for status, following in TRANSITIONS.items()}
    assert set(found) == {status.value for status in PlanStatus}
