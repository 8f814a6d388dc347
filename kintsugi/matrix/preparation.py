"""What the cells of a matrix share: data sets, profiles of its models, its settings, and the machine it runs on."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from kintsugi.core.codec import dumps, load
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.version import __version__
from kintsugi.matrix.data import DataFile, export
from kintsugi.matrix.store import write_whole
from kintsugi.matrix.suites import Matrix
from kintsugi.matrix.workload import Model, job_of
from kintsugi.runtime.machine import memory_bytes, processor_name
from kintsugi.runtime.profiler import profile_job

DATA, PROFILES, SETTINGS = "data", "profiles", "settings.json"
_REPEATS = 5
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
        write_whole(path, dumps(profile))
    return path


def environment(data: dict[str, DataFile]) -> dict[str, str]:
    """The machine, the versions and the digests of the data (ECRL, table 2)."""
    packages = {name: _version(name) for name in _PACKAGES}
    digests = {f"{name} (SHA-256)": file.sha256 for name, file in data.items()}
    return {
        "OS": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "CPU": processor_name(),
        "Cores": str(len(os.sched_getaffinity(0))),
        "Memory": f"{memory_bytes() / 1e9:.1f} GB",
        "Python": platform.python_version(),
        "Kintsugi": __version__,
        **packages,
        **digests,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
