"""What is measured of a job's layers: times on a clock that only sleeping moves, bytes against counts made by hand."""

import itertools
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import LinkCost, Network, Profile, ProvenanceKind, Recovery
from kintsugi.runtime import emulation, machine
from kintsugi.runtime.emulation import EmulatedTimes, emulated_job, mean_square, sgd
from kintsugi.runtime.gpt import GptShape, adamw, gpt_job
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.machine import memory_bytes
from kintsugi.runtime.measuring import marks, profiler, sweeper
from kintsugi.runtime.measuring.probe import Probed
from kintsugi.runtime.measuring.profiler import profile_job
from kintsugi.runtime.models import TrainingJob, seed_for
from tests.runtime.jobs import stateless

LINK = LinkCost(alpha_seconds=1e-4, beta_seconds_per_byte=1e-9)
PROBED = Probed(
    network=Network(intra_host=LINK, inter_host=LINK),
    recovery=Recovery(detect_seconds=0.01, regroup_seconds=0.02, restart_seconds=0.5),
    commit_seconds=1e-3,
    detail="made up for tests",
)
TIMES = [
    EmulatedTimes(forward_seconds=0.010 + 0.001 * n, backward_input_seconds=0.013, backward_weight_seconds=0.008 + 0.001 * n)
    for n in range(3)
]


@pytest.fixture(autouse=True)
def no_processes(monkeypatch):
    monkeypatch.setattr(profiler, "probe", lambda *_, **__: PROBED)


