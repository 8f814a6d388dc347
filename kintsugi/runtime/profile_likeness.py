"""Whether a profile that a user gives is of the job: plans are no better than what they are made from."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.logs import get_logger
from kintsugi.core.profile import Profile
from kintsugi.runtime.following import built_without_values
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.ties import owner_of
from restorer.packing import type_name

_ALIKE_RATIO = 0.1
"""By which a layer's bytes may differ: published profiles count no buffers."""


def require_profile_of(job: TrainingJob, profile: Profile) -> None:
    """Require a profile of as many layers as the job has; a warning tells what else it has otherwise, for it may be meant so.

    Raises:
        InvalidInputError: it is of another model.
    """
    if profile.num_layers != len(job.layers):
        message = f"has {profile.num_layers} layers where the job has {len(job.layers)}; leave it out to have the job measured"
        raise InvalidInputError(message, field="profile", value=profile.name)
    differences = [*_of_measuring(profile, job), *islice(_of_layers(profile, job), 1), *islice(_of_sizes(profile, job), 1)]
    if differences:
        told = "the profile may be of another model, and plans no good then; leave it out to have the job measured"
        get_logger("kintsugi.runtime").warning(told, profile=profile.name, differences="; ".join(differences))


def _of_measuring(profile: Profile, job: TrainingJob) -> Iterator[str]:
    if profile.microbatch_size != job.microbatch_size:
        yield f"its micro-batches are of {profile.microbatch_size} samples, the job's of {job.microbatch_size}"
    measured = profile.provenance.measurement
    if measured is None:
        return
    if measured.precision != type_name(job.dtype):
        yield f"it was measured in {measured.precision}, the job trains in {type_name(job.dtype)}"
    if measured.recomputes_activations != job.recomputes_activations:
        mine, theirs = ("recomputes", "kept") if job.recomputes_activations else ("keeps", "recomputed")
        yield f"it was measured with {theirs} activations, the job {mine} them"


def _of_layers(profile: Profile, job: TrainingJob) -> Iterator[str]:
    names = {layer.name for layer in job.layers}
    for index, (measured, layer) in enumerate(zip(profile.layers, job.layers, strict=True)):
        if measured.name != layer.name:
            yield f"its layer {index} is {measured.name!r}, the job's is {layer.name!r}"
        owners = sorted({owner_of(target, names) for target in layer.tied.values()})
        told = [] if measured.tied_to is None else [measured.tied_to]
        if (told or owners) and not {*told} & {*owners}:  # of several, a profile can name one
            yield f"its layer {measured.name!r} is {_tied(told)}, the job's is {_tied(owners)}"


def _of_sizes(profile: Profile, job: TrainingJob) -> Iterator[str]:
    if profile.tensor_parallel_degree > 1:  # its bytes are of one device of a worker's
        return
    for measured, layer in zip(profile.layers, job.layers, strict=True):
        num_bytes = _parameter_bytes(layer, job.dtype)
        if num_bytes is None:
            return
        if not math.isclose(measured.parameter_bytes, num_bytes, rel_tol=_ALIKE_RATIO, abs_tol=1.0):
            yield f"its layer {measured.name!r} has {measured.parameter_bytes:,} bytes of parameters, the job's {num_bytes:,}"


def _parameter_bytes(layer: Layer, dtype: torch.dtype) -> int | None:
    """Of its parameters and buffers; null where it cannot be built, which workers tell better."""
    try:
        with torch.random.fork_rng(devices=[]):  # for a layer that is made of values
            module = built_without_values(layer.name, layer.build).to(dtype=dtype)
    except Exception:
        return None
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))


def _tied(owners: Sequence[str]) -> str:
    names = ", ".join(map(repr, owners))
    return f"tied to {names}" if names else "untied"
