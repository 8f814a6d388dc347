"""For how long the agent waits for what, to the second, on a clock that stands still between two looks."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from kintsugi.core.decision import Decision, Migration
from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.control import links, patience
from kintsugi.runtime.control.attempt import Attempt, Phase
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.patience import Overdue, Patience
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.messages import Probe, Reached, StepDone
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.workers.commit import StepStatus
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request

OPTIONS = AgentOptions()
MAKESPAN_SECONDS = 7.0
LONG_AGO, BEGAN_AT, MOMENT = 1_000.0, 5_000.0, 0.001


@dataclass(eq=False)
class Process:
    """Of a worker, as its agent sees it."""

    worker: str
    started_at: float | None = LONG_AGO
    created_at: float = LONG_AGO
    address: None = None
    exit_code: None = None
    ending: str = ""
    told: list[object] = field(default_factory=list)
    is_fenced: bool = False

    def send(self, message: object) -> None:
        self.told.append(message)

    def fence(self) -> None:
        self.is_fenced = True


class Watch:
    """Patience with a job of four workers, and what it looks at."""

    def __init__(self) -> None:
        self.now = BEGAN_AT
        first = LocalDecisions().start(gpt_request(2, 2))
        self.decision: Decision = replace(first, migration=Migration(makespan_seconds=MAKESPAN_SECONDS))
        self.members = first.plan.workers
        self.fleet = Fleet(tiny_gpt, WorkerOptions())
        self.fleet.handles = {worker: Process(worker) for worker in self.members}
        self.progress = Progress()
        self.progress.moved_at = LONG_AGO
        self.attempt = Attempt(2, phase_began_at=BEGAN_AT, members=self.members)
        self.patience = Patience(OPTIONS, self.fleet, self.progress)

    def after(self, seconds: float, phase: Phase) -> Overdue | None:
        """What is overdue so many seconds after the phase began."""
        self.now, before = BEGAN_AT + seconds, self.attempt.probe
        overdue = self.patience.overdue(phase, self.attempt, self.decision, self.decision.plan)
        if (asked := self.attempt.probe) is not None and asked is not before:
            asked.asked_at = self.now  # not by the machine's own clock, on which it is earlier or later
        return overdue

    def saw_step(self, seconds: float) -> None:
        self.progress.take(StepDone(attempt=1, step=0, loss=0.0, seconds=seconds, at=0.0, microbatches=(1,)))
        self.progress.moved_at = LONG_AGO

    def questions(self) -> list[int]:
        """That every member was asked."""
        asked = [
            [message.number for message in handle.told if isinstance(message, Probe)] for handle in self.fleet.handles.values()
        ]
        assert all(numbers == asked[0] for numbers in asked)
        return asked[0]

    def all_reach_each_other(self) -> None:
        for member in self.members:
            self.attempt.hear(Reached(self.questions()[-1], ()), member)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    made = Watch()
    for module in (patience, links):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def longest_pass(decision: Decision) -> float:
    return max(stage.forward_seconds + stage.backward_seconds for stage in decision.estimate.stages)


def test_a_process_has_so_long_to_know_its_model(watch):
    slow, invited = watch.fleet.handles["w01"], {"w08": Process("w08", None), "w09": Process("w09")}
    slow.started_at, watch.fleet.arrivals = None, dict(invited)
    for handle in (slow, *invited.values()):
        handle.created_at = BEGAN_AT
    watch.attempt.statuses = dict.fromkeys(watch.members)
    assert watch.after(OPTIONS.start_timeout_seconds, Phase.STARTING) is None
    with pytest.raises(UnavailableError, match="w01 did not start within 120 s") as caught:
        watch.after(OPTIONS.start_timeout_seconds + MOMENT, Phase.STARTING)
    assert caught.value.value == ["w01"]
    assert not invited["w08"].is_fenced
    slow.started_at = BEGAN_AT
    assert watch.after(OPTIONS.start_timeout_seconds + MOMENT, Phase.STARTING) is None
    assert [handle.is_fenced for handle in invited.values()] == [True, False]
    assert watch.fleet.arrivals.keys() == {"w09"}


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.QUIESCING])
@pytest.mark.parametrize("seen_seconds", [None, 100.0])
def test_a_survivor_has_so_long_to_leave_its_step(watch, phase, seen_seconds):
    watch.attempt.statuses = {"w00": StepStatus(step=1), "w01": None}
    watch.fleet.handles["w02"].started_at = None
    watch.fleet.handles["w02"].created_at = BEGAN_AT + 100.0
    if seen_seconds is not None:
        watch.saw_step(seen_seconds)
    step = seen_seconds or 3 * longest_pass(watch.decision)
    limit = OPTIONS.quiesce_timeout_seconds + step + 2 * MAKESPAN_SECONDS
    assert watch.after(limit - MOMENT, phase) is None
    overdue = watch.after(limit + MOMENT, phase)
    assert overdue == Overdue((watch.fleet.handles["w03"],), "did not leave its step")
    watch.fleet.handles["w03"].started_at = BEGAN_AT + 1.0
    assert watch.after(limit + MOMENT, phase) is None
    assert watch.after(limit + 1.0 + MOMENT, phase) == overdue


def test_members_have_so_long_to_be_ready(watch):
    limit = OPTIONS.prepare_timeout_seconds + 2 * MAKESPAN_SECONDS
    watch.attempt.asked_at = BEGAN_AT + limit
    assert watch.after(limit - MOMENT, Phase.PREPARING) is None
    assert watch.after(limit + MOMENT, Phase.PREPARING) == Overdue(reason="not ready within 314 s")
    assert watch.after(limit + MOMENT, Phase.TRAINING) is None
    assert watch.questions() == []


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.TRAINING])
def test_a_broken_connection_has_so_long_to_be_explained_by_a_loss(watch, phase):
    watch.attempt.broken = (BEGAN_AT + 1.0, "w00: a message failed")
    assert watch.after(1.0 + OPTIONS.link_grace_seconds, phase) is None
    assert watch.questions() == []
    assert watch.after(1.0 + OPTIONS.link_grace_seconds + MOMENT, phase) is None
    assert watch.questions() == [1]
    assert watch.after(1.0 + OPTIONS.link_grace_seconds + 2 * MOMENT, phase) is None
    assert watch.questions() == [1], "one question at a time"
    watch.all_reach_each_other()
    assert watch.after(5.0, phase) == Overdue(reason="w00: a message failed")


def test_an_answer_is_not_waited_for_without_end(watch):
    watch.attempt.broken = (BEGAN_AT, "w00: a message failed")
    asked_at = OPTIONS.link_grace_seconds + MOMENT
    assert watch.after(asked_at, Phase.TRAINING) is None
    assert watch.after(asked_at + 2 * OPTIONS.probe_timeout_seconds - MOMENT, Phase.TRAINING) is None
    assert watch.after(asked_at + 2 * OPTIONS.probe_timeout_seconds + MOMENT, Phase.TRAINING) is not None


@pytest.mark.parametrize("seen_seconds", [None, 100.0])
def test_a_step_has_so_long_until_all_are_asked_whom_they_reach(watch, seen_seconds):
    if seen_seconds is not None:
        watch.saw_step(seen_seconds)
    step = max(seen_seconds or 0.0, watch.decision.estimate.iteration_seconds)
    limit = OPTIONS.stall_timeout_seconds + 10 * step + 2 * MAKESPAN_SECONDS
    for phase in (Phase.STARTING, Phase.QUIESCING, Phase.COLLECTING):
        watch.attempt.statuses = dict.fromkeys(watch.members)
        watch.attempt.collected = dict.fromkeys(watch.members)
        watch.after(limit + MOMENT, phase)
    assert watch.after(limit - MOMENT, Phase.TRAINING) is None
    assert watch.questions() == []
    assert watch.after(limit + MOMENT, Phase.TRAINING) is None
    assert watch.questions() == [1]
    watch.all_reach_each_other()
    assert watch.after(limit + MOMENT, Phase.TRAINING) is None, "nothing is done about slowness"
    assert watch.after(2 * limit, Phase.TRAINING) is None
    assert watch.questions() == [1]
    assert watch.after(2 * limit + 2 * MOMENT, Phase.TRAINING) is None
    assert watch.questions() == [1, 2]


def test_a_step_that_was_told_of_begins_the_wait_anew(watch):
    limit = OPTIONS.stall_timeout_seconds + 10 * watch.decision.estimate.iteration_seconds + 2 * MAKESPAN_SECONDS
    watch.progress.moved_at = BEGAN_AT + 50.0
    watch.after(50.0 + limit - MOMENT, Phase.TRAINING)
    assert watch.questions() == []
    watch.after(50.0 + limit + MOMENT, Phase.TRAINING)
    assert watch.questions() == [1]
