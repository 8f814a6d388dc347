"""Which device a job computes on, and in which precision."""

from collections.abc import Callable
from dataclasses import replace

import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.models import TrainingJob

PRECISIONS = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Names of data types, as they are written on a command line."""


def require_device(name: str) -> None:
    """Require that torch can compute on a device: `cpu`, `cuda` or `cuda:1`.

    Raises:
        InvalidInputError: it is none, or this machine has none such.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidInputError("is no device; write cpu, cuda or cuda:0", field="device", value=name) from error
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise InvalidInputError("is not supported; write cpu, cuda or cuda:0", field="device", value=name)
    if not torch.cuda.is_available():
        why = "no CUDA device is found" if torch.version.cuda else "this build of torch is for CPUs alone"
        raise InvalidInputError(f"cannot be used: {why}; write cpu, or install torch for CUDA", field="device", value=name)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise InvalidInputError(f"is not there; there are {torch.cuda.device_count()}", field="device", value=name)


def precision_of(name: str) -> torch.dtype:
    """The data type of that name.

    Raises:
        InvalidInputError: there is none.
    """
    if name not in PRECISIONS:
        raise InvalidInputError(f"is no precision; known ones: {', '.join(PRECISIONS)}", field="precision", value=name)
    return PRECISIONS[name]


def job_on(
    make_job: Callable[[], TrainingJob], device: str | None, dtype: torch.dtype | None, *, recomputes_activations: bool = False
) -> TrainingJob:
    """The job that `make_job` returns, on another device, in another data type or with recomputation where that is asked for.

    A partial of this function travels to other processes where `make_job` does.
    """
    job = make_job()
    recomputes = recomputes_activations or job.recomputes_activations
    return replace(job, device=device or job.device, dtype=dtype or job.dtype, recomputes_activations=recomputes)
