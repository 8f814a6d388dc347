"""Whoever was to join and did not is told of, with the reason."""

import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.options import AgentOptions
from kintsugi.runtime.selfgoverned.overseer import Overseer
from tests.runtime.control.crews import Crew, Ensemble
from tests.runtime.runs import gpt_request

REQUEST = gpt_request(2, 2)
LET_GO, TOO_LATE = "let a worker go that was to join", "the job is over before these could join"


def told_of(logs: list, event: str) -> list[tuple[object, object]]:
    return [(log.get("worker", log.get("workers")), log.get("reason")) for log in logs if log["event"] == event]


def never_starts(ensemble: Ensemble) -> None:
    ensemble.crew.arrivals["w04"].created_at -= AgentOptions().start_timeout_seconds


def ends(ensemble: Ensemble) -> None:
    ensemble.crew.ended.append(ensemble.crew.arrivals["w04"])


@pytest.mark.parametrize(
    ("happens", "reason"),
    [(never_starts, "did not start within 120 s"), (ends, "its process ended or stopped before it was taken in")],
)
def test_who_is_let_go_before_it_takes_part_is_named(happens: Callable[[Ensemble], None], reason: str):
    with capture_logs() as logs, Ensemble(REQUEST, LocalDecisions()) as ensemble:
        ensemble.conductor.invite("w04", None)
        arrival = ensemble.crew.arrivals["w04"]
        arrival.started_at = None
        happens(ensemble)
        ensemble.until(lambda: not ensemble.crew.arrivals)
        assert arrival.is_fenced
    assert told_of(logs, LET_GO) == [("w04", reason)]
    assert told_of(logs, TOO_LATE) == []


def test_who_comes_too_late_is_named():
    with capture_logs() as logs, Ensemble(REQUEST, LocalDecisions()) as ensemble:
        for worker in ("w04", "w05"):
            ensemble.conductor.invite(worker, None)
            ensemble.crew.arrivals[worker].started_at = None
    assert told_of(logs, TOO_LATE) == [(["w04", "w05"], None)]


def test_workers_that_govern_themselves_do_not_wait_for_one_that_never_starts():
    decider = Decider(LocalDecisions(), timeout_seconds=0.0)
    crew = Crew()
    overseer = Overseer(REQUEST, crew, decider, AgentOptions())
    with capture_logs() as logs:
        overseer.start()
        overseer.invite("w04", None)
        crew.arrivals["w04"].started_at = None
        crew.arrivals["w04"].created_at = time.monotonic() - AgentOptions().start_timeout_seconds - 1.0
        overseer.poll()
        overseer.close()
        decider.close()
    assert crew.arrivals == {}
    assert told_of(logs, LET_GO) == [("w04", "did not start within 120 s")]
