"""What a job costs, kept in its run's folder: a later life there goes on sooner by the time that measuring takes."""

import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kintsugi.core.codec import dumps, load
from kintsugi.core.errors import InvalidInputError, cause_of
from kintsugi.core.logs import get_logger
from kintsugi.core.profile import Profile
from kintsugi.runtime.checkpoints.recording import RunOptions
from kintsugi.runtime.disk import answer_of, replace_whole
from kintsugi.runtime.layout import MEASURED
from kintsugi.runtime.machine import identity
from kintsugi.runtime.models import TrainingJob, model_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Under which what was measured holds."""

    model: str
    """Digest of all shapes, types and names, and of what the run's state fits to."""
    source: str
    """Digest of the file that the job is made in, and of what its function is given."""
    machine: str
    """Its name, devices and versions."""
    num_workers: int
    workers_per_device: int

    @classmethod
    def of(
        cls, make_job: Callable[[], TrainingJob], job: TrainingJob, run: RunOptions, *, num_workers: int, workers_per_device: int
    ) -> "Circumstances":
        """Those of a job on this machine."""
        return cls(
            model=_digest(run.job, job.recomputes_activations, model_shape(job)),
            source=_digest(*_source(make_job)),
            machine=identity(job.device),
            num_workers=num_workers,
            workers_per_device=workers_per_device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptProfile:
    """What a job costs, and where."""

    circumstances: Circumstances
    profile: Profile


def measured_once(folder: Path, here: Circumstances, measure: Callable[[], Profile]) -> Profile:
    """What an earlier life in a run's folder measured under the same circumstances; else what `measure` gives, which is kept.

    Raises:
        UnavailableError: the disk hangs.
    """
    path, log = folder / MEASURED, get_logger("kintsugi.runtime")
    kept = answer_of(folder, partial(_kept, path))
    if kept is not None and kept.circumstances == here:
        log.info("what the job costs here was measured by an earlier life; without the file it is measured anew", file=str(path))
        return kept.profile
    profile = measure()
    try:
        answer_of(folder, partial(replace_whole, path, dumps(KeptProfile(circumstances=here, profile=profile))))
    except OSError as error:
        log.warning("what was measured cannot be kept; the next life measures anew", file=str(path), reason=cause_of(error))
    return profile


def _kept(path: Path) -> KeptProfile | None:
    """What lies there; None where nothing does, or nothing that can be used."""
    try:
        return load(KeptProfile, path) if path.exists() else None
    except (InvalidInputError, OSError) as error:
        log = get_logger("kintsugi.runtime")
        log.warning("what an earlier life measured cannot be read; it is measured anew", file=str(path), reason=str(error))
        return None


def _source(make_job: Callable[[], TrainingJob]) -> Iterator[object]:
    while isinstance(make_job, partial):
        yield make_job.args, make_job.keywords
        make_job = make_job.func
    with suppress(OSError, TypeError):  # made without a file
        yield Path(inspect.getfile(make_job)).read_bytes()


def _digest(*told: object) -> str:
    return hashlib.sha256(repr(told).encode()).hexdigest()
