"""The service is killed before a worker is, and comes back on its database: the job waits for its answer and goes on."""

import threading

import pytest

from kintsugi.client import Client, Patience
from kintsugi.core.ending import Outcome
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import ServiceDecisions
from kintsugi.runtime.faults import fail_at
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from tests.processes import free_port
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request
from tests.services import service

pytestmark = pytest.mark.processes


def test_a_job_waits_for_a_service_that_was_killed_and_restarts(tmp_path):
    port, database = str(free_port()), tmp_path / "kintsugi.sqlite3"
    killed, may_return, may_end = threading.Event(), threading.Event(), threading.Event()

    def serve_again() -> None:
        assert may_return.wait(120.0)
        with service(database, "--port", port):
            may_end.wait(120.0)

    def kill_service(agent: Agent) -> None:
        if agent.losses and not killed.is_set():
            killed.set()
            running.kill()
        if agent.recoveries:
            may_return.set()

    second = threading.Thread(target=serve_again, daemon=True)
    second.start()
    try:
        with service(database, "--port", port) as running, Client(running.url, patience=Patience(attempts=1)) as client:
            options = AgentOptions(worker=WorkerOptions(faults=(fail_at(2, "w01", "backward"),)))
            with Agent(tiny_gpt, gpt_request(2, 2), ServiceDecisions(client), options=options, observer=kill_service) as agent:
                result = agent.run()
            log, ended = client.events(gpt_request(2, 2).name).events, client.job(gpt_request(2, 2).name).ended
    finally:
        may_return.set()
        may_end.set()
        second.join(120.0)
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]
    assert [record.event.worker for record in log] == ["w01"]
    assert result.decisions[-1].plan.generation == 1
    assert (ended.ending.outcome, ended.ending.by) == (Outcome.COMPLETED, "agent")
