"""One worker process, spoken to as its agent would."""

import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe

import pytest

from estimator.program import compile_program
from kintsugi.core.decision import Migration
from kintsugi.runtime.faults import Fault, FaultKind, FaultPoint
from kintsugi.runtime.messages import (
    CallOff,
    Collect,
    Collected,
    Delivered,
    Failed,
    FaultInjected,
    Finished,
    Go,
    Heartbeat,
    LinkBroken,
    Prepare,
    Published,
    Quiesced,
    Ready,
    Resumed,
    Started,
    StepDone,
    Stop,
)
from kintsugi.runtime.options import WorkerOptions
from kintsugi.runtime.processes import WorkerHandle
from kintsugi.runtime.workers.commit import StepStatus
from kintsugi.runtime.workers.listener import Listener
from tests.patience import PATIENCE_SECONDS
from tests.runtime.jobs import tiny_gpt, unbuildable_job
from tests.runtime.runs import gpt_request, leaves_nothing

pytestmark = pytest.mark.processes

REQUEST = gpt_request(1, 1)


class Correspondence:
    """Letters to and from one worker; rendezvous keys are handed back to it."""

    def __init__(self, handle: WorkerHandle) -> None:
        self.handle = handle
        self.heard = []

    def until(self, kind):
        """The next message of a kind; those before it are kept in `heard`."""
        while self.handle.connection.poll(PATIENCE_SECONDS):
            message = self.handle.receive()
            if isinstance(message, Published):
                self.handle.send(Delivered(message.attempt, message.key, message.value))
            elif isinstance(message, kind):
                return message
            elif message is None:
                break
            self.heard.append(message)
        raise AssertionError(f"no {kind.__name__} came, but {self.heard}")

    def prepare(self, attempt: int, **changes) -> None:
        plan = REQUEST.plan
        program = compile_program(plan, REQUEST.profile, REQUEST.cluster)
        message = Prepare(
            attempt=attempt,
            plan=plan,
            actions=program.texts["w00"],
            places=program.places["w00"],
            digests=program.digests,
            reductions=program.reductions,
            checksum=program.checksum,
            members=("w00",),
            migration=Migration(),
            record=None,
            start_step=0,
            is_initial=True,
        )
        self.handle.send(replace(message, **changes))


@contextmanager
def a_worker(make_job=tiny_gpt, **options):
    """One worker process, ended at the end."""
    with leaves_nothing():
        handle = WorkerHandle("w00", make_job, WorkerOptions(**options))
        try:
            yield Correspondence(handle)
        finally:
            handle.fence()


def test_a_whole_life():
    with a_worker() as worker:
        worker.until(Started)
        worker.handle.send(CallOff(1))
        assert worker.until(Quiesced) == Quiesced(1, None)
        worker.prepare(1)
        assert worker.until(Ready).attempt == 1
        worker.handle.send(Go(1))
        assert worker.until(Resumed).attempt == 1
        worker.until(Finished)
        done = [message for message in worker.heard if isinstance(message, StepDone)]
        assert [message.step for message in done] == [0, 1, 2, 3]
        worker.handle.send(Collect(1, tuple(range(99))))
        collected = worker.until(Collected)
        assert collected.digests.keys() == collected.parameters.keys() == set(range(REQUEST.plan.num_layers))
        worker.handle.send(Collect(1, ()))
        assert worker.until(Collected) == Collected(1, collected.digests, {})
        worker.handle.send(Stop())
        worker.handle.process.join(PATIENCE_SECONDS)
        assert worker.handle.process.exitcode == 0


def test_it_says_that_it_is_there_while_it_waits():
    with a_worker(heartbeat_seconds=0.01) as worker:
        worker.until(Started)
        for _ in range(3):
            worker.until(Heartbeat)


def test_it_says_so_too_while_it_is_told_much():
    """As when many others publish where they are: each of them tells every one."""
    with a_worker() as worker:
        worker.until(Started)
        deadline, num_beats = time.monotonic() + PATIENCE_SECONDS / 6, 0
        while num_beats < 5 and time.monotonic() < deadline:
            for number in range(100):
                worker.handle.connection.send(Delivered(0, f"attempt0/{number}", b""))
            while worker.handle.connection.poll():
                num_beats += isinstance(worker.handle.receive(), Heartbeat)
        assert num_beats >= 5


def test_without_a_stage_it_has_nothing_to_show():
    with a_worker() as worker:
        worker.until(Started)
        worker.handle.send(Collect(1, tuple(range(99))))
        assert worker.until(Collected) == Collected(1, {}, {})


