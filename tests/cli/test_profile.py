"""`kintsugi profile`: what it takes for a job, what it refuses, and what it writes."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kintsugi.cli import main, profile_measure
from kintsugi.core import codec
from kintsugi.core.profile import LayerMeasurement, Profile, ProvenanceKind
from kintsugi.runtime.models import TrainingJob

JOB = """
from functools import partial
from kintsugi.runtime.emulation import EmulatedTimes, emulated_job

NOTHING = EmulatedTimes(forward_seconds=0.0, backward_input_seconds=0.0, backward_weight_seconds=0.0)

def make_job():
    return emulated_job([NOTHING] * 3, num_microbatches=2, num_steps=1, width=16)

def with_argument(size):
    return make_job()

def no_job():
    return 5

nameless = lambda: make_job()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with a module `own_job` in it."""
    (tmp_path / "own_job.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_job", None)


@pytest.fixture
def calls(monkeypatch):
    """What the command asks to be measured; a committed profile is the answer."""
    asked = []
    known = codec.load(Profile, Path(__file__).parents[2] / "profiles" / "models" / "gpt2-124m.a100-80g.json")

    def measure(make_job, **settings):
        settings["progress"](1, 1)
        asked.append((make_job, settings))
        return known

    monkeypatch.setattr(profile_measure, "profile_job", measure)
    return asked


def run(*arguments):
    """Exit status of `kintsugi profile`."""
    with pytest.raises(SystemExit) as left:
        main(["profile", *map(str, arguments)])
    return left.value.code


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("own_job", "is written MODULE:FUNCTION"),
        (":make_job", "is written MODULE:FUNCTION"),
        (".own_job:make_job", "is written MODULE:FUNCTION"),
        ("own_job:", "is written MODULE:FUNCTION"),
        ("absent_module:make_job", "'absent_module' cannot be imported"),
        ("own_job:absent", "has no function 'absent'"),
        ("own_job:NOTHING", "has no function 'NOTHING'"),
        ("own_job:with_argument", "cannot be called without arguments"),
        ("own_job:no_job", "returns a int, not a TrainingJob"),
        ("own_job:nameless", "cannot be given to worker processes"),
    ],
)
def test_what_is_no_job_is_refused(folder, calls, capsys, job, message):
    assert run(job) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert calls == []


def test_options_reach_the_profiler(folder, calls, capsys):
    assert run("own_job:make_job", "--name", "mine", "--repeats", 7, "--workers", 3) == 0
    [(make_job, settings)] = calls
    assert isinstance(make_job(), TrainingJob)
    assert (settings["name"], settings["repeats"], settings["num_workers"]) == ("mine", 7, 3)
    assert codec.loads(Profile, capsys.readouterr().out).name == "gpt2-124m.a100-80g"


def test_the_job_is_measured_in_another_precision_where_that_is_asked_for(folder, calls):
    assert run("own_job:make_job", "--device", "cpu", "--precision", "bf16") == 0
    [(make_job, _)] = calls
    assert (make_job().device, make_job().dtype) == ("cpu", torch.bfloat16)
    assert pickle.loads(pickle.dumps(make_job))().dtype is torch.bfloat16


@pytest.mark.parametrize("options", [(), ("--distinct",)])
def test_one_of_the_layers_that_are_alike_is_measured_where_that_is_asked_for(folder, calls, options):
    assert run("own_job:make_job", *options) == 0
    [(_, settings)] = calls
    assert settings["is_distinct"] == bool(options)


@pytest.mark.parametrize("options", [(), ("--recompute",)])
def test_activations_are_recomputed_where_that_is_asked_for(folder, calls, options):
    assert run("own_job:make_job", *options) == 0
    [(make_job, _)] = calls
    assert pickle.loads(pickle.dumps(make_job))().recomputes_activations == bool(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device", "toaster"), "device: is no device"),
        (("--device", "meta"), "device: is not supported"),
        (("--device", "cuda:64"), "device: "),
        (("--precision", "fp8"), "precision: is no precision; known ones: fp64, fp32"),
    ],
)
def test_devices_and_precisions_that_are_not_there_are_refused(folder, calls, capsys, options, message):
    assert run("own_job:make_job", *options) == 2
    assert message in capsys.readouterr().err
    assert calls == []


def test_name_is_the_files_or_the_modules(folder, calls, capsys):
    assert run("own_job:make_job", "--output", "small.cpu.json") == 0
    assert run("own_job:make_job") == 0
    assert [settings["name"] for _, settings in calls] == ["small.cpu", "own_job"]


def test_output_is_a_profile_file(folder, calls, capsys):
    assert run("own_job:make_job", "--output", "small.json") == 0
    assert capsys.readouterr().out == ""
    assert codec.load(Profile, folder / "small.json").num_layers == 14


def test_output_that_cannot_be_written_is_refused(folder, calls, capsys):
    assert run("own_job:make_job", "--output", folder / "absent" / "small.json") == 2
    assert "output: cannot be written" in capsys.readouterr().err
    assert run("own_job:make_job", "--output", folder) == 2
    assert "it is a folder; name a file in it" in capsys.readouterr().err
    assert calls == [], "nothing is measured in vain"


@pytest.mark.parametrize(("spread", "is_warned"), [(0.04, False), (58.74, True)])
def test_how_sure_the_times_are_is_told(folder, monkeypatch, capsys, spread, is_warned):
    known = codec.load(Profile, Path(__file__).parents[2] / "profiles" / "models" / "gpt2-124m.a100-80g.json")
    measurement = LayerMeasurement(
        device="cpu",
        driver="none",
        torch_version="2.13.0",
        precision="fp32",
        recomputes_activations=False,
        num_samples=3,
        spread_ratios=(0.01,) * (known.num_layers - 1) + (spread,),
    )
    noisy = replace(known, provenance=replace(known.provenance, kind=ProvenanceKind.MEASURED, measurement=measurement))
    monkeypatch.setattr(profile_measure, "profile_job", lambda *_, **__: noisy)
    assert run("own_job:make_job", "--output", "noisy.json") == 0
    told = capsys.readouterr().err
    assert f"3 sweeps; the times of layer {known.layers[-1].name} spread most, by {spread:.0%} of their median" in told
    assert ("warning: plans made of such times" in told) is is_warned


@pytest.mark.parametrize("option", ["--repeats", "--workers"])
def test_numbers_below_one_are_refused(folder, calls, option):
    assert run("own_job:make_job", option, 0) == 2


@pytest.mark.processes
def test_a_job_of_the_current_directory_is_measured(folder, capsys):
    assert run("own_job:make_job", "--repeats", 2, "--workers", 2) == 0
    document = json.loads(capsys.readouterr().out)
    profile = codec.decode(Profile, document)
    assert [layer.name for layer in profile.layers] == ["layer0", "layer1", "layer2"]
    assert profile.provenance.kind is ProvenanceKind.MEASURED
    assert profile.recovery.restart_seconds > 0
