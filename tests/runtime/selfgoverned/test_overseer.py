"""What the agent says of workers that govern themselves."""

import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.patience import Patience
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.selfgoverned.overseer import Overseer
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
    options = AgentOptions(start_timeout_seconds=0.0)
    fleet = Fleet(tiny_gpt, WorkerOptions())
    fleet.handles = {"w01": SimpleNamespace(worker="w01", started_at=None, created_at=0.0)}
    overseer = Overseer(gpt_request(1, 1), fleet, decider, options)
    for require in (overseer._require_life, partial(Patience(options, fleet, Progress())._require_started, time.monotonic())):
        with pytest.raises(UnavailableError, match="workers: w01 did not start within 0 s"):
            require()
    overseer.close()


@pytest.mark.parametrize(
    ("decider", "who"), [(LocalDecisions, "the agent"), (Remote, "the service")], indirect=["decider"], ids=["alone", "service"]
)
def test_whoever_finds_no_plan_for_what_the_workers_did_is_named(decider, who):
    request = gpt_request(1, 1)
    overseer = Overseer(request, Fleet(tiny_gpt, WorkerOptions()), decider, AgentOptions())
    decider.start(request)
    decider.submit([Roster(request).failed("w00")])
    assert decider.wake.poll(30.0)
    with capture_logs() as logs:
        overseer._compare()
    overseer.close()
    assert [log["event"] for log in logs] == [f"{who} comes to no plan yet for what its job's workers did"]
