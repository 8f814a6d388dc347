"""What the profiler measures of a CUDA device."""

import subprocess
import sys

import pytest
import torch

from benchmarks import lone_stages
from kintsugi.core.codec import load
from kintsugi.core.profile import Profile, ProvenanceKind
from kintsugi.runtime.devices import job_on, precision_of
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.machine import device_of
from kintsugi.runtime.measuring.lone_stage import LoneStage
from kintsugi.runtime.measuring.peers import Peers
from kintsugi.runtime.measuring.profiler import profile_layers
from kintsugi.runtime.measuring.sweeper import Sweeper
from tests.cli.test_profile import run
from tests.gpu.devices import DEVICE, IS_EMULATED, needs_cuda
from tests.runtime.jobs import tiny_gpt

pytestmark = needs_cuda

MEASURED = """
import sys
from functools import partial
import torch
from kintsugi.runtime.devices import job_on
from kintsugi.runtime.measuring.profiler import profile_job
from tests.runtime.jobs import tiny_gpt

profile = profile_job(partial(job_on, tiny_gpt, sys.argv[1], None), name="tiny", repeats=2)
assert min(layer.forward_seconds for layer in profile.layers) > 0
assert not torch.cuda.is_initialized(), "it has a context"
assert torch.cuda.max_memory_allocated() == 0
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_take_time_and_memory(precision):
    job = job_on(tiny_gpt, DEVICE, precision_of(precision))
    before = torch.cuda.memory_allocated(DEVICE)
    sweeper = Sweeper(job)
    samples = sweeper.warmed_up()
    sweeper.sweep(samples)
    assert all(min(sample.device.forward) > 0 and min(sample.device.backward) > 0 for sample in samples)
    assert sum(sample.parameter_bytes for sample in samples) > 0
    assert torch.cuda.max_memory_allocated(DEVICE) > before


def test_the_command_writes_a_profile_of_the_device(tmp_path):
    path = tmp_path / "tiny.json"
    how = ("--device", DEVICE, "--precision", "fp32", "--recompute", "--repeats", 2)
    assert run("tests.runtime.jobs:tiny_gpt", *how, "--output", path) == 0
    profile = load(Profile, path)
    assert profile.device.name == torch.cuda.get_device_name(DEVICE)
    assert profile.provenance.kind is ProvenanceKind.MEASURED
    assert f"{profile.device.name}, driver" in profile.provenance.detail
    assert "from device to device" in profile.provenance.detail
    assert min(layer.forward_seconds for layer in profile.layers) > 0
    measurement = profile.provenance.measurement
    assert (measurement.device, measurement.torch_version) == (profile.device.name, torch.__version__)
    assert (measurement.precision, measurement.recomputes_activations, measurement.num_samples) == ("float32", True, 2)
    assert len(measurement.spread_ratios) == len(profile.layers)
    assert IS_EMULATED or measurement.driver not in (None, "unknown")


def test_who_has_a_job_measured_keeps_nothing_on_the_device():
    done = subprocess.run([sys.executable, "-c", MEASURED, DEVICE], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_messages_are_timed_from_device_to_device():
    with Peers(2, timeout_seconds=120) as peers:
        peers.connect()
        assert peers.message_seconds(64, 3, DEVICE) > 0


def test_the_device_is_described():
    device = device_of(DEVICE, 1)
    assert device.name == torch.cuda.get_device_name(DEVICE)
    assert 0 <= device.reserved_bytes < device.memory_bytes


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("place", lone_stages.pipelines(10)[3].places + lone_stages.pipelines(10)[5].places[:1], ids=str)
def test_a_stage_takes_the_memory_that_the_model_says(place, recomputes):
    job = middle_sized(recomputes)
    model = lone_stages.Model(job, profile_layers(job, 2).profiles, "for a test")
    with LoneStage(job, place) as alone:
        measured, predicted = alone.memory.most_bytes, model.peak_bytes(place)
    assert -0.02 <= predicted / measured - 1 <= 0.05


def middle_sized(recomputes: bool):
    """Of which the library's own workspaces are a small part; an emulated device has none, and is slow."""
    width, num_heads, sequence_length = (64, 4, 32) if IS_EMULATED else (1024, 16, 512)
    shape = GptShape(num_blocks=8, width=width, num_heads=num_heads, sequence_length=sequence_length, dropout=0.0)
    job = gpt_job(num_microbatches=4, num_steps=1, shape=shape, microbatch_size=4, dtype=torch.bfloat16)
    return job_on(lambda: job, DEVICE, None, recomputes_activations=recomputes)


def test_one_of_the_layers_that_are_alike_stands_for_all():
    """But for what an allocator rounds: it cuts no piece off a block of which less than a mebibyte would be left."""
    job = middle_sized(False)
    whole, distinct = (profile_layers(job, 2, is_distinct=is_distinct).profiles for is_distinct in (False, True))
    for one, other in zip(whole, distinct, strict=True):
        assert one.optimizer_bytes == other.optimizer_bytes
        assert other.activation_bytes == pytest.approx(one.activation_bytes, abs=2**20)
        assert min(other.forward_seconds, other.backward_seconds) > 0
        assert other.optimizer_seconds >= 0  # of a layer's few numbers it may be less than what a pass differs from another by


def test_who_recomputes_keeps_what_enters_a_layer_alone():
    kept = [[own.activation_bytes for own in profile_layers(middle_sized(it), 1).profiles[1:-1]] for it in (False, True)]
    assert all(0 < less < more / 4 for more, less in zip(*kept, strict=True))
