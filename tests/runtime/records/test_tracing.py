"""What workers record is what they did: every action of every step, on one clock, in bounded files."""

import json
import time
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from estimator.program import Action, ActionKind, compile_program, parse_action
from estimator.replay import Timing
from estimator.trace import TracedStep, predicted_group, trace_document
from estimator.trace_comparison import compared, whole_steps
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError, UnavailableError
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.faults import fail_at
from kintsugi.runtime.records.tracing import JOB, TRACES, ActionTrace, Clock, TraceOptions
from kintsugi.runtime.records.tracing_files import host_offsets, read_run
from tests.builders import grid_plan, uniform_profile
from tests.estimator.test_trace import require_paired_flows, require_valid
from tests.runtime.hung_disk import hung
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request, leaves_nothing, options_with

PROFILE, CLUSTER = uniform_profile(4), Cluster.uniform(2)
PLAN = grid_plan(4, [2], [2])
FORWARD, SEND, APPLY = (parse_action(text) for text in ("0F0[0:2]", "0SEND_F0[0:2]>w01", "APPLY"))
RECEIVE = parse_action("1RECV_F0[2:4]>w00")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that loses a worker in its third step, recorded."""
    folder = tmp_path_factory.mktemp("traced")
    options = options_with(fail_at(2, "w03", "backward"))
    options = replace(options, worker=replace(options.worker, trace=TraceOptions(folder=folder)))
    with leaves_nothing(), Agent(tiny_gpt, gpt_request(2, 2), LocalDecisions(), options=options) as agent:
        agent.run()
    return read_run(folder)


@pytest.mark.processes
def test_a_run_records_every_action_of_every_committed_step(run):
    assert sorted(run.steps) == [0, 1]
    assert [step.step for step in run.steps[0]] == [0, 1]
    assert [step.step for step in run.steps[1]] == [2, 3]
    for generation, steps in run.steps.items():
        program = compile_program(run.plans[generation], run.profile, run.cluster)
        for step in whole_steps(steps, run.plans[generation].workers):
            for worker, actions in program.actions.items():
                assert sorted(map(str, actions)) == sorted(str(timing.action) for timing in step.timings[worker])


@pytest.mark.processes
def test_a_measured_trace_is_valid_and_beside_its_prediction(run):
    predicted = predicted_group(run.plans[1], run.profile, run.cluster)
    document = trace_document([*run.groups(), predicted])
    require_valid(document)
    require_paired_flows(document)
    rows = {row.kind: row for row in compared(predicted.steps[0], run.steps[1])}
    assert rows["forward"].num_actions == len([a for a in actions_of(predicted) if a.kind is ActionKind.FORWARD])
    assert rows["step"].measured_seconds > 0
    assert set(run.alignment.values()) == {"same"}


def actions_of(group):
    return [timing.action for own in group.steps[0].timings.values() for timing in own]


def test_nothing_is_recorded_without_options(tmp_path):
    trace = ActionTrace("w00", None)
    trace.follow(PLAN)
    trace.begin()
    trace.did(FORWARD)
    trace.committed(0)
    assert not list(tmp_path.iterdir())


def record(folder, worker, *steps, max_steps=20):
    trace = ActionTrace(worker, TraceOptions(folder=folder, max_steps=max_steps))
    trace.follow(PLAN)
    for step, actions in enumerate(steps):
        trace.begin()
        for action in actions:
            trace.did(action)
            if action.kind is ActionKind.REDUCE:
                trace.settled(action, (0.0, 1.0))
        trace.committed(step)


def test_a_disk_that_hangs_ends_the_recording_and_not_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.records.tracing._LINE_SECONDS", 0.05)
    trace = ActionTrace("w00", TraceOptions(folder=tmp_path))
    with capture_logs() as logs:
        trace.follow(PLAN)
        (path,) = (tmp_path / TRACES).glob("*.jsonl")
        path.unlink()
        with hung(path):
            for step in range(3):
                trace.begin()
                trace.did(FORWARD)
                trace.committed(step)
    assert [log["error"] for log in logs] == [f"{tmp_path} has not answered for 0.05 s"]


def test_a_disk_that_hangs_as_the_recording_begins_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.disk._ANSWER_SECONDS", 0.05)
    with hung(tmp_path / TRACES / JOB), pytest.raises(UnavailableError, match=r"trace: has not answered for 0.05 s"):
        TraceOptions(folder=tmp_path).describe(PROFILE, CLUSTER)


def test_files_are_bounded(tmp_path):
    TraceOptions(folder=tmp_path).describe(PROFILE, CLUSTER)
    record(tmp_path, "w00", *[[FORWARD, APPLY]] * 5, max_steps=2)
    assert [step.step for step in read_run(tmp_path).steps[0]] == [0, 1]


def test_the_update_begins_once_reductions_are_settled(tmp_path):
    TraceOptions(folder=tmp_path).describe(PROFILE, CLUSTER)
    trace = ActionTrace("w00", TraceOptions(folder=tmp_path))
    trace.follow(PLAN)
    trace.begin()
    reduction = Action(ActionKind.REDUCE, reduction=0)
    began = time.monotonic()
    for action in (reduction, FORWARD):
        trace.did(action)
    ended = time.monotonic()
    trace.settled(reduction, (began, ended))
    trace.did(APPLY)
    trace.committed(0)
    timings = {str(t.action): t for t in read_run(tmp_path).steps[0][0].timings["w00"]}
    assert timings["REDUCE0"].end_seconds - timings["REDUCE0"].start_seconds == pytest.approx(ended - began, abs=1e-9)
    assert timings["APPLY"].start_seconds >= timings["REDUCE0"].end_seconds


def test_a_line_that_was_cut_off_is_left_out_and_others_are_refused(tmp_path):
    TraceOptions(folder=tmp_path).describe(PROFILE, CLUSTER)
    record(tmp_path, "w00", [FORWARD, APPLY])
    (path,) = (tmp_path / TRACES).glob("*.jsonl")
    whole = path.read_text()
    path.write_text(whole + '{"kind":"step","gen')
    assert len(read_run(tmp_path).steps[0]) == 1
    path.write_text(whole.replace("0F0", "0X0"))
    with pytest.raises(InvalidInputError, match="line 3 is not what a worker writes"):
        read_run(tmp_path)


def test_a_folder_is_for_one_run(tmp_path):
    with pytest.raises(InvalidInputError, match="no recorded actions"):
        read_run(tmp_path)
    TraceOptions(folder=tmp_path).describe(PROFILE, CLUSTER)
    record(tmp_path, "w00", [FORWARD])
    with pytest.raises(InvalidInputError, match="another run"):
        TraceOptions(folder=tmp_path).describe(PROFILE, CLUSTER)


def clock(host, monotonic, unix):
    return Clock(host=host, monotonic_seconds=monotonic, unix_seconds=unix)


def test_clocks_of_hosts_are_laid_together_by_messages_both_ways():
    """w01's clock is 100 s ahead; every way takes 1 ms or more."""
    back = Action(ActionKind.SEND_GRADIENT, 0, 1, 2, 4, "w00")
    arrived = Action(ActionKind.RECEIVE_GRADIENT, 0, 0, 0, 2, "w01")
    timings = {
        "w00": (Timing("w00", SEND, 1.0, 1.0), Timing("w00", arrived, 1.0, 2.001)),
        "w01": (Timing("w01", RECEIVE, 100.0, 101.001), Timing("w01", back, 102.0, 102.0)),
    }
    clocks = {"w00": clock("a", 0.0, 1000.0), "w01": clock("b", 100.0, 1000.5)}
    offsets = host_offsets(clocks, {(0, 0): timings})
    assert offsets["b"].seconds == pytest.approx(-100.0)
    assert offsets["b"].source == "messages"


