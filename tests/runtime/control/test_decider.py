import threading
import time
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.ending import Ending, Outcome
from kintsugi.core.errors import InfeasibleError, NotFoundError, UnavailableError
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions
from tests.builders import snapshot_of, uniform_profile


def lost(worker: str) -> Event:
    return Event(kind=EventKind.WORKER_FAILED, id=f"lost-{worker}", generation=0, worker=worker)


def joined(worker: str) -> Event:
    return Event(kind=EventKind.WORKER_JOINED, id=f"joined-{worker}", generation=0, worker=worker)


def draining(worker: str) -> Event:
    return Event(kind=EventKind.WORKER_DRAINING, id=f"draining-{worker}", generation=0, worker=worker)


class Flaky(LocalDecisions):
    """Fails as told, and remembers every call."""

    def __init__(self, failures):
        self.failures = list(failures)
        self.calls = []

    def after(self, events) -> Decision:
        self.calls.append([event.worker for event in events])
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        return super().after(events)

    def applied(self, generation: int) -> None:
        self.calls.append(generation)
        super().applied(generation)

    def measured(self, generation: int, measured: Measurement) -> None:
        raise UnavailableError("gone", field="url")


@pytest.fixture
def request_():
    snapshot = snapshot_of(uniform_profile(12), Cluster.uniform(6), 12)
    return JobRequest(name="job", profile=snapshot.profile, cluster=snapshot.cluster, settings=snapshot.settings)


def started(source, request_) -> Decider:
    decider = Decider(source, timeout_seconds=0.0)
    decider.start(request_)
    return decider


def wait_for(decider: Decider):
    assert decider.wake.poll(120.0)
    decider.wake.recv()
    return decider.finish()


def test_a_decision_carries_the_next_generation(request_):
    decider = started(Flaky([]), request_)
    decider.submit([lost("w01")])
    assert wait_for(decider) is not None
    assert [decision.plan.generation for decision in decider.decisions] == [0, 1]
    assert "w01" not in decider.decisions[-1].plan.workers
    decider.close()


def test_events_that_nobody_answered_are_told_again_with_the_next_ones(request_):
    source = Flaky([UnavailableError("gone", field="url"), None])
    decider = started(source, request_)
    decider.submit([lost("w01")])
    with pytest.raises(UnavailableError):
        wait_for(decider)
    decider.submit([lost("w02")])
    wait_for(decider)
    assert source.calls == [["w01"], ["w01", "w02"]]
    assert not {"w01", "w02"} & set(decider.decisions[-1].plan.workers)
    decider.close()


def test_what_is_waited_for_is_told_once_a_minute_and_in_the_error(request_):
    decider = Decider(Flaky([UnavailableError("gone", field="url")] * 9), timeout_seconds=1.2)
    decider.start(request_)
    with capture_logs() as logs:
        decider.submit([lost("w01")])
        with pytest.raises(UnavailableError) as given_up:
            wait_for(decider)
    waits = [log for log in logs if log["event"] == "waits for a decision"]
    assert [(log["about"], log["reason"]) for log in waits] == [(["worker_failed w01"], "gone")]
    assert 0 <= waits[0]["seconds_left"] <= 1
    told = "no decision on worker_failed w01 came within 1.2 s (decision_timeout_seconds of AgentOptions): gone"
    assert (given_up.value.message, given_up.value.field) == (told, "url")
    decider.close()


def test_the_time_for_an_answer_begins_anew_where_this_very_process_was_away_meanwhile(request_):
    """As where a job is paused as a whole while it asks: no service could answer then."""
    presence = SimpleNamespace(back_at=time.monotonic() + 600.0)
    source = Flaky([UnavailableError("gone", field="url"), None])
    decider = Decider(source, 0.0, presence)
    decider.start(request_)
    decider.submit([lost("w01")])
    assert wait_for(decider) is not None
    assert source.calls == [["w01"], ["w01"]]
    decider.close()


def test_who_was_told_of_in_vain_is_known_until_a_decision_answers(request_):
    """Who joined is told to be gone again, once there is no decision with it; a loss that is told together with it is answered."""
    source = Flaky([InfeasibleError("no room", field="worker", value="w09")])
    decider = started(source, request_)
    decider.submit([joined("w09"), lost("w01")])
    with pytest.raises(InfeasibleError):
        wait_for(decider)
    assert decider.unanswered(EventKind.WORKER_JOINED) == ["w09"]
    assert decider.unanswered(EventKind.WORKER_DRAINING) == []
    decider.submit([lost("w09")])
    assert wait_for(decider) is not None
    assert decider.unanswered(EventKind.WORKER_JOINED) == decider.unanswered(EventKind.WORKER_FAILED) == []
    assert source.calls == [["w09", "w01"], ["w09", "w01", "w09"]]
    assert not {"w01", "w09"} & set(decider.decisions[-1].plan.workers)
    decider.close()


def test_who_leaves_and_stays_is_planned_with(request_):
    """Nobody is left where all leave; once they are told to stay, all but the lost one are."""
    everybody = [worker.id for worker in request_.cluster.workers]
    others = [worker for worker in everybody if worker != "w01"]
    decider = started(LocalDecisions(), request_)
    decider.submit([lost("w01"), *(draining(worker) for worker in others)])
    with pytest.raises(InfeasibleError):
        wait_for(decider)
    decider.submit([Event(kind=EventKind.WORKER_STAYING, id=f"staying-{worker}", generation=0, worker=worker) for worker in others])
    assert wait_for(decider) is not None
    plan = decider.decisions[-1].plan
    assert {*plan.workers, *(idle.worker for idle in plan.idle_workers)} == set(others)
    decider.close()


