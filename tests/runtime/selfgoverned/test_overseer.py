"""What the agent says of workers that govern themselves."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from kintsugi.core.decision import Migration
from kintsugi.core.errors import ReconfigurationError, StateLostError, UnavailableError
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.patience import Patience
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.messages import Differing, Probe, StepDone
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.selfgoverned.course import first_course
from kintsugi.runtime.selfgoverned.overseer import Overseer
from kintsugi.runtime.selfgoverned.words import Renew
from tests.runtime.control.crews import Crew
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request


class Remote(LocalDecisions):
    """Stands for a service, which makes decisions ahead and holds agreements."""

    made_ahead = keep = partial(dict)


@pytest.fixture
def decider(request) -> Iterator[Decider]:
    decider = Decider(request.param(), timeout_seconds=10.0)
    yield decider
    decider.close()


@pytest.mark.parametrize("decider", [LocalDecisions], indirect=True)
def test_who_does_not_start_is_named(decider):
    options = AgentOptions(start_timeout_seconds=1e-9)
    fleet = Fleet(tiny_gpt, WorkerOptions())
    fleet.handles = {"w01": SimpleNamespace(worker="w01", started_at=None, created_at=0.0)}
    overseer = Overseer(gpt_request(1, 1), fleet, decider, options)
    for require in (overseer._require_life, partial(Patience(options, fleet, Progress())._require_started, time.monotonic())):
        with pytest.raises(UnavailableError, match="workers: w01 did not start within 1e-09 s"):
            require()
    overseer.close()


@pytest.mark.parametrize("decider", [LocalDecisions], indirect=True)
def test_where_nobody_can_tell_who_is_right_the_job_ends_also_when_a_generation_is_over_and_another_one_is_wrong(decider):
    overseer = Overseer(gpt_request(2, 1), Fleet(tiny_gpt, WorkerOptions()), decider, AgentOptions())
    found_by = SimpleNamespace(worker="w00")
    overseer._hear(Differing(1, 3, (0, 2), ("w01",), ()), found_by)
    overseer._require_agreement()
    overseer._hear(Differing(2, 3, (0, 2), ("w01",), (2,)), found_by)
    with pytest.raises(StateLostError) as error:
        overseer._require_agreement()
    assert error.value.layers == (2,)
    overseer.close()


@pytest.mark.parametrize("decider", [LocalDecisions], indirect=True)
@pytest.mark.parametrize(
    ("step_seconds", "makespan_seconds", "seen_seconds"), [(100.0, 0.0, 0.0), (0.1, 500.0, 0.0), (0.1, 0.0, 100.0)]
)
def test_members_connect_anew_and_a_job_is_given_up_only_where_it_can_be_in_no_step_and_move_no_state(
    decider, step_seconds, makespan_seconds, seen_seconds
):
    overseer = Overseer(gpt_request(1, 1), Crew(), decider, AgentOptions())
    overseer.start()
    decision = decider.decisions[-1]
    decider.decisions[-1] = replace(
        decision,
        estimate=replace(decision.estimate, iteration_seconds=step_seconds),
        migration=Migration(makespan_seconds=makespan_seconds),
    )
    overseer.progress.take(StepDone(attempt=1, step=0, loss=0.0, seconds=seen_seconds, at=0.0, microbatches=(1,)))
    overseer._course = first_course(gpt_request(1, 1), ("w00",), decider.decisions[-1])
    limit = AgentOptions().prepare_timeout_seconds + 1_000.0
    overseer._moved_at = time.monotonic() - limit + 60.0
    overseer._require_life()
    assert overseer._fleet.handles["w00"].heard(Renew) == 0
    for times in (1, 2):  # a step between them is a reason to try again
        overseer._moved_at = time.monotonic() - limit - 60.0
        overseer._require_life()
        assert overseer._fleet.handles["w00"].heard(Renew) == times
        overseer._require_life()
        overseer._moved_at = time.monotonic() - limit - 60.0
        with pytest.raises(ReconfigurationError, match="generation: nothing has happened for 130"):
            overseer._require_life()
        overseer.progress.take(StepDone(attempt=1, step=times, loss=0.0, seconds=0.0, at=0.0, microbatches=(1,)))
    overseer.close()


@pytest.mark.parametrize("decider", [LocalDecisions], indirect=True)
def test_nothing_has_stood_still_while_the_agent_itself_was_away(decider):
    """Nobody is asked whom it can reach, connects anew or is given up, for a pause of the whole job."""
    overseer = Overseer(gpt_request(2, 1), Crew(), decider, AgentOptions())
    overseer.start()
    overseer._course = course = first_course(gpt_request(2, 1), ("w00", "w01"), decider.decisions[-1])
    overseer.phase, asked = Phase.TRAINING, overseer._fleet.handles["w00"]
    overseer._moved_at = overseer.progress.moved_at = time.monotonic() - 1e6
    overseer._fleet.back_at = time.monotonic()
    overseer._require_life()
    overseer._mend_links(course)
    assert asked.told == []
    overseer._fleet.back_at = 0.0
    overseer._require_life()
    overseer._mend_links(course)
    assert (asked.heard(Renew), asked.heard(Probe)) == (1, 1)
    overseer.close()


@pytest.mark.parametrize("decider", [Remote], indirect=True)
def test_whoever_was_away_is_told_once_more_what_the_workers_did(decider, monkeypatch):
    """Without another event, which may never come: it would watch over workers that are gone."""
    request = gpt_request(2, 1)
    overseer = Overseer(request, Fleet(tiny_gpt, WorkerOptions()), decider, AgentOptions())
    decider.start(request)
    decide = decider._source.after
    answers = [UnavailableError("gone", field="url"), None]

    def after(events):
        if (error := answers.pop(0)) is not None:
            raise error
        return decide(events)

    monkeypatch.setattr(decider._source, "after", after)
    monkeypatch.setattr(decider, "_timeout_seconds", 0.0)
    decider.submit([Roster(request).failed("w01")])
    while answers:
        assert decider.wake.poll(120.0)
        decider.wake.recv()
        overseer._course = first_course(request, ("w00",), decider.decisions[-1])
        overseer._compare()
    overseer.close()


@pytest.mark.parametrize(
    ("decider", "who"), [(LocalDecisions, "the agent"), (Remote, "the service")], indirect=["decider"], ids=["alone", "service"]
)
def test_whoever_finds_no_plan_for_what_the_workers_did_is_named(decider, who):
    request = gpt_request(1, 1)
    overseer = Overseer(request, Fleet(tiny_gpt, WorkerOptions()), decider, AgentOptions())
    decider.start(request)
    decider.submit([Roster(request).failed("w00")])
    assert decider.wake.poll(120.0)
    with capture_logs() as logs:
        overseer._compare()
    overseer.close()
    assert [log["event"] for log in logs] == [f"{who} comes to no plan yet for what its job's workers did, who go on"]
