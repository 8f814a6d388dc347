"""Healthy workers are not struck: slow starts, slow steps of the protocol, a job that is paused as a whole."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Attempt, Phase
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.control.patience import Overdue, Patience
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.faults import Fault, FaultKind, FaultPoint, fail_at
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.messages import Reached, StepDone
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from tests.patience import eventually
from tests.runtime.jobs import tiny_gpt
from tests.runtime.pausing import be_away
from tests.runtime.runs import gpt_request, leaves_nothing

pytestmark = pytest.mark.processes


def slow_job(seconds: float) -> TrainingJob:
    """Takes its time to be made."""
    time.sleep(seconds)
    return tiny_gpt()


def test_who_starts_slowly_is_not_taken_for_silent_when_another_dies():
    fault = Fault(worker="w00", at=FaultPoint.START)
    options = AgentOptions(worker=WorkerOptions(faults=(fault,)), quiesce_timeout_seconds=5.0)
    with leaves_nothing(), Agent(partial(slow_job, 8.0), gpt_request(2, 2), LocalDecisions(), options=options) as agent:
        result = agent.run()
    assert [recovery.lost for recovery in result.recoveries] == [["w00"]]


def resume(pids: Sequence[int], *, after_seconds: float) -> None:
    """Let processes go on that are stopped, and this one, which is away until then, as well."""
    script = f"sleep {after_seconds}; kill -CONT {' '.join(map(str, pids))}"
    with subprocess.Popen(["sh", "-c", script]):
        be_away(after_seconds)


def test_a_job_that_was_paused_as_a_whole_goes_on():
    """As a job that is suspended and resumed: for longer than both timeouts nobody acts, the agent included."""
    paused = []

    def pause(agent: Agent) -> None:
        if agent.losses and not paused:
            workers = [agent.handle(worker).pid for worker in agent.alive]
            paused.extend(workers)
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
            resume(workers, after_seconds=6.0)

    options = AgentOptions(heartbeat_timeout_seconds=5.0, stopped_timeout_seconds=0.5)
    with leaves_nothing(), Agent(tiny_gpt, gpt_request(2, 2), LocalDecisions(), options=options, observer=pause) as agent:
        result = agent.run()
    assert paused
    assert result.recoveries == ()


def test_so_does_one_that_is_paused_while_it_recovers():
    """Those who had not left their step by then have as long for it as if nothing had been."""
    paused = []

    def pause(agent: Agent) -> None:
        if agent.phase is Phase.QUIESCING and not paused:
            survivor = agent.handle("w01")
            assert eventually(survivor.is_stopped)
            paused.append(survivor.pid)
            resume([survivor.pid], after_seconds=4.0)

    faults = (fail_at(1, "w00"), Fault(worker="w01", at=FaultPoint.QUIESCE, step=1, how=FaultKind.FREEZE))
    options = AgentOptions(worker=WorkerOptions(faults=faults), quiesce_timeout_seconds=1.0)
    with leaves_nothing(), Agent(tiny_gpt, gpt_request(2, 2), LocalDecisions(), options=options, observer=pause) as agent:
        result = agent.run()
    assert paused
    assert [recovery.lost for recovery in result.recoveries] == [["w00"]]


def test_who_is_stopped_is_found_out_by_an_agent_whose_observer_takes_long_each_time():
    """Its user's code is busy, as with a disk: that is no pause of the job, or no deadline would ever pass."""
    turns = []

    def observe(agent: Agent) -> None:
        if "w01" in agent.alive and agent.handle("w01").is_stopped() and len(turns) < 8:
            turns.append(agent.phase)
            time.sleep(1.3)

    options = AgentOptions(worker=WorkerOptions(faults=(fail_at(1, "w01", how=FaultKind.FREEZE),)))
    with leaves_nothing(), Agent(tiny_gpt, gpt_request(2, 2), LocalDecisions(), options=options, observer=observe) as agent:
        result = agent.run()
    assert [recovery.lost for recovery in result.recoveries] == [["w01"]]
    assert 0 < len(turns) < 5


