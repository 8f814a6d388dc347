"""What `kintsugi.train` refuses before anything starts."""

import subprocess
import sys
from dataclasses import fields, replace

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError, InvalidInputError, UnavailableError
from kintsugi.core.handling import Handling
from kintsugi.core.job import Ranges
from kintsugi.core.profile import LinkCost, Network, Profile
from kintsugi.runtime import train as training
from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.faults import Fault, FaultPoint, fail_at, require_struck
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, Governance, WorkerOptions
from kintsugi.runtime.train import train
from planner.replan import replan
from tests.builders import snapshot_of
from tests.core.refusals import refuses
from tests.processes import free_port
from tests.runtime.jobs import NUM_MICROBATCHES, profile_for, tiny_gpt


@pytest.mark.parametrize("workers", ["4", 2.5, 0, -1, None, True])
def test_workers_are_a_whole_number_or_a_cluster(workers):
    with refuses("workers", workers, "whole number"):
        train(tiny_gpt, workers=workers, dp=2, pp=2)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"dp": 0}, "dp: must be a whole number above 0, not 0"),
        ({"pp": "2"}, "pp: must be a whole number above 0, not '2'"),
        ({"pp": 5}, "pp: dp 1 and pp 5 need 5 workers, and there are 4"),
        ({"dp": 2, "pp": 3}, "dp: dp 2 and pp 3 need 6 workers, and there are 4"),
        ({"faults": None}, "faults: must be a list, as in faults=[kintsugi.fail_at(3, 'w01')], not None"),
        ({"faults": fail_at(1, "w00")}, "faults: must be a list"),
        ({"options": WorkerOptions()}, "options: must be of AgentOptions, not WorkerOptions("),
        ({"options": 3}, "say options=AgentOptions(worker=WorkerOptions(...))"),
        ({"observer": 3}, "observer: must be a function of the agent, not 3"),
        ({"ranges": 3}, "ranges: must be of Ranges, not 3"),
        ({"profile": "gpt.json"}, "kintsugi.core.codec.load reads one from a file"),
        ({"checkpoints": CheckpointOptions()}, "checkpoints: need a folder: say run=..."),
        ({"checkpoints": 3}, "checkpoints: must be of CheckpointOptions, not 3"),
        ({"run": ""}, "run: must be the path of a folder, not ''; '.' is the current one"),
        ({"trace": 3}, "trace: must be the path of a folder, not 3"),
        ({"name": ""}, "name: must be a name of 1 to 200"),
        ({"handling": 3}, "handling: must be of Handling, not 3"),
        ({"handling": Handling()}, "handling: is what a service is asked for: say service=..., or leave it out"),
        ({"membership": "rings"}, "membership: is no membership; known ones: agent, ring"),
    ],
)
def test_an_argument_of_another_kind_is_told_with_its_name(given, told):
    with pytest.raises(InvalidInputError) as caught:
        train(tiny_gpt, **{"workers": 4, "profile": profile_for(tiny_gpt()), **given})
    assert told in str(caught.value)


@pytest.mark.parametrize("make_job", [None, tiny_gpt()])
def test_what_is_no_function_makes_no_job(make_job):
    with pytest.raises(InvalidInputError, match=r"make_job: must be a function, not .*: give the function that makes the job"):
        train(make_job, workers=2)


@pytest.mark.parametrize("field", [field.name for field in fields(AgentOptions) if field.name.endswith("timeout_seconds")])
@pytest.mark.parametrize("value", [0, -1, float("nan"), "5", None])
def test_patience_is_a_number_above_0(field, value):
    with pytest.raises(InvalidInputError) as caught:
        AgentOptions(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"governance": "x"}, "governance: is no governance; known ones: agent, ring"),
        ({"worker": 3}, "worker: must be of WorkerOptions, not 3"),
        ({"max_idle_attempts": 0}, "max_idle_attempts: must be a whole number above 0"),
        ({"link_grace_seconds": -1}, "link_grace_seconds: must be a finite number of at least 0"),
        (
            {"worker": WorkerOptions(heartbeat_seconds=3.0)},
            "heartbeat_timeout_seconds: must be at least twice worker.heartbeat_seconds (3)",
        ),
    ],
)
def test_options_of_the_agent_that_cannot_be_are_refused(said, told):
    with pytest.raises(InvalidInputError) as caught:
        AgentOptions(**said)
    assert told in str(caught.value)


def one_micro_batch() -> TrainingJob:
    """The same, with a single micro-batch per step."""
    return replace(tiny_gpt(), num_microbatches=1)


@pytest.fixture
def begun(monkeypatch):
    """The plans that jobs would begin with; null where whoever decides chooses."""
    plans = []
    monkeypatch.setattr(training, "_run", lambda _make_job, request, *_: plans.append(request.plan))
    return plans


def profile_over_slow_links() -> Profile:
    """Pipelines that have to reduce their gradients over such links are far slower than one that needs not."""
    slow = LinkCost(alpha_seconds=0.0, beta_seconds_per_byte=1e-6)
    return replace(profile_for(tiny_gpt()), network=Network(intra_host=slow, inter_host=slow))


