"""A job whose agent is killed is started again, goes on from the latest checkpoint, and ends as though nothing had happened."""

import json
import sys

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.records.audit import audit
from kintsugi.runtime.records.tracing_files import read_run
from kintsugi.runtime.supervising.supervision import EndReason, SupervisorPolicy, SupervisorState
from kintsugi.runtime.supervising.supervisor import Supervisor
from kintsugi.runtime.train import train
from tests.runtime.jobs import profile_for
from tests.runtime.runs import gpt_request, run
from tests.runtime.supervising.supervised_job import job


@pytest.mark.processes
def test_a_job_whose_agent_is_killed_goes_on(tmp_path):
    output = tmp_path / "losses.json"
    command = [sys.executable, "-m", "tests.runtime.supervising.supervised_job", str(tmp_path / "run"), str(output)]
    record = Supervisor(command=command, run=tmp_path / "run", policy=SupervisorPolicy(pause_seconds=0.0)).supervise()
    assert record.state is SupervisorState.COMPLETED
    assert [attempt.reason for attempt in record.attempts] == [EndReason.KILLED, EndReason.COMPLETED]
    assert record.attempts[0].signal == "SIGKILL"
    assert record.attempts[1].step_before in (2, 4)
    assert json.loads(output.read_text()) == pytest.approx(run(job, gpt_request(1, 2)).losses, rel=1e-12, abs=0)
    report = audit(tmp_path / "run")
    assert report.problems == ()
    assert report.is_exact
    assert report.is_complete
    first, second = (read_run(folder) for folder in (tmp_path / "run", tmp_path / "run" / "life2"))
    assert first.steps[0][0].step == 0
    assert [step.step for step in second.steps[0]] == list(range(record.attempts[1].step_before, 6))


def test_checkpoints_need_a_folder():
    with pytest.raises(InvalidInputError, match="checkpoints: need a folder"):
        train(job, workers=2, profile=profile_for(job()), checkpoints=CheckpointOptions())