def test_hosts_without_messages_both_ways_are_laid_together_by_their_wall_clocks():
    clocks = {"w00": clock("a", 0.0, 1000.0), "w01": clock("b", 100.0, 1000.5)}
    offsets = host_offsets(clocks, {(0, 0): {"w00": (Timing("w00", SEND, 1.0, 1.0),)}})
    assert offsets["b"].seconds == pytest.approx(-99.5)
    assert offsets["b"].source == "wall clock"


def test_the_job_is_written_as_it_was(tmp_path):
    TraceOptions(folder=tmp_path).describe(PROFILE, CLUSTER)
    assert json.loads((tmp_path / TRACES / JOB).read_text())["profile"] == json.loads(codec.dumps(PROFILE))


def test_a_comparison_needs_a_step_that_all_workers_recorded():
    predicted = TracedStep(timings={"w00": (Timing("w00", FORWARD, 0.0, 1.0),)})
    with pytest.raises(InvalidInputError, match="no step that all workers recorded"):
        compared(predicted, [])
    (forward, step) = compared(predicted, [TracedStep(timings={"w00": (Timing("w00", FORWARD, 5.0, 7.0),)})] * 2)
    assert (forward.kind, forward.measured_seconds, forward.difference_ratio) == ("forward", 2.0, 1.0)
    assert step.kind == "step"