@pytest.mark.parametrize("phase", [Phase.QUIESCING, Phase.PREPARING, Phase.TRAINING, Phase.COLLECTING])
def test_nothing_is_overdue_that_could_not_come_while_the_agent_itself_was_away(phase):
    decision = LocalDecisions().start(gpt_request(2, 2))
    fleet = waiting(*decision.plan.workers)
    options = AgentOptions(collect_timeout_seconds=30.0, prepare_timeout_seconds=30.0)
    patience = Patience(options, fleet, Progress(clock=lambda: 0.0))
    attempt = Attempt(
        2, phase_began_at=time.monotonic() - 60.0, members=decision.plan.workers, broken=(0.0, "w00: a message failed")
    )
    fleet.handles["w00"].started_at, fleet.handles["w01"].created_at = None, time.monotonic()
    fleet.back_at = time.monotonic()
    assert patience.overdue(phase, attempt, decision, decision.plan) is None
    assert attempt.probe is None
    fleet.handles["w00"].started_at, fleet.back_at = 0.0, 0.0
    assert patience.overdue(phase, attempt, decision, decision.plan) is not None or attempt.probe is not None


def test_a_survivor_may_leave_its_step_as_slowly_as_steps_were_seen_to_be():
    """Not only as the profile says, which may be of another machine, or of this one when it had nothing else to do."""
    decision = LocalDecisions().start(gpt_request(2, 2))
    options = AgentOptions(quiesce_timeout_seconds=1.0)
    handle = SimpleNamespace(worker="w00", started_at=0.0, created_at=0.0)
    fleet = SimpleNamespace(handles={"w00": handle}, arrivals={}, back_at=0.0)
    progress = Progress()
    patience = Patience(options, fleet, progress)
    attempt = Attempt(2, phase_began_at=time.monotonic() - 60.0)
    silent = patience.overdue(Phase.QUIESCING, attempt, decision, None)
    assert silent is not None
    assert silent.lost == (handle,)
    progress.take(StepDone(attempt=1, step=0, loss=0.0, seconds=3600.0, at=0.0, microbatches=(1,)))
    assert patience.overdue(Phase.QUIESCING, attempt, decision, None) is None


def waiting(*workers: str) -> SimpleNamespace:
    """A fleet of workers that started long ago; what they are told is kept."""
    handles = {}
    for worker in workers:
        told: list = []
        handles[worker] = SimpleNamespace(worker=worker, started_at=0.0, created_at=0.0, address=None, told=told, send=told.append)
    return SimpleNamespace(handles=handles, arrivals={}, back_at=0.0, counts_on=lambda handle: handles.get(handle.worker) is handle)


def test_a_holder_that_does_not_tell_what_it_trained_is_gone_on_without():
    decision = LocalDecisions().start(gpt_request(2, 2))
    workers = decision.plan.workers
    fleet = waiting(*workers)
    patience = Patience(AgentOptions(collect_timeout_seconds=30.0), fleet, Progress())
    attempt = Attempt(2, phase_began_at=time.monotonic() - 20.0)
    attempt.collected = dict.fromkeys(workers[1:])
    assert patience.overdue(Phase.COLLECTING, attempt, decision, decision.plan) is None
    attempt.phase_began_at -= 20.0
    overdue = patience.overdue(Phase.COLLECTING, attempt, decision, decision.plan)
    assert overdue is not None
    assert overdue.lost == (fleet.handles[workers[0]],)


def test_late_answers_to_an_earlier_question_do_not_count():
    decision = LocalDecisions().start(gpt_request(2, 2))
    fleet = waiting(*decision.plan.workers)
    patience = Patience(AgentOptions(), fleet, Progress())
    attempt = Attempt(2, members=decision.plan.workers, broken=(0.0, "w00: a message failed"))
    for _ in range(2):
        assert patience.overdue(Phase.TRAINING, attempt, decision, decision.plan) is None
        attempt.probe = None
    first, second = (message.number for message in fleet.handles["w00"].told)
    assert first != second


