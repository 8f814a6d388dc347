"""What the cells of a matrix share: data sets, profiles of its models, its settings, and the machine it runs on."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from kintsugi.core.cluster import Cluster
from kintsugi.core.codec import dumps, load
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.logs import get_logger
from kintsugi.core.profile import Profile
from kintsugi.core.version import __version__
from kintsugi.matrix.data import DataFile, export
from kintsugi.matrix.store import write_whole
from kintsugi.matrix.suites import Matrix
from kintsugi.matrix.workload import Model, job_of
from kintsugi.runtime.machine import memory_bytes, processor_name
from kintsugi.runtime.measuring.profiler import profile_job
from planner.replan import replan

DATA, PROFILES, SETTINGS = "data", "profiles", "settings.json"
_REPEATS = 5
_log = get_logger("kintsugi.matrix")
_PACKAGES = ("torch", "numpy", "scikit-learn")


def require_same_settings(matrix: Matrix, folder: Path) -> None:
    """Write the settings of a matrix down, or require that they are those of the matrix in `folder`; it may have other seeds.

    Raises:
        InvalidInputError: the folder holds another matrix.
    """
    path = folder / SETTINGS
    if not path.is_file():
        write_whole(path, dumps(matrix))
        return
    if load(Matrix, path).without_seeds != matrix.without_seeds:
        raise InvalidInputError("holds a matrix with other settings; take a new folder", field="folder", value=str(folder))


def data_files(models: Iterable[Model], folder: Path) -> dict[str, DataFile]:
    """The data sets of models, by name; written where they are not there yet."""
    return {name: export(name, folder / DATA) for name in dict.fromkeys(model.data_set for model in models)}


def profile_file(model: Model, data: DataFile, folder: Path, *, world_size: int) -> Path:
    """The profile of a model, by which all its cells are planned; measured where it is not there yet."""
    path = folder / PROFILES / f"{model.name}.json"
    if not path.is_file():
        profile = profile_job(partial(job_of, model, data, 0), name=model.name, repeats=_REPEATS, num_workers=world_size)
        if (reason := idle_after_return(profile, model, world_size)) is not None:
            _log.warning("a worker that comes back will stay idle", model=model.name, reason=reason)
        write_whole(path, dumps(profile))
    return path


def idle_after_return(profile: Profile, model: Model, world_size: int) -> str | None:
    """Why a worker that was lost and comes back would have nothing to do; null where it would, as it should.

    It would not where the profile says that others do as well without it: then it was measured on a busy machine. Asking also
    compiles whatever the planner needs, which would else be a part of the first failure's time.
    """
    cluster, lost = Cluster.uniform(world_size), f"w{world_size - 1:02d}"
    settings = JobSettings(num_microbatches=model.num_microbatches)
    alive = tuple(worker.id for worker in cluster.workers)
    first = replan(Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=alive, generation=0))
    without = _after(first, profile, cluster, settings, tuple(worker for worker in alive if worker != lost))
    back = _after(without, profile, cluster, settings, alive)
    return back.reason if lost in {idle.worker for idle in back.plan.idle_workers} else None


def _after(before: Decision, profile: Profile, cluster: Cluster, settings: JobSettings, alive: tuple[str, ...]) -> Decision:
    generation = before.plan.generation + 1
    return replan(
        Snapshot(profile=profile, cluster=cluster, settings=settings, plan=before.plan, alive=alive, generation=generation)
    )


def environment(data: dict[str, DataFile], models: Iterable[Model]) -> dict[str, str]:
    """The machine, its emulated accelerators, the versions and the digests of the data (ECRL, table 2)."""
    packages = {name: _version(name) for name in _PACKAGES}
    digests = {f"{name} (SHA-256)": file.sha256 for name, file in data.items()}
    return {
        "OS": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "CPU": processor_name(),
        "Cores": str(len(os.sched_getaffinity(0))),
        "Accelerators": "; ".join(dict.fromkeys(_accelerator(model) for model in models)),
        "Memory": f"{memory_bytes() / 1e9:.1f} GB",
        "Python": platform.python_version(),
        "Kintsugi": __version__,
        **packages,
        **digests,
    }


def _accelerator(model: Model) -> str:
    if not model.device_seconds:
        return "none"
    milliseconds = 1000 * model.device_seconds
    return f"emulated: a micro-batch takes {milliseconds:g} ms more, in which the processor is free; numerics are real"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
