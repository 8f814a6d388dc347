"""Messages fail though nobody is lost: the members agree anew, and take the step again."""

import gc
import os
import queue
import socket
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import Tensor

from kintsugi.core.errors import ReconfigurationError
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.models import Activations, Batch, TrainingJob
from kintsugi.runtime.options import AgentOptions, Governance, WorkerOptions
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.ring.options import RingOptions
from kintsugi.runtime.selfgoverned.regrouping import Regrouping
from tests.patience import PATIENCE_SECONDS
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing
from tests.runtime.workers.test_recovery_exactness import reference

PATIENCE = RingOptions(heartbeat_seconds=0.2, heartbeat_timeout_seconds=3.0)


def break_connections_of_groups() -> None:
    """Shut down this process's TCP connections, but for those that Python holds: the ring's, and those of the rendezvous."""
    kept = {one.fileno() for one in gc.get_objects() if isinstance(one, socket.socket)}
    for descriptor in {int(path.name) for path in Path("/proc/self/fd").iterdir()} - kept:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family == socket.AF_INET and connection.type == socket.SOCK_STREAM:
                connection.getpeername()
                connection.shutdown(socket.SHUT_RDWR)


def loss_that_breaks(flags: Path, times: int, loss, outputs: Activations, batch: Batch) -> Tensor:
    """In its first calls of all it breaks the connections of whichever worker makes them."""
    if outputs[0].device.type != "meta":
        for number in range(times):
            with suppress(FileExistsError):
                os.close(os.open(flags / str(number), os.O_CREAT | os.O_EXCL))
                break_connections_of_groups()
                break
    return loss(outputs, batch)


def breaking_job(flags: Path, times: int) -> TrainingJob:
    job = tiny_gpt()
    return replace(job, loss=partial(loss_that_breaks, flags, times, job.loss))


def governed(flags: Path, times: int) -> RunResult:
    options = AgentOptions(
        governance=Governance.RING, worker=WorkerOptions(ring=PATIENCE), prepare_timeout_seconds=PATIENCE_SECONDS
    )
    make_job = partial(breaking_job, flags, times)
    with leaves_nothing(), Agent(make_job, gpt_request(2, 2, min_dp=1), LocalDecisions(), options=options) as agent:
        return agent.run()


@pytest.mark.processes
def test_the_step_is_taken_again_by_the_same_members(tmp_path):
    result = governed(tmp_path, times=1)
    assert_same(result, reference(2, 2))
    assert result.recoveries == ()
    assert [decision.plan.generation for decision in result.decisions] == [0, 1]
    assert len({decision.plan.workers for decision in result.decisions}) == 1


@pytest.mark.processes
def test_a_job_whose_messages_always_fail_ends(tmp_path):
    with pytest.raises(ReconfigurationError, match="gave up after 3 attempts without a loss or a step between them"):
        governed(tmp_path, times=100)


@pytest.mark.parametrize("is_applied", [True, False])
def test_who_serves_an_attempt_is_missed_until_all_are_ready(is_applied):
    course = SimpleNamespace(generation=4, members=("w00", "w01"), committed_step=7)
    posted = queue.SimpleQueue()
    renewed = []
    steering = SimpleNamespace(course=course, is_applied=is_applied)
    with closing(Regrouping(steering, renewed.append, lambda *call: posted.put(call), 0.0)) as regrouping:
        for attempt in (4, 5, 6):
            regrouping.unserved(attempt, "the connection was closed")
        if not is_applied:
            act, *arguments = posted.get(timeout=PATIENCE_SECONDS)
            act(*arguments)
    assert posted.empty()
    assert renewed == ([] if is_applied else [4])