@pytest.fixture
def virtual_clock(monkeypatch):
    """Time stands still but for sleeping."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(emulation.time, "sleep", sleep)
    monkeypatch.setattr(marks.time, "perf_counter", lambda: now[0])


def job_of(*modules, tied=None, **changes):
    """A job of the given modules, [8] numbers in, fp32."""
    layers = [
        Layer(name=f"layer{n}", build=partial(_build, module), inputs=() if n else ("values",), tied=(tied or {}).get(n, {}))
        for n, module in enumerate(modules)
    ]
    job = TrainingJob(
        layers=layers,
        optimizer=sgd,
        loss=mean_square,
        dataset=[{"values": torch.full((8,), float(n))} for n in range(64)],
        microbatch_size=4,
        num_microbatches=2,
        num_steps=1,
    )
    return replace(job, **changes)


class Start(nn.Module):
    """Passes the micro-batch on."""

    def forward(self, values):
        return values


class Frozen(nn.Linear):
    """A linear layer that is not trained, with a buffer."""

    def __init__(self):
        super().__init__(8, 8)
        self.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(5))


def _build(make):
    return make()


LINEAR = partial(nn.Linear, 8, 8)


def profile_of(job, **settings):
    return profile_job(lambda: job, name="test", repeats=2, **settings)


def test_times_are_those_that_the_layers_take(virtual_clock):
    profile = profile_of(emulated_job(TIMES, num_microbatches=2, num_steps=1))
    for index, (layer, times) in enumerate(zip(profile.layers, TIMES, strict=True)):
        assert layer.forward_seconds == pytest.approx(times.forward_seconds)
        assert layer.backward_input_seconds == pytest.approx(times.backward_input_seconds if index else 0.0)
        assert layer.backward_weight_seconds == pytest.approx(times.backward_weight_seconds)


class Slow(list):
    """Samples that take a second each."""

    def __getitem__(self, index):
        emulation.time.sleep(1.0)
        return super().__getitem__(index)


class Ones(nn.Module):
    """Looks at nothing."""

    def forward(self):
        return torch.ones(4, 8)


class Sum(nn.Module):
    """Looks at the micro-batch as well."""

    def forward(self, hidden, values):
        return hidden + values


@pytest.mark.parametrize(("modules", "reader"), [((Start, LINEAR), 0), ((Ones, Sum, LINEAR), 1)])
def test_batches_are_made_in_the_forward_pass_of_the_first_layer_that_looks_at_them(virtual_clock, modules, reader):
    job = job_of(*modules)
    layers = [replace(layer, inputs=("values",) if n == reader else ()) for n, layer in enumerate(job.layers)]
    profile = profile_of(replace(job, layers=layers, dataset=Slow(job.dataset)))
    expected = [job.microbatch_size if n == reader else 0.0 for n in range(len(layers))]
    assert [layer.forward_seconds for layer in profile.layers] == pytest.approx(expected)


class Drawing(torch.optim.SGD):
    """Remembers the seed that each update draws from."""

    seeds: ClassVar = []

    def step(self):
        self.seeds.append(torch.default_generator.initial_seed())
        super().step()


def test_updates_are_seeded_as_in_training():
    job = job_of(Start, LINEAR, LINEAR, optimizer=lambda named: Drawing([p for _, p in named], lr=0.1))
    Drawing.seeds.clear()
    profile_of(job)
    sweeps = len(Drawing.seeds) // 2 - 1  # and once for the memory that an update takes
    expected = [seed_for(job, 4, number, layer) for number in range(sweeps) for layer in (1, 2)]
    assert [seed for seed in Drawing.seeds if seed in expected] == expected


class Warming(nn.Linear):
    """Sleeps in its forward passes, longest in the first one after an update."""

    def __init__(self):
        super().__init__(8, 8)
        self._seen = -1

    def forward(self, values):
        emulation.time.sleep(0.25 if self._seen == self.weight._version else 0.75)
        self._seen = self.weight._version
        return super().forward(values)


def test_what_a_first_micro_batch_takes_longer_is_the_updates(virtual_clock):
    warming = profile_of(job_of(Start, Warming)).layers[1]
    assert (warming.forward_seconds, warming.optimizer_seconds) == pytest.approx((0.25, 0.5))


class Checkpointed(nn.Linear):
    """Of which autograd passes the whole alone."""

    def forward(self, values):
        return checkpoint(super().forward, values, use_reentrant=True)


def test_where_a_backward_pass_cannot_be_split_no_layer_has_parts():
    """The first layer's yields gradients of weights alone, the others' have but an input part."""
    layers = profile_of(job_of(Start, LINEAR, partial(Checkpointed, 8, 8), LINEAR)).layers[1:]
    assert [layer.backward_input_seconds > 0 for layer in layers] == [False, True, True]
    assert [layer.backward_weight_seconds > 0 for layer in layers] == [True, False, False]


def test_all_layers_of_a_sweep_are_passed_in_one_call_of_autograd(monkeypatch):
    measured = sweeper.Sweeper(job_of(Start, LINEAR, LINEAR, LINEAR))
    samples, calls = measured.warmed_up(), []
    backward = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda roots, **named: (calls.append(len(roots)), backward(roots, **named)))
    measured.sweep(samples)
    assert calls == [1] * 4, "two micro-batches, each twice"


def test_median_is_not_moved_by_one_slow_sweep(monkeypatch):
    instants = itertools.accumulate([0.01] * 60 + [5.0] * 10 + [0.01] * 1000)
    monkeypatch.setattr(marks.time, "perf_counter", lambda: next(instants))
    profile = profile_job(partial(job_of, Start, LINEAR), name="test", repeats=9)
    assert all(layer.forward_seconds == pytest.approx(0.01) for layer in profile.layers)


def test_bytes_of_a_linear_layer_are_those_counted_by_hand():
    start, linear = profile_of(job_of(Start, LINEAR)).layers
    parameters = 4 * (8 * 8 + 8)
    assert (start.parameter_bytes, start.gradient_bytes, start.optimizer_bytes, start.activation_bytes) == (0, 0, 0, 0)
    assert start.output_bytes == linear.output_bytes == 4 * 4 * 8
    assert linear.parameter_bytes == linear.gradient_bytes == linear.optimizer_bytes == parameters
    # The input is saved for the weight's gradient, the output for the mean square's, beside the loss; the weight does not count.
    assert linear.activation_bytes == 2 * 4 * 4 * 8 + 4


def test_adding_to_gradients_is_a_part_of_the_weights_pass():
    start, frozen, linear = profile_of(job_of(Start, Frozen, partial(nn.Linear, 8, 20_000))).layers
    assert start.accumulation_seconds == frozen.accumulation_seconds == 0
    assert 0 < linear.accumulation_seconds <= linear.backward_weight_seconds


def test_the_host_waits_for_the_norms_of_all_layers_before_it_updates_any(virtual_clock, monkeypatch):
    """As at a commit point: on a device updates are as late as the host is with them."""
    seen = []
    monkeypatch.setattr(sweeper.Marks, "wait", lambda _: seen.append("waited"))
    monkeypatch.setattr(sweeper, "take_norm", lambda _: (seen.append("norm"), emulation.time.sleep(0.25)))
    monkeypatch.setattr(sweeper, "apply", lambda *_: (seen.append("update"), emulation.time.sleep(0.5)))
    profile = profile_job(partial(emulated_job, TIMES, num_microbatches=2, num_steps=1), name="slow", repeats=1)
    assert "-".join(["norm"] * 3 + ["waited"] + ["update"] * 3) in "-".join(seen)
    assert [layer.optimizer_seconds for layer in profile.layers] == pytest.approx([0.75] * 3)


def test_adamw_keeps_two_moments_and_a_counter_per_parameter():
    linear = profile_of(job_of(Start, LINEAR, optimizer=adamw)).layers[1]
    assert linear.optimizer_bytes == 2 * linear.parameter_bytes + 2 * 4


def test_frozen_layers_and_buffers_are_held_but_not_reduced():
    frozen = profile_of(job_of(Start, Frozen, LINEAR)).layers[1]
    assert frozen.parameter_bytes == 4 * (8 * 8 + 8 + 5)
    assert frozen.gradient_bytes == frozen.optimizer_bytes == 0
    assert frozen.backward_seconds == 0


class Void(nn.Module):
    """Its parameter and its buffer, or that alone, have no numbers."""

    def __init__(self, *, has_parameter):
        super().__init__()
        self.register_buffer("none", torch.zeros(0, 8))
        if has_parameter:
            self.nothing = nn.Parameter(torch.zeros(8, 0))

    def forward(self, values):
        return values + self.none.sum()


def test_what_has_no_bytes_counts_one_and_is_sent():
    void, empty, linear = profile_of(job_of(VOID_IN, partial(Void, has_parameter=False), LINEAR, optimizer=stateless)).layers
    assert (void.parameter_bytes, void.optimizer_bytes) == (1, 1)
    assert (empty.parameter_bytes, empty.optimizer_bytes) == (1, 0)
    assert linear.optimizer_bytes == 1, "it may come to keep something later on"


def test_tied_layer_reduces_only_what_it_does_not_share():
    first, second = profile_of(job_of(LINEAR_IN, LINEAR, tied={1: {"weight": "layer0.weight"}})).layers
    assert second.tied_to == "layer0"
    assert second.gradient_bytes == 4 * 8
    assert second.parameter_bytes == first.parameter_bytes == 4 * (8 * 8 + 8)
    assert (first.tied_bytes, second.tied_bytes) == (0, 4 * 8 * 8)
    assert first.tied_to is None


class TwoLinears(nn.Module):
    """Two weights, which may be one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Linear(8, 8, bias=False) for _ in range(2))

    def forward(self, values):
        return self.second(self.first(values))