@pytest.mark.parametrize("came_back", [False, True])
def test_who_was_lost_or_let_go_while_it_was_asked_is_not_lost_again(came_back):
    """All others tell that they cannot reach it; what broke is to be mended all the same."""
    decision = LocalDecisions().start(gpt_request(2, 2))
    fleet, members = waiting(*decision.plan.workers, "w09"), (*decision.plan.workers, "w09")
    patience = Patience(AgentOptions(), fleet, Progress())
    attempt = Attempt(2, members=members, broken=(0.0, "w00: a message failed"))
    assert patience.overdue(Phase.TRAINING, attempt, decision, decision.plan) is None
    del fleet.handles["w09"]
    if came_back:
        fleet.handles["w09"] = waiting("w09").handles["w09"]
    for member in members:
        attempt.hear(Reached(attempt.probe.number, () if member == "w09" else ("w09",)), member)
    assert patience.overdue(Phase.TRAINING, attempt, decision, decision.plan) == Overdue(reason="w00: a message failed")


def test_who_is_cut_off_is_gone_on_without():
    decision = LocalDecisions().start(gpt_request(2, 2))
    members = decision.plan.workers
    fleet = waiting(*members)
    patience = Patience(AgentOptions(), fleet, Progress())
    attempt = Attempt(2, members=members, broken=(0.0, "w00: a message failed"))
    assert patience.overdue(Phase.TRAINING, attempt, decision, decision.plan) is None
    for member in members:
        attempt.hear(Reached(attempt.probe.number, () if member == "w01" else ("w01",)), member)
    overdue = patience.overdue(Phase.TRAINING, attempt, decision, decision.plan)
    assert overdue is not None
    assert overdue.lost == (fleet.handles["w01"],)
    assert attempt.probe is None


class Counting(nn.Module):
    """Changes a buffer in its forward pass, as batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(nn.init.ones_(nn.Parameter(Tensor(1))))
        self.register_buffer("seen", Tensor(1).zero_())

    def forward(self, hidden: Tensor) -> Tensor:
        self.seen += 1
        return hidden * self.scale


def counting_job() -> TrainingJob:
    job = tiny_gpt()
    layers = [*job.layers[:1], Layer(name="counting", build=Counting), *job.layers[2:]]
    return TrainingJob(
        layers=layers,
        optimizer=job.optimizer,
        loss=job.loss,
        dataset=job.dataset,
        microbatch_size=job.microbatch_size,
        num_microbatches=job.num_microbatches,
        num_steps=job.num_steps,
        dtype=job.dtype,
    )


def test_a_layer_that_changes_its_buffers_is_refused_with_its_name():
    with (
        leaves_nothing(),
        pytest.raises(InvalidInputError, match=r"layer 'counting' changes its buffer 'seen'"),
        Agent(counting_job, gpt_request(1, 2), LocalDecisions()) as agent,
    ):
        agent.run()


class SlowBuild:
    """Builds a layer as slowly as a large one, where the flag is."""

    def __init__(self, build, flag: Path) -> None:
        self.build, self.flag = build, flag

    def __call__(self) -> nn.Module:
        if self.flag.exists():
            time.sleep(1.5)
        return self.build()


def slowly_built_job(flag: Path) -> TrainingJob:
    job = tiny_gpt()
    return replace(job, layers=[replace(layer, build=SlowBuild(layer.build, flag)) for layer in job.layers])


def test_who_builds_its_layers_is_not_silent_when_another_dies(tmp_path):
    """Four layers take six seconds, and who is called off has three: it looks up between them."""
    flag = tmp_path / "flag"

    def observer(agent: Agent) -> None:
        if agent.phase is Phase.PREPARING and not flag.exists() and not agent.recoveries:
            flag.touch()
        if agent.recoveries and agent.phase is not Phase.QUIESCING:
            flag.unlink(missing_ok=True)

    fault = Fault(worker="w00", at=FaultPoint.TRANSFER)
    options = AgentOptions(worker=WorkerOptions(faults=(fault,)), quiesce_timeout_seconds=3.0)
    job = partial(slowly_built_job, flag)
    with leaves_nothing(), Agent(job, gpt_request(2, 2), LocalDecisions(), options=options, observer=observer) as agent:
        result = agent.run()
    assert [recovery.lost for recovery in result.recoveries] == [["w00"]]
