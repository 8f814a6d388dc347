"""Measures a training job on this machine, layer by layer, and its network and recovery between real processes."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import Device, LayerMeasurement, LayerProfile, Profile, Provenance, ProvenanceKind
from kintsugi.runtime.devices import require_device
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.machine import description, device_name, device_of, driver_of, give_back
from kintsugi.runtime.measuring.apart import Progress, measured_apart
from kintsugi.runtime.measuring.pace import LayerSeconds, layer_seconds
from kintsugi.runtime.measuring.probe import probe
from kintsugi.runtime.measuring.selection import distinct_job, distinct_layers, whole
from kintsugi.runtime.measuring.sweeper import Samples, Sweeper
from kintsugi.runtime.models import TrainingJob, made, model_shape
from kintsugi.runtime.ties import owner_of
from restorer.packing import type_name
from restorer.transport import TensorSpec


def profile_job(
    make_job: Callable[[], TrainingJob],
    *,
    name: str,
    repeats: int = 20,
    num_workers: int = 4,
    workers_per_device: int = 1,
    num_threads: int = 1,
    is_distinct: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Measure a job's layers on this machine, and the network and recovery of real processes.

    On a CUDA device another process measures the layers: of whoever calls this, nothing is kept there.

    Args:
        make_job: module-level function (or a partial of one); the processes that measure call it too.
        name: of the profile.
        repeats: pairs of sweeps over the model: one times the whole backward pass, one the part for the inputs' gradients.
        num_workers: worker processes that this machine runs at once; on the CPU they share its memory.
        workers_per_device: that share a CUDA device's memory.
        num_threads: for torch's own arithmetic, as workers have.
        is_distinct: of layers that are built alike one is measured for all: for models that no device holds at once.
        progress: learns how far the sweeps are.

    Raises:
        InvalidInputError: the job cannot be profiled, or an argument is out of range.
        UnavailableError: a process that measures did not answer in time.
        WorkerError: the job's own code raised in one, or it ended by itself.
    """
    job = made(make_job)
    is_cpu = torch.device(job.device).type == "cpu"
    sharers = num_workers if is_cpu else workers_per_device
    measure = partial(_measured, repeats=repeats, num_threads=num_threads, is_distinct=is_distinct, sharers=sharers)
    measured = measure(lambda: job, progress) if is_cpu else measured_apart(partial(measure, make_job), progress)
    started = partial(distinct_job, make_job) if is_distinct else make_job
    probed = probe(started, device=job.device, num_workers=num_workers)
    layers = measured.layers
    detail = f"{measured.machine}. {layers.detail}, {num_threads} thread(s) per worker. {probed.detail}"
    if sharers > 1:
        detail += f" device.memory_bytes is the {'machine' if is_cpu else 'device'}'s memory over {sharers} workers."
    return Profile(
        name=name,
        microbatch_size=job.microbatch_size,
        provenance=Provenance(kind=ProvenanceKind.MEASURED, detail=detail, measurement=layers.measurement),
        layers=layers.profiles,
        device=measured.device,
        network=probed.network,
        recovery=probed.recovery,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayers:
    """What was measured of a model's layers, and how."""

    profiles: tuple[LayerProfile, ...]
    measurement: LayerMeasurement
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What was measured of a job in one process."""

    layers: MeasuredLayers
    device: Device
    machine: str
    """In words."""


def _measured(
    make_job: Callable[[], TrainingJob],
    progress: Progress | None,
    *,
    repeats: int,
    num_threads: int,
    is_distinct: bool,
    sharers: int,
) -> _Measured:
    """Measure a job's layers in this process, and say on what that was."""
    job = made(make_job)
    with _threads(num_threads):
        layers = profile_layers(job, repeats, is_distinct=is_distinct, progress=progress)
    give_back(job.device)
    return _Measured(layers=layers, device=device_of(job.device, sharers), machine=description(job.device))


def profile_layers(
    job: TrainingJob, repeats: int = 20, *, is_distinct: bool = False, progress: Progress | None = None
) -> MeasuredLayers:
    """Measure a job's layers on its device, in this process; arguments and errors as of `profile_job`."""
    checks.positive("repeats", repeats)
    meter = LayerMeter(job, is_distinct=is_distinct)
    for number in range(repeats):
        meter.sweep()
        if progress is not None:
            progress(number + 1, repeats)
    return meter.measured()


class LayerMeter:
    """Measures a job's layers on its device, in this process, as often as it is asked to."""

    def __init__(self, job: TrainingJob, *, is_distinct: bool = False) -> None:
        """Warm up; arguments and errors as of `profile_job`."""
        require_device(job.device)
        self._job = job
        self._selection = distinct_layers(job) if is_distinct else whole(job)
        self._kinds = f" through {len(self._selection.job.layers)} layers, one of every kind" if is_distinct else ""
        self._sweeper = Sweeper(self._selection.job)
        self._samples = self._sweeper.warmed_up()

    def sweep(self) -> None:
        """A pair of sweeps over the layers."""
        self._sweeper.sweep(self._samples)

    def forget(self) -> None:
        """Forget the times that were measured so far."""
        self._samples = [sample.without_times() for sample in self._samples]

    def measured(self) -> MeasuredLayers:
        """Medians of all pairs of sweeps that are not forgotten; of one at least."""
        boundaries, names = model_shape(self._job).boundaries[1:], {layer.name for layer in self._job.layers}
        samples = self._selection.expanded(self._samples)
        measurement = LayerMeasurement(
            device=device_name(self._job.device),
            driver=driver_of(self._job.device),
            torch_version=str(torch.__version__),
            precision=type_name(self._job.dtype),
            recomputes_activations=self._job.recomputes_activations,
            num_samples=len(self._samples[0].device.backward),
            spread_ratios=tuple(self._selection.expanded([sample.spread_ratio for sample in self._samples])),
        )
        seconds = layer_seconds(samples)
        answering = [sample for sample, own in zip(samples, seconds, strict=True) if own.backward_input]
        are_parted = all(sample.footprint.is_divisible for sample in answering)
        profiles = tuple(
            _layer_profile(layer, names, sample, own, outputs, is_parted=are_parted)
            for layer, sample, own, outputs in zip(self._job.layers, samples, seconds, boundaries, strict=True)
        )
        return MeasuredLayers(profiles=profiles, measurement=measurement, detail=self._detail(measurement))

    def _detail(self, measurement: LayerMeasurement) -> str:
        recomputed = ", activations recomputed" if measurement.recomputes_activations else ""
        return (
            f"Medians of {measurement.num_samples} pairs of sweeps with one micro-batch{self._kinds}, {measurement.precision}"
            f"{recomputed}; widest interquartile range of a layer {max(measurement.spread_ratios):.0%} of its median"
        )


def _layer_profile(
    layer: Layer,
    names: Collection[str],
    sample: Samples,
    seconds: LayerSeconds,
    outputs: tuple[TensorSpec, ...],
    *,
    is_parted: bool,
) -> LayerProfile:
    backward = seconds.backward
    backward_input = min(seconds.backward_input, backward)
    if seconds.backward_input and not is_parted:
        backward_input = backward
    return LayerProfile(
        name=layer.name,
        forward_seconds=seconds.forward,
        backward_input_seconds=backward_input,
        backward_weight_seconds=backward - backward_input,
        optimizer_seconds=seconds.optimizer,
        accumulation_seconds=min(seconds.accumulation, backward - backward_input),
        parameter_bytes=sample.parameter_bytes,
        gradient_bytes=sample.gradient_bytes,
        optimizer_bytes=sample.optimizer_bytes,
        activation_bytes=sample.footprint.activation_bytes,
        output_bytes=sum(torch.Size(spec.shape).numel() * spec.dtype.itemsize for spec in outputs),
        entry_bytes=sample.footprint.entry_bytes,
        temporary_bytes=sample.footprint.temporary_bytes,
        first_temporary_bytes=sample.footprint.first_temporary_bytes,
        deferred_bytes=sample.footprint.deferred_bytes,
        input_temporary_bytes=sample.footprint.input_temporary_bytes,
        weight_temporary_bytes=sample.footprint.weight_temporary_bytes,
        first_weight_temporary_bytes=sample.footprint.first_weight_temporary_bytes,
        optimizer_temporary_bytes=sample.footprint.optimizer_temporary_bytes,
        tied_to=_owner(layer, names),
        tied_bytes=sample.tied_bytes,
    )


def _owner(layer: Layer, names: Collection[str]) -> str | None:
    owners = sorted({owner_of(target, names) for target in layer.tied.values()})
    if len(owners) > 1:
        raise InvalidInputError(
            f"layer {layer.name!r} shares parameters with several layers; a profile can name one", field="tied", value=owners
        )
    return owners[0] if owners else None


@contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    """Torch's arithmetic on so many threads, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