def test_what_is_shared_under_two_names_counts_once():
    tied = {"first.weight": "layer0.weight", "second.weight": "layer0.weight"}
    _, second = profile_of(job_of(LINEAR_IN, TwoLinears, tied={1: tied})).layers
    assert second.tied_bytes == second.parameter_bytes == 4 * 8 * 8


class LinearOfValues(nn.Linear):
    """A first layer with parameters."""

    def forward(self, values):
        return super().forward(values)


LINEAR_IN = partial(LinearOfValues, 8, 8)
VOID_IN = partial(Void, has_parameter=True)


def test_layer_tied_to_several_is_refused():
    job = job_of(LINEAR_IN, LINEAR, LINEAR, tied={2: {"weight": "layer0.weight", "bias": "layer1.bias"}})
    with pytest.raises(InvalidInputError, match="several layers") as caught:
        profile_of(job)
    assert caught.value.field == "tied"


def test_reduced_bytes_of_a_gpt_are_every_parameter_once():
    shape = GptShape(num_blocks=2, width=16, num_heads=2, sequence_length=8)
    job = gpt_job(num_microbatches=2, num_steps=1, shape=shape, text_bytes=2000)
    profile = profile_of(job)
    blocks = 2 * (12 * 16 * 16 + 13 * 16)
    assert sum(layer.gradient_bytes for layer in profile.layers) == 8 * (256 * 16 + 8 * 16 + blocks + 2 * 16)
    assert profile.layers[-1].tied_to == "embedding"
    assert profile.microbatch_size == 2
    assert all(layer.activation_bytes > 0 for layer in profile.layers)


