"""Training goes on while the scheduler is away; who waits for it says so, and that is what an error speaks of."""

import threading
from dataclasses import replace

from structlog.testing import capture_logs

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.overlay.absence import Absence
from tests.patience import eventually
from tests.runtime.overlay.crew import OPTIONS, Crew
from tests.runtime.overlay.desk import Desk
from tests.runtime.overlay.test_churn import check

AWAY = UnavailableError("the service does not answer", field="service")


class AwayDesk(Desk):
    """Answers nothing while it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = threading.Event()

    def _require_here(self) -> None:
        if self.is_away.is_set():
            raise AWAY

    def post(self, event):
        self._require_here()
        return super().post(event)

    def overlay(self, *arguments):
        self._require_here()
        told = super().overlay(*arguments)
        self._require_here()
        return told

    def beat(self, heartbeat):
        self._require_here()
        return super().beat(heartbeat)


def left_alone(**options) -> Crew:
    """Three that train, know that the scheduler is away, and then lose one."""
    crew = Crew(AwayDesk(), replace(OPTIONS, **options))
    crew.start_connected("a", "b", "c")
    crew.desk.is_away.set()
    for member in crew.members.values():
        assert eventually(lambda agent=member.coordinator._member.agent: agent.why_nothing_moves, bool)
        member.await_steps(member.num_steps + 2)
    crew.members["c"].strike()
    return crew


def test_who_waits_for_a_scheduler_that_is_away_ends_with_an_error_that_says_so():
    crew = left_alone(reduction_timeout_seconds=1.0)
    for worker in ("a", "b"):
        crew.members[worker].join(120.0)
        assert isinstance(crew.members[worker].error, UnavailableError)
        assert "; the scheduler has not answered for" in str(crew.members[worker].error)
        crew.members[worker].error = None
    crew.finish()


def test_a_worker_that_is_lost_while_the_scheduler_is_away_is_gone_on_without_once_it_is_back():
    crew = left_alone()
    crew.desk.is_away.clear()
    for worker in ("a", "b"):
        crew.members[worker].await_steps(crew.members[worker].num_steps + 3)
        agent = crew.members[worker].coordinator._member.agent
        assert not eventually(lambda agent=agent: agent.why_nothing_moves, lambda why: not why)
    crew.finish()
    check(crew)


def test_it_is_told_after_ten_seconds_then_once_a_minute_and_when_it_is_over():
    now = [0.0]
    absence = Absence("w1", lambda: now[0])
    with capture_logs() as logs:
        for now[0] in range(0, 100, 5):
            absence.not_answered(AWAY)
        now[0] = 101.0
        assert absence.warning.startswith("the scheduler has not answered for 101 s")
        absence.answered()
    told = [(log["log_level"], log["away_seconds"]) for log in logs]
    assert told == [("warning", 10.0), ("warning", 70.0), ("info", 101.0)]
    assert (absence.seconds, absence.warning) == (0.0, "")


def test_a_single_request_that_fails_is_not_worth_a_word():
    absence = Absence("w1", lambda: 3.0)
    with capture_logs() as logs:
        absence.not_answered(AWAY)
        absence.answered()
    assert not logs
