"""On the emulated device, who reads too early or uses what was given back gets rubbish; and the device's tests pass."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.emulated.library import COMPILER, ROOT, environment

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is missing, which compiles the device"),
]

NOT_AT_LENGTH = "not (killed_in_a_step and (forward or backward or commit) or command or measured_in or memory_that_the_model_says)"
"""The rest is done by `make test-emulated`."""

PATIENCE_SECONDS = 900.0

STREAMS = """
import torch
from torch.optim.adam import adam

there = torch.arange(1000.0, device="cuda")
pinned = torch.empty(1000, pin_memory=True)
assert pinned.is_pinned() and not torch.empty(1).is_pinned()

pinned.copy_(there, non_blocking=True)
assert not torch.equal(pinned, torch.arange(1000.0)), "read before it was awaited"
torch.cuda.synchronize()
assert torch.equal(pinned, torch.arange(1000.0))

side = torch.cuda.Stream()
back = torch.empty_like(there)
with torch.cuda.stream(side):
    back.copy_(pinned, non_blocking=True)
assert not torch.equal(back, there), "another stream that did not wait"
torch.cuda.current_stream().wait_stream(side)
assert torch.equal(back, there)

for is_told in (False, True):
    pinned.zero_()
    source = torch.arange(1000.0, device="cuda")
    with torch.cuda.stream(side):
        pinned.copy_(source, non_blocking=True)
        if is_told:
            source.record_stream(side)
    del source
    side.synchronize()
    assert torch.equal(pinned, torch.arange(1000.0)) is is_told, "given back while another stream reads it"

pinned.copy_(there, non_blocking=True)
event = torch.cuda.Event()
event.record()
event.synchronize()
assert torch.equal(pinned, torch.arange(1000.0))
fused = dict(fused=True, amsgrad=False, beta1=0.9, beta2=0.9, lr=0.1, weight_decay=0.0, eps=1e-8, maximize=False)
try:
    adam([there], [back], [there.clone()], [there.clone()], [], [torch.ones(())], **fused)
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("a counter on the host beside what is updated on the device")
try:
    there + torch.ones(1000)
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("tensors of both devices were added")
"""

FORKS = """
import os
import torch

def is_usable_in_a_fork():
    if (child := os.fork()) == 0:
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError as error:
            os._exit(1 if "in forked subprocess" in str(error) else 2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

assert is_usable_in_a_fork(), "nobody asked for the device"
torch.cuda.is_available()
assert not is_usable_in_a_fork(), "somebody asked for it before"
"""

PACE = """
import json
import sys
import torch
from emulated_cuda import Pace
from benchmarks.lone_stages import Model, emulated_seconds, pipelines
from kintsugi.runtime.devices import job_on
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.measuring import marks
from kintsugi.runtime.measuring.lone_stage import LoneStage
from kintsugi.runtime.measuring.profiler import profile_layers
from kintsugi.runtime.mixed_precision import mixed_precision_adamw

def small_gpt():
    shape = GptShape(num_blocks=8, width=32, sequence_length=16, dropout=0.0)
    return gpt_job(num_microbatches=8, num_steps=1, shape=shape, optimizer=mixed_precision_adamw)

marks.time.perf_counter = Pace.host_clock
job = job_on(small_gpt, "cuda", torch.bfloat16)
one, four, _, halves, _, quarters, *_ = pipelines(len(job.layers))
for host_seconds, seconds_per_byte, *ways in json.loads(sys.argv[1]):
    Pace.keep(host_seconds=host_seconds, device_seconds=2e-6, seconds_per_byte=seconds_per_byte)
    for way in ways:
        model = Model(job, profile_layers(job, 2, is_distinct=way == "distinct").profiles, "")
        for pipeline in (one, four, halves, quarters):
            runs = []
            for place in pipeline.places:
                with LoneStage(job, place) as alone:
                    runs.append(alone.times(1))
            error = model.step_seconds(pipeline) / emulated_seconds(runs) - 1
            print(f"{host_seconds} s a call, {seconds_per_byte} s a byte, {way}, {pipeline}: {error:+.2%}")
            assert abs(error) < 0.05
"""


def emulated(*command: str, patience_seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Ended as a whole, with all that it started, where it takes longer; and what it said is told."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment(), **pipes) as process:
        try:
            said = process.communicate(timeout=patience_seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output = process.communicate(timeout=60)
            pytest.fail(f"not done after {patience_seconds:.0f} s, of which it says: {output}", pytrace=False)
    return subprocess.CompletedProcess(process.args, process.returncode, *said)


def test_who_does_not_wait_reads_rubbish():
    done = emulated("-c", STREAMS)
    assert done.returncode == 0, done.stderr


def test_who_is_forked_from_a_process_that_asked_for_the_device_has_none():
    done = emulated("-c", FORKS)
    assert done.returncode == 0, done.stderr


def test_steps_take_what_profiles_say_whether_host_or_device_is_slower():
    """By clocks that only the device's operations move: the host is slower, the device is, now one and now the other."""
    paces = [(1e-5, 0.0, "whole"), (1e-7, 1e-9, "distinct"), (1e-5, 1e-9, "whole", "distinct")]
    done = emulated("-c", PACE, json.dumps(paces))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(PATIENCE_SECONDS + 100)
def test_what_is_tested_on_devices_holds_on_this_one():
    """Takes a minute alone, several beside others; whichever test waits for nothing is named, with what its threads were at."""
    options = ["-vv", "-p", "no:cacheprovider", "-rs", "-o", "faulthandler_timeout=240", "--timeout=300"]
    selected = ["-m", "not large", "-k", NOT_AT_LENGTH, "tests/gpu"]
    done = emulated("-m", "pytest", *options, *selected, patience_seconds=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout
    left_out = {line.split("[")[1].split(":")[0].split()[-1] for line in done.stdout.splitlines() if line.startswith("SKIPPED")}
    assert left_out == {"tests/gpu/test_nccl.py"}
