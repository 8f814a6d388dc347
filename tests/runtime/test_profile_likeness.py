"""A profile that is given is held beside the job: another model's is refused or warned of, the job's own is not."""

from dataclasses import replace

import pytest
import torch
from structlog.testing import capture_logs

from kintsugi.core.profile import Profile, Provenance, ProvenanceKind
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.measuring.profiler import profile_layers
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.profile_likeness import require_profile_of
from kintsugi.runtime.train import train
from tests.builders import profile_of
from tests.core.refusals import refuses
from tests.runtime.jobs import odd_job, profile_for, tiny_gpt


@pytest.fixture(scope="module")
def own() -> Profile:
    """Of `tiny_gpt`, measured."""
    return _measured(tiny_gpt())


def _measured(job: TrainingJob) -> Profile:
    layers = profile_layers(job, repeats=1)
    provenance = Provenance(kind=ProvenanceKind.MEASURED, measurement=layers.measurement)
    return replace(profile_of(layers.profiles), microbatch_size=job.microbatch_size, provenance=provenance)


def _told(profile: Profile, job: TrainingJob) -> list[str]:
    with capture_logs() as logs:
        require_profile_of(job, profile)
    assert {log["log_level"] for log in logs} <= {"warning"}
    return [log["differences"] for log in logs]


@pytest.mark.parametrize("num_blocks", [5, 7])
def test_a_profile_of_another_model_is_refused(num_blocks):
    other = profile_for(tiny_gpt(num_blocks=num_blocks))
    with refuses("profile", other.name, f"has {num_blocks + 2} layers where the job has 8; leave it out"):
        train(tiny_gpt, workers=4, profile=other)


def test_nothing_is_said_of_the_jobs_own(own):
    assert _told(own, tiny_gpt()) == []


def test_ties_buffers_and_what_is_frozen_are_counted_as_they_were_measured():
    job = odd_job()
    assert _told(_measured(job), job) == []


def test_the_same_layers_of_another_width_are_warned_of(own):
    job = tiny_gpt()
    shape = GptShape(num_blocks=6, width=32, num_heads=2, sequence_length=8, dropout=0.1)
    wide = gpt_job(num_microbatches=job.num_microbatches, num_steps=1, shape=shape, text_bytes=2_000, dtype=torch.float64)
    name, had, has = job.layers[0].name, own.layers[0].parameter_bytes, _measured(wide).layers[0].parameter_bytes
    assert has > had
    told = _told(own, replace(wide, microbatch_size=job.microbatch_size))
    assert told == [f"its layer {name!r} has {had:,} bytes of parameters, the job's {has:,}"]


def test_layers_that_are_called_otherwise_are_warned_of(own):
    other = replace(own, layers=(*own.layers[:2], replace(own.layers[2], name="conv"), *own.layers[3:]))
    assert _told(other, tiny_gpt()) == [f"its layer 2 is 'conv', the job's is {own.layers[2].name!r}"]


def test_other_ties_are_warned_of(own):
    first, last = own.layers[0].name, own.layers[-1].name
    untied = replace(own, layers=(*own.layers[:-1], replace(own.layers[-1], tied_to=None)))
    assert _told(untied, tiny_gpt()) == [f"its layer {last!r} is untied, the job's is tied to {first!r}"]


def test_how_it_was_measured_is_compared(own):
    job = tiny_gpt()
    other = replace(job, microbatch_size=3, recomputes_activations=True)
    assert _told(own, other) == [
        f"its micro-batches are of {job.microbatch_size} samples, the job's of 3; "
        "it was measured with kept activations, the job recomputes them"
    ]
    (told,) = _told(own, replace(job, dtype=torch.float32))
    assert told.startswith("it was measured in float64, the job trains in float32; its layer")


def test_of_several_devices_a_worker_the_bytes_are_not_compared(own):
    halves = replace(own.layers[0], parameter_bytes=own.layers[0].parameter_bytes // 2)
    assert _told(replace(own, layers=(halves, *own.layers[1:])), tiny_gpt()) != []
    assert _told(replace(own, layers=(halves, *own.layers[1:]), tensor_parallel_degree=2), tiny_gpt()) == []


def test_a_layer_that_cannot_be_built_is_left_to_the_workers(own):
    def raises() -> None:
        raise OSError("no such file")

    job = tiny_gpt()
    broken = replace(job.layers[3], build=raises)
    assert _told(own, replace(job, layers=[*job.layers[:3], broken, *job.layers[4:]])) == []
