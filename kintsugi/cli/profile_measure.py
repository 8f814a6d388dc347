"""`kintsugi profile MODULE:FUNCTION`: measure a training job on this machine."""

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kintsugi.cli.files import require_writable, write_text
from kintsugi.cli.progress import progress_of
from kintsugi.core.codec import encode
from kintsugi.core.errors import InvalidInputError, told_as
from kintsugi.core.profile import Profile
from kintsugi.runtime.brought import require_importable
from kintsugi.runtime.devices import job_on, precision_of, require_device
from kintsugi.runtime.measuring.profiler import profile_job
from kintsugi.runtime.models import TrainingJob

WIDE_SPREAD = 0.5
"""Interquartile range of a layer's times by their median, above which a machine was busy with something else."""


def profile(
    job: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="A function that returns a TrainingJob.")],
    *,
    name: Annotated[str | None, typer.Option("--name", help="Name of the profile; the output file's or the module's.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write to this file instead of the standard output.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Sweeps over the model that the medians are taken of.")] = 20,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Workers that this machine runs at once.")] = 4,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:1; the job's own by default.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="fp64, fp32, bf16, fp16; the job's own by default.")] = None,
    recompute: Annotated[bool, typer.Option("--recompute", help="Recompute activations in the backward pass.")] = False,
    distinct: Annotated[bool, typer.Option("--distinct", help="Measure one of the layers that are built alike for all.")] = False,
) -> None:
    """Measure a model's profile on this machine."""
    if device is not None:
        require_device(device)
    if output is not None:
        require_writable(output)
    dtype = None if precision is None else precision_of(precision)
    make_job = partial(job_on, load_job(job), device, dtype, recomputes_activations=recompute)
    measured = _measure(make_job, name or _default_name(job, output), repeats, workers, is_distinct=distinct)
    _tell_spread(measured)
    text = json.dumps(encode(measured), indent=2, allow_nan=False)
    if output is None:
        print(text)
    else:
        write_text(output, text + "\n")


def _tell_spread(measured: Profile) -> None:
    """Say how sure the times are, and how to get surer ones."""
    measurement = measured.provenance.measurement
    if measurement is None:
        return
    spread, layer = max(zip(measurement.spread_ratios, (layer.name for layer in measured.layers), strict=True))
    told = f"{measurement.num_samples} sweeps; the times of layer {layer} spread most, by {spread:.0%} of their median"
    if spread > WIDE_SPREAD:
        told += "\nwarning: plans made of such times are not worth much: run nothing else on this machine, and give more --repeats"
    typer.echo(told, err=True)


def load_job(path: str) -> Callable[[], TrainingJob]:
    """The function that `MODULE:FUNCTION` names; the current directory is searched first.

    Raises:
        InvalidInputError: the module or the function is not there, or it does not return a TrainingJob.
    """
    module_name, _, function_name = path.partition(":")
    if not all(module_name.split(".")) or not function_name.isidentifier():
        raise InvalidInputError("is written MODULE:FUNCTION, such as examples.train_gpt:make_job", field="job", value=path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidInputError(f"module {module_name!r} cannot be imported: {error}", field="job", value=path) from error
    make_job = getattr(module, function_name, None)
    if not callable(make_job):
        raise InvalidInputError(f"module {module_name!r} has no function {function_name!r}", field="job", value=path)
    with told_as({"make_job": "job"}):
        require_importable(make_job)
    _require_job(make_job, path)
    checked: Callable[[], TrainingJob] = make_job
    return checked


def _require_job(make_job: Callable[[], object], path: str) -> None:
    try:
        inspect.signature(make_job).bind()
    except TypeError as error:
        raise InvalidInputError(f"cannot be called without arguments: {error}", field="job", value=path) from error
    made = make_job()
    if not isinstance(made, TrainingJob):
        raise InvalidInputError(f"returns a {type(made).__name__}, not a TrainingJob", field="job", value=path)


def _default_name(job: str, output: Path | None) -> str:
    return output.stem if output is not None else job.partition(":")[0].rpartition(".")[2]


def _measure(make_job: Callable[[], TrainingJob], name: str, repeats: int, workers: int, *, is_distinct: bool) -> Profile:
    with progress_of() as progress:
        task = progress.add_task("layers, then network and recovery", total=repeats)
        return profile_job(
            make_job,
            name=name,
            repeats=repeats,
            num_workers=workers,
            is_distinct=is_distinct,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