def test_over_slow_links_one_pipeline_would_be_the_fastest():
    snapshot = snapshot_of(profile_over_slow_links(), Cluster.uniform(4), NUM_MICROBATCHES)
    assert replan(snapshot).plan.dp == 1


@pytest.mark.parametrize(
    ("said", "dp"),
    [
        ({}, 2),
        ({"pp": 2}, 2),
        ({"dp": 1}, 1),
        ({"workers": 1}, None),
        ({"workers": 1, "pp": 1}, 1),
        ({"ranges": Ranges()}, None),
        ({"run": "folder"}, None),
    ],
)
def test_a_job_without_checkpoints_begins_with_two_holders_of_every_layer(begun, tmp_path, said, dp):
    if "run" in said:
        said = {"run": tmp_path / said["run"]}
    train(tiny_gpt, **{"workers": 4, "profile": profile_over_slow_links(), **said})
    (plan,) = begun
    assert dp == (None if plan is None else plan.dp)
    if dp == 2:
        assert all(len(holders) == 2 for holders in plan.holders)


@pytest.mark.parametrize(("said", "dp"), [({}, None), ({"pp": 3}, 1), ({"dp": 1}, 1)])
def test_a_job_of_one_micro_batch_begins_with_one_pipeline(begun, said, dp):
    train(one_micro_batch, workers=4, profile=profile_for(one_micro_batch()), **said)
    (plan,) = begun
    assert dp == (None if plan is None else plan.dp)


@pytest.mark.parametrize(
    ("make_job", "said", "field", "value"),
    [
        (one_micro_batch, {"dp": 2}, "dp", 2),
        (tiny_gpt, {"dp": 9}, "dp", 9),
        (tiny_gpt, {"dp": 1, "pp": 20}, "pp", 20),
        (one_micro_batch, {"ranges": Ranges(min_dp=2)}, "ranges.min_dp", 2),
        (tiny_gpt, {"ranges": Ranges(min_pp=20)}, "ranges.min_pp", 20),
    ],
)
def test_degrees_that_the_job_has_not_enough_for_are_refused_before_anything_is_measured(monkeypatch, make_job, said, field, value):
    monkeypatch.setattr(training, "_measured", lambda *_: pytest.fail("it is measured"))
    with refuses(field, value):
        train(make_job, workers=20, **said)


def test_ranges_that_there_are_too_few_workers_for_are_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(training, "_measured", lambda *_: pytest.fail("it is measured"))
    with pytest.raises(InfeasibleError, match="workers: 12 are needed for min_dp 3 and min_pp 4, 11 are there; add some, or lower"):
        train(tiny_gpt, workers=11, ranges=Ranges(min_dp=3, min_pp=4))


@pytest.mark.parametrize(
    ("said", "address"),
    [({"address": "192.0.2.1"}, "192.0.2.1"), ({"addresses": {"w01": "no..host"}}, "no..host")],
)
def test_an_address_that_is_none_of_this_machines_is_refused(said, address):
    with refuses("options.worker.address", address, "can listen at"):
        train(tiny_gpt, workers=2, profile=profile_for(tiny_gpt()), options=AgentOptions(worker=WorkerOptions(**said)))


def test_governance_may_be_said_in_words():
    assert AgentOptions(governance="ring").governance is Governance.RING


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"heartbeat_seconds": float("nan")}, "heartbeat_seconds"),
        ({"heartbeat_seconds": "x"}, "heartbeat_seconds"),
        ({"connect_timeout_seconds": 0}, "connect_timeout_seconds"),
        ({"operation_timeout_seconds": -3}, "operation_timeout_seconds"),
        ({"num_threads": 0}, "num_threads"),
        ({"num_threads": "x"}, "num_threads"),
        ({"address": ""}, "address"),
        ({"addresses": ["x"]}, "addresses"),
        ({"addresses": {"w00": 3}}, "addresses.w00"),
        ({"devices": {"w00": 3}}, "devices.w00"),
        ({"ring": 3}, "ring"),
        ({"transport": "tcp"}, "transport"),
        ({"compare_every_steps": 0}, "compare_every_steps"),
    ],
)
def test_options_of_workers_that_cannot_be_are_refused(said, field):
    with pytest.raises(InvalidInputError) as caught:
        WorkerOptions(**said)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fault", "field", "value"),
    [
        (fail_at(1, "w99", "backward"), "faults[1].worker", "w99"),
        (fail_at(4, "w01", "backward"), "faults[1].step", 4),
        (fail_at(-1, "w01"), "faults[1].step", -1),
        (fail_at(1, "w01", "backward", microbatch=NUM_MICROBATCHES), "faults[1].microbatch", NUM_MICROBATCHES),
        (fail_at(1, "w01", microbatch=-1), "faults[1].microbatch", -1),
        (fail_at(1, "w01", "reduce", microbatch=1), "faults[1].microbatch", 1),
        (fail_at(1, "w01", "checkpoint", "tear"), "faults[1].at", "checkpoint"),
        (fail_at("3", "w01"), "faults[1].step", "3"),
        (fail_at(1.5, "w01"), "faults[1].step", 1.5),
        (fail_at(2, "w01", "start"), "faults[1].step", 2),
        (fail_at(1, "w01", microbatch=0.5), "faults[1].microbatch", 0.5),
        ("w01", "faults[1]", "'w01'"),
    ],
)
def test_a_fault_that_would_never_strike_is_refused(fault, field, value):
    with refuses(field, value):
        train(tiny_gpt, workers=4, dp=2, pp=2, faults=[fail_at(3, "w00"), fault])