def test_events_that_nobody_answered_are_told_at_last_when_the_job_ends(request_):
    source = Flaky([UnavailableError("gone", field="url")])
    decider = started(source, request_)
    decider.submit([lost("w01")])
    with pytest.raises(UnavailableError):
        wait_for(decider)
    decider.close()
    decider.close()
    assert source.calls == [["w01"], ["w01"]]


def test_events_without_a_plan_are_not_told_again_when_the_job_ends(request_):
    source = Flaky([InfeasibleError("no plan", field="workers"), None, InfeasibleError("no plan", field="workers")])
    decider = started(source, request_)
    decider.submit([lost("w01")])
    with pytest.raises(InfeasibleError):
        wait_for(decider)
    decider.submit([lost("w02")])
    wait_for(decider)
    decider.submit([lost("w03")])
    with pytest.raises(InfeasibleError):
        wait_for(decider)
    decider.close()
    assert source.calls == [["w01"], ["w01", "w02"], ["w03"]]


def test_a_source_that_returns_in_time_is_waited_for(request_):
    source = Flaky([UnavailableError("restarting", field="url"), None])
    decider = Decider(source, timeout_seconds=30.0)
    decider.start(request_)
    decider.submit([lost("w01")])
    wait_for(decider)
    assert source.calls == [["w01"], ["w01"]]
    decider.close()


def test_the_end_is_told_last_and_only_of_what_began(request_):
    class Listener(Flaky):
        def __init__(self) -> None:
            super().__init__([])
            self.told: list[object] = []

        def applied(self, generation: int) -> None:
            self.told.append(generation)

        def ended(self, ending: Ending) -> None:
            self.told.append(ending)
            raise UnavailableError("gone", field="url")

    ending, source = Ending(outcome=Outcome.COMPLETED), Listener()
    Decider(source, timeout_seconds=0.0).close(ending)
    assert source.told == []
    decider = started(source, request_)
    decider.tell_applied(0)
    decider.close(ending)
    assert source.told == [0, ending]


def test_a_report_that_is_refused_does_not_stand_in_the_way(request_):
    class Refusing(Flaky):
        def applied(self, generation: int) -> None:
            raise NotFoundError("no such generation", field="generation", value=generation)

    decider = started(Refusing([]), request_)
    decider.tell_applied(7)
    decider.submit([lost("w01")])
    assert wait_for(decider) is not None
    decider.close()


def test_where_the_state_lies_is_told_before_the_next_decision_is_asked_for(request_):
    source = Flaky([])
    decider = started(source, request_)
    decider.tell_applied(0)
    decider.submit([lost("w03")])
    wait_for(decider)
    assert source.calls == [0, ["w03"]]
    decider.close()


def test_a_plan_that_is_not_carried_out_is_told_with_its_reason_and_the_next_one_follows_the_one_before(request_):
    class Told(Flaky):
        def rejected(self, generation: int, reason: str) -> None:
            self.calls.append((generation, reason))

    source = Told([])
    decider = started(source, request_)
    decider.submit([lost("w03")])
    wait_for(decider)
    decider.tell_rejected(1, "the workers agreed on another one")
    decider.submit([lost("w02")])
    wait_for(decider)
    decider.close()
    assert source.calls == [["w03"], (1, "the workers agreed on another one"), ["w02"]]


def test_an_infeasible_job_says_so_and_the_thread_ends(request_):
    decider = started(Flaky([]), request_)
    decider.submit([lost(worker.id) for worker in request_.cluster.workers])
    with pytest.raises(InfeasibleError):
        wait_for(decider)
    decider.close()


def test_a_lost_measurement_does_no_harm(request_):
    decider = started(Flaky([]), request_)
    decider.tell_measured(0, Measurement(step=1))
    decider.submit([lost("w00")])
    assert wait_for(decider) is not None
    decider.close()


class Keeper(LocalDecisions):
    """Keeps agreements; the first call waits until it may go on."""

    def __init__(self):
        self.kept = []
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()

    def made_ahead(self, generation: int):
        return {}

    def keep(self, generation: int, agreement: str) -> None:
        self.is_asked.set()
        assert self.may_go_on.wait(120.0)
        self.kept.append((generation, agreement))
        if generation == 2:
            raise UnavailableError("gone", field="url")


def close_while_busy(decider: Decider, source: Keeper) -> None:
    """Its thread is in the middle of the first call, and goes on once the closing has begun."""
    assert source.is_asked.wait(120.0)
    closing = threading.Thread(target=decider.close)
    closing.start()
    assert decider._is_closing.wait(120.0)
    source.may_go_on.set()
    closing.join(120.0)
    assert not closing.is_alive()


def test_what_workers_agreed_on_is_told_even_where_the_decider_is_closed_meanwhile(request_):
    source = Keeper()
    decider = started(source, request_)
    told = [(generation, f"agreement {generation}") for generation in (1, 2, 3)]
    for one in told:
        decider.tell_agreed(*one)
    close_while_busy(decider, source)
    assert source.kept == told


def test_who_was_lost_is_told_even_where_the_decider_is_closed_meanwhile(request_):
    source = Keeper()
    decider = started(source, request_)
    decider.tell_agreed(1, "agreement 1")
    assert source.is_asked.wait(120.0)
    decider.submit([lost("w03")])
    close_while_busy(decider, source)
    assert "w03" not in decider.decisions[-1].plan.workers