def test_profile_says_where_it_comes_from_and_survives_the_codec():
    profile = profile_of(job_of(Start, LINEAR), num_workers=3)
    assert codec.loads(Profile, codec.dumps(profile)) == profile
    assert profile.provenance.kind is ProvenanceKind.MEASURED
    for fact in (torch.__version__, "float32", "made up for tests", "3 workers"):
        assert fact in profile.provenance.detail
    measurement = profile.provenance.measurement
    assert (measurement.device, measurement.driver) == (profile.device.name, None)
    assert (measurement.torch_version, measurement.precision) == (torch.__version__, "float32")
    assert (measurement.num_samples, len(measurement.spread_ratios)) == (2, 2)
    assert profile.device.memory_bytes == memory_bytes() // 3
    assert (profile.network, profile.recovery) == (PROBED.network, PROBED.recovery)


def test_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    profile_of(job_of(Start, LINEAR), num_threads=before + 1)
    assert torch.get_num_threads() == before


def test_progress_is_told():
    told = []
    profile_of(job_of(Start, LINEAR), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_zero_repeats_are_refused():
    with pytest.raises(InvalidInputError, match="repeats"):
        profile_job(partial(job_of, Start, LINEAR), name="test", repeats=0)


def test_of_layers_built_alike_one_is_measured(monkeypatch):
    shape = GptShape(num_blocks=4, width=16, num_heads=2, sequence_length=8)
    job = gpt_job(num_microbatches=2, num_steps=1, shape=shape, text_bytes=2000)
    probed = []
    monkeypatch.setattr(profiler, "probe", lambda make_job, **_: probed.append(make_job()) or PROBED)
    whole, distinct = profile_of(job), profile_of(job, is_distinct=True)
    assert [len(job.layers) for job in probed] == [6, 3]
    assert "3 layers, one of every kind" in distinct.provenance.detail
    assert len(set(distinct.provenance.measurement.spread_ratios[1:5])) == 1
    assert len({codec.dumps(replace(layer, name="block")) for layer in distinct.layers[1:5]}) == 1
    for one, other in zip(whole.layers, distinct.layers, strict=True):
        assert (one.name, one.parameter_bytes, one.activation_bytes) == (other.name, other.parameter_bytes, other.activation_bytes)


def test_the_driver_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_DRIVER", tmp_path / "version")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.driver_version() == "unknown"
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 580.159.04\n")
    tool.chmod(0o755)
    assert machine.driver_version() == "580.159.04"
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n")
    assert machine.driver_version() == "580.159.03"
