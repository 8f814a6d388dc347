"""Samples of the parameters while a job trains, and how far one run's are from another's.

Up to so many evenly spaced values of every tensor are kept, every few updates. All holders of a layer write the same file, for
they hold the same bits; who comes last replaces it.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kintsugi.runtime.models import NamedParameters

VALUES_PER_TENSOR = 256
"""Tensors with no more than that are kept whole."""

OptimizerFactory = Callable[[NamedParameters], torch.optim.Optimizer]
Trace = dict[int, dict[str, tuple[np.ndarray, int]]]
"""By number of updates and parameter: the values that were kept, and how many there are in all."""


class Tracer:
    """Writes samples of one worker's parameters after every so many updates."""

    def __init__(self, parameters: NamedParameters, folder: Path, every: int) -> None:
        self._parameters = parameters
        self._every = every
        self._folder = folder
        names = "\n".join(name for name, _ in parameters)
        self._key = hashlib.sha256(names.encode()).hexdigest()[:12]

    def __call__(self, optimizer: torch.optim.Optimizer, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        """After an update. The optimizer counts them in its state, which survives failures."""
        num_updates = int(next(iter(optimizer.state.values()))["step"])
        if num_updates % self._every:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{num_updates:08d}-{self._key}.npz"
        new = path.with_suffix(f".{os.getpid()}.new.npz")
        np.savez(new, allow_pickle=False, **{f"{p.numel()} {name}": _sample(p) for name, p in self._parameters})
        new.replace(path)


def traced(factory: OptimizerFactory, folder: Path, every: int, parameters: NamedParameters) -> torch.optim.Optimizer:
    """The optimizer that `factory` makes, with a tracer."""
    optimizer = factory(parameters)
    optimizer.register_step_post_hook(Tracer(parameters, folder, every))
    return optimizer


def read_trace(folder: Path) -> Trace:
    """Everything that was kept; of what was written twice, the later."""
    trace: Trace = {}
    files = [path for path in folder.glob("*.npz") if ".new" not in path.suffixes]
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        own = trace.setdefault(int(path.name.partition("-")[0]), {})
        with np.load(path) as stored:
            for label in stored.files:
                size, _, name = label.partition(" ")
                own[name] = (stored[label], int(size))
    return trace


def distances(trace: Trace, reference: Trace) -> Mapping[int, float]:
    """L2 distance of the parameters from the reference's over the latter's L2 norm, by number of updates.

    Estimated from what was kept: a tensor's sum of squares is that of its sample times the share of it that was kept, inverted.
    Updates for which a part of the parameters is missing in either are left out.
    """
    found: dict[int, float] = {}
    for num_updates in sorted(trace.keys() & reference.keys()):
        mine, other = trace[num_updates], reference[num_updates]
        if mine.keys() != other.keys():
            continue
        apart = sum(_squares(mine[name][0] - values, size) for name, (values, size) in other.items())
        norm = sum(_squares(values, size) for values, size in other.values())
        found[num_updates] = float(np.sqrt(apart / norm))
    return found


def _sample(parameter: torch.Tensor) -> np.ndarray:
    flat = parameter.detach().flatten()
    stride = -(-flat.numel() // VALUES_PER_TENSOR)
    values: np.ndarray = flat[::stride].cpu().numpy()
    return values


def _squares(values: np.ndarray, size: int) -> float:
    return float(np.square(values).sum()) * size / len(values)
