"""What a killed agent left at the service is found by the next life of its run, also where it was killed as the job began anew."""

import threading
from dataclasses import replace
from functools import partial

import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from api.app import create_app
from api.settings import Settings
from kintsugi.client import Client
from kintsugi.core.cluster import Cluster
from kintsugi.core.ending import Ending, Outcome
from kintsugi.core.errors import ConflictError, ForbiddenError, InfeasibleError, UnavailableError
from kintsugi.core.job import Ranges
from kintsugi.runtime.control.begun import FILE, BegunJobs
from kintsugi.runtime.control.decisions import JobRequest, ServiceDecisions
from kintsugi.runtime.train import _bury, train
from tests.builders import snapshot_of, uniform_profile
from tests.patience import eventually
from tests.runtime.hung_disk import hung
from tests.runtime.jobs import profile_for, tiny_gpt
from tests.runtime.runs import leaves_nothing
from tests.services import service

OF = snapshot_of(uniform_profile(12), Cluster.uniform(6), 12)
REQUEST = JobRequest(name="job", profile=OF.profile, cluster=OF.cluster, settings=OF.settings)
ANEW = replace(REQUEST, name="job.restart1", cluster=Cluster.uniform(5))


@pytest.fixture
def client(tmp_path):
    settings = Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3", planning_processes=0, plans_ahead=False)
    with TestClient(create_app(settings)) as served, Client("http://testserver", transport=served._transport) as client:
        yield client


class Killed(BaseException):
    """The agent is not there any more."""


def killed(*_args, **_options):
    raise Killed


def outcomes(client, *jobs):
    return [None if (ended := client.job(job).ended) is None else ended.ending.outcome for job in jobs]


@pytest.mark.parametrize("moment", ["created", "before is ended", "later"])
def test_an_agent_is_killed_as_its_job_begins_anew(client, tmp_path, monkeypatch, moment):
    source = ServiceDecisions(client, BegunJobs(tmp_path))
    source.start(REQUEST)
    with monkeypatch.context() as patch:
        if moment == "created":
            create = client.create_job
            patch.setattr(client, "create_job", lambda **asked: (create(**asked), killed()))
        if moment == "before is ended":
            patch.setattr(client, "end", killed)
        try:
            source.start(ANEW)
        except Killed:
            assert moment != "later"
    following = BegunJobs(tmp_path)
    assert following.going_on == (("job.restart1",) if moment == "later" else ("job", "job.restart1"))
    assert following.unused("job") == "job.restart2"
    assert following.unused("job.life2") == "job.life2"
    _bury(client, following, None, "job.restart2")
    assert following.going_on == BegunJobs(tmp_path).going_on == ()
    assert outcomes(client, "job", "job.restart1") == [Outcome.CANCELLED if moment == "later" else Outcome.FAILED, Outcome.FAILED]


def test_what_ended_is_not_ended_again_and_what_was_refused_is_nobodys(client, tmp_path):
    ServiceDecisions(client).start(replace(REQUEST, name="anothers"))
    source = ServiceDecisions(client, BegunJobs(tmp_path))
    with pytest.raises(ConflictError, match="name: belongs to a job that was created from another request; choose another"):
        source.start(replace(ANEW, name="anothers"))
    with pytest.raises(InfeasibleError):
        source.start(replace(ANEW, settings=replace(ANEW.settings, ranges=Ranges(min_dp=7))))
    assert BegunJobs(tmp_path).unused(ANEW.name) == ANEW.name
    source.start(REQUEST)
    source.ended(Ending(outcome=Outcome.COMPLETED, by="agent"))
    assert BegunJobs(tmp_path).going_on == ()
    assert outcomes(client, "anothers", "job") == [None, Outcome.COMPLETED]


@pytest.mark.parametrize("error", [UnavailableError("away"), ForbiddenError("not with this token")])
def test_a_service_that_does_not_hear_it_is_told_by_the_next_life(client, tmp_path, monkeypatch, error):
    ServiceDecisions(client, BegunJobs(tmp_path)).start(REQUEST)

    def refused(*_args, **_options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(client, "end", refused)
        _bury(client, BegunJobs(tmp_path), None, "job.restart1")
    assert BegunJobs(tmp_path).going_on == ("job",)
    _bury(client, BegunJobs(tmp_path), "never there", "job.restart1")
    assert outcomes(client, "job") == [Outcome.FAILED]


@pytest.mark.parametrize("text", ["", "[]", '{"is_over": 1}', "{"])
def test_a_damaged_file_counts_as_nothing(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with capture_logs() as logs:
        assert BegunJobs(tmp_path).going_on == ()
    assert [line["log_level"] for line in logs] == ["warning"]


def test_a_file_that_cannot_be_written_stops_nothing(client, tmp_path):
    with capture_logs() as logs:
        ServiceDecisions(client, BegunJobs(tmp_path / "not there")).start(REQUEST)
    told = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert told == ["another life will not know which jobs this run began"]


def test_nor_does_a_disk_that_hangs(client, tmp_path, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.control.begun._WRITE_SECONDS", 0.05)
    begun = BegunJobs(tmp_path)
    with capture_logs() as logs, hung(tmp_path / f".{FILE}.new"):
        ServiceDecisions(client, begun).start(REQUEST)
    [told] = [line for line in logs if line["log_level"] == "warning"]
    assert told["reason"] == "its disk has not answered for 0.05 s"
    monkeypatch.setattr("kintsugi.runtime.control.begun._ANSWER_SECONDS", 0.05)
    assert eventually((tmp_path / FILE).exists)  # the disk answered
    (tmp_path / FILE).unlink()
    with capture_logs() as logs, hung(tmp_path / FILE):
        assert BegunJobs(tmp_path).going_on == ()
    assert [line["reason"] for line in logs] == ["has not answered for 0.05 s"]


@pytest.mark.processes
def test_the_next_life_goes_on_where_the_one_before_was_killed_before_its_first_step(tmp_path):
    job = partial(tiny_gpt, num_steps=1)
    (tmp_path / "run").mkdir()
    with leaves_nothing(), service(tmp_path / "kintsugi.sqlite3") as running, Client(running.url) as client:
        source = ServiceDecisions(client, BegunJobs(tmp_path / "run"))
        source.start(REQUEST)
        source.start(ANEW)
        threads = set(threading.enumerate())
        train(job, workers=2, dp=1, pp=2, name="job", profile=profile_for(job()), service=running.url, run=tmp_path / "run")
        threads = set(threading.enumerate()) - threads
        left = outcomes(client, "job", "job.restart1", "job.restart2")
    assert [thread.name for thread in threads if thread.name == "begun"] == []
    assert left == [Outcome.CANCELLED, Outcome.FAILED, Outcome.COMPLETED]