def test_a_fault_of_any_step_or_later_generation_is_legal():
    faults = [Fault(worker="w00", at=FaultPoint.REGROUP, generation=1), fail_at(0, "w01"), fail_at(3, "w01", "checkpoint", "tear")]
    faults += [fail_at(1, "w00", "forward", microbatch=7), fail_at(None, "w00", "start")]
    require_struck(faults, ["w00", "w01"], num_steps=4, num_microbatches=8, has_folder=True)


def test_a_run_needs_a_folder_that_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/x"):
        with refuses("run", str(folder), "name another one"):
            train(tiny_gpt, workers=4, dp=2, pp=2, run=folder, profile=profile_for(tiny_gpt()))


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("deferred_parallelism", "has two steps, of which workers carry out the first alone: pin another one"),
        ("fault_free", "is that of a first plan, and answers no loss: pin another one"),
        ("checkpoint_restart", "needs checkpoints, and none are written: say run="),
        ("hope", "is no policy; known ones: data_rerouting, dynamic_parallelism, spare_substitution, checkpoint_restart"),
    ],
)
def test_a_policy_that_would_end_the_job_at_its_first_loss_is_refused(policy, told):
    with refuses("policy", policy, told):
        train(tiny_gpt, workers=4, dp=2, pp=2, policy=policy)


def test_a_service_has_an_address():
    with refuses("service", "nonsense", "http://"):
        train(tiny_gpt, workers=4, dp=2, pp=2, service="nonsense")


def test_a_service_that_does_not_answer_is_told_of_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(training, "_measured", lambda *_: pytest.fail("it is measured"))
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
        train(tiny_gpt, workers=4, service=f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(("degrees", "field"), [({"dp": 20, "pp": 1}, "dp"), ({"dp": 1, "pp": 20}, "pp")])
def test_degrees_are_refused_by_their_own_names(degrees, field):
    with refuses(field, 20):
        train(tiny_gpt, workers=20, profile=profile_for(tiny_gpt()), **degrees)


@pytest.mark.parametrize(("wrong", "field", "known"), [({"at": "nowhere"}, "at", "backward"), ({"how": "tickle"}, "how", "freeze")])
def test_a_fault_names_what_there_is(wrong, field, known):
    with refuses(field, wrong[field], known):
        fail_at(5, "w01", **wrong)


def test_who_starts_workers_loads_nothing_that_they_alone_need():
    code = "import sys, kintsugi.runtime.train\nsys.exit('torch.distributed.checkpoint' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], timeout=240.0, check=True)


LIMITED = """
import resource

from kintsugi.runtime.forking import forkserver

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
look = "import gc, resource; assert gc.isenabled() and resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64"
worker = forkserver().Process(target=exec, args=(look,))
worker.start()
worker.join()
assert worker.exitcode == 0
"""


@pytest.mark.processes
def test_workers_have_as_many_descriptors_as_they_may_and_look_for_garbage():
    """Each group takes a descriptor for each of its members; only while modules are loaded no garbage is looked for."""
    subprocess.run([sys.executable, "-c", LIMITED], timeout=120, check=True)


SCRIPT = """
import kintsugi
from tests.runtime.jobs import profile_for, tiny_gpt


def make_job():
    return tiny_gpt()


kintsugi.train({job}, workers=1, profile=profile_for(tiny_gpt()))
"""


def said_by(arguments: list[str], script: str = "") -> str:
    """The last line of standard error of a script that fails."""
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, input=script, text=True, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 1, ended.stderr
    return ended.stderr.splitlines()[-1]


@pytest.mark.processes
@pytest.mark.parametrize("job", ["make_job", "tiny_gpt"])
def test_a_script_that_trains_while_workers_import_it_is_told_so(job, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(job=job))
    assert "WorkerError" in (said := said_by([str(script)]))
    assert "__main__" in said


@pytest.mark.processes
@pytest.mark.parametrize(("how", "job"), [("-c", "make_job"), ("-", "make_job"), ("-", "tiny_gpt")])
def test_a_script_that_is_no_file_is_told_so_before_a_worker_is_started(how, job):
    script = SCRIPT.format(job=job)
    said = said_by(["-c", script]) if how == "-c" else said_by(["-"], script)
    assert "InvalidInputError: make_job: " in said
    assert "write it into a file" in said