@pytest.mark.parametrize(
    "changes", [{"actions": ("APPLY",)}, {"places": (0,)}, {"checksum": "0" * 64}, {"digests": {"w00": "0" * 64}}]
)
def test_a_program_that_is_not_what_its_checksum_says_is_refused(changes):
    with a_worker() as worker:
        worker.until(Started)
        worker.prepare(1, **changes)
        assert "the program does not have the checksum it came with" in worker.until(Failed).traceback


def test_an_error_while_the_job_is_made_is_told():
    with a_worker(unbuildable_job) as worker:
        assert "no such data set" in worker.until(Failed).traceback


def test_called_off_in_training_it_says_how_far_it_is():
    with a_worker(partial(tiny_gpt, num_steps=100_000)) as worker:
        worker.until(Started)
        worker.prepare(1)
        worker.until(Ready)
        worker.handle.send(Go(1))
        while (last := worker.until(StepDone)).step < 2:
            assert last.attempt == 1
        worker.handle.send(CallOff(2))
        quiesced = worker.until(Quiesced)
        steps = [message.step for message in worker.heard if isinstance(message, StepDone)]
        assert quiesced.attempt == 2
        assert quiesced.status.step == max([last.step, *steps]) + 1
        assert quiesced.status.last_record.step == quiesced.status.step - 1
        assert [m.attempt for m in worker.heard if isinstance(m, LinkBroken)] == [1]


def test_called_off_before_it_is_ready_it_keeps_what_it_had():
    with a_worker() as worker:
        worker.until(Started)
        worker.prepare(1)
        worker.handle.send(CallOff(2))
        assert worker.until(Quiesced) == Quiesced(2, None)
        worker.prepare(2)
        assert worker.until(Ready).attempt == 2


def test_called_off_after_the_go_it_has_moved_all_the_same():
    """The agent counts the state as moved once it said go."""
    with a_worker() as worker:
        worker.until(Started)
        worker.prepare(1, start_step=3, is_initial=True)
        worker.until(Ready)
        worker.handle.send(Go(1))
        worker.handle.send(CallOff(2))
        status = worker.until(Quiesced).status
        assert status.step in (3, 4)
        assert status.step == 4 or status == StepStatus(step=3)


def test_keys_of_other_attempts_do_no_harm():
    with a_worker() as worker:
        worker.until(Started)
        for attempt in (0, 1, 7):
            worker.handle.send(Delivered(attempt, f"attempt{attempt}/w00/0", b"nonsense"))
        worker.prepare(1)
        worker.until(Ready)


def test_a_frozen_worker_does_not_hold_its_agent_up():
    with a_worker() as worker:
        worker.until(Started)
        worker.handle.strike(signal.SIGSTOP)
        for attempt in range(200):
            worker.handle.send(Delivered(attempt, f"attempt{attempt}/w00/0", bytes(50_000)))


def test_it_ends_with_its_agents_pipe():
    with a_worker() as worker:
        worker.until(Started)
        worker.handle.connection.close()
        worker.handle.process.join(PATIENCE_SECONDS)
        assert not worker.handle.process.is_alive()


def test_whichever_thread_finds_its_agent_gone_ends_it_without_an_error(monkeypatch):
    here, there = Pipe()
    there.close()
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        Listener(here, 1.0, print).send(Heartbeat())
    assert ended.value.code == 0


def test_it_ends_as_one_that_failed_where_it_cannot_obey():
    with a_worker() as worker:
        worker.until(Started)
        worker.prepare(1)
        worker.until(Ready)
        worker.handle.send(Delivered(1, None, b""))
        worker.handle.process.join(PATIENCE_SECONDS)
        assert worker.handle.process.exitcode == 1


@pytest.mark.parametrize("how", [FaultKind.KILL, FaultKind.FREEZE])
def test_a_fault_is_announced_and_strikes_once_at_its_place(how):
    fault = Fault(worker="w00", at=FaultPoint.BACKWARD, step=1, microbatch=2, how=how)
    elsewhere = Fault(worker="w01", at=FaultPoint.START)
    with a_worker(faults=(fault, elsewhere), heartbeat_seconds=0.01) as worker:
        worker.until(Started)
        worker.prepare(1)
        worker.until(Ready)
        worker.handle.send(Go(1))
        worker.until(FaultInjected)
        assert [message.step for message in worker.heard if isinstance(message, StepDone)] == [0]
        if how is FaultKind.KILL:
            worker.handle.process.join(PATIENCE_SECONDS)
            assert worker.handle.process.exitcode == -signal.SIGKILL
