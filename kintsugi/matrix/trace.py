"""Samples of the parameters while a job trains, and how far one run's are from another's.

Up to so many evenly spaced values of every tensor are kept, every few updates. Every process appends them to a file of its own,
update by update, so that they survive it and training hardly waits for them. A disk that takes no more ends the samples, not the
training.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kintsugi.core.errors import cause_of
from kintsugi.core.logs import get_logger
from kintsugi.matrix.cell import Cell
from kintsugi.matrix.record import StepRecord
from kintsugi.matrix.store import read_steps, write_steps
from kintsugi.runtime.models import NamedParameters

TRACE = "trace"
"""Folder of a cell for samples of its parameters."""
VALUES_PER_TENSOR = 256
"""Tensors with no more than that are kept whole."""
_log = get_logger("kintsugi.matrix")

OptimizerFactory = Callable[[NamedParameters], torch.optim.Optimizer]
Trace = dict[int, dict[str, tuple[np.ndarray, int]]]
"""By number of updates and parameter: the values that were kept, and how many there are in all."""


class Tracer:
    """Appends samples of one worker's parameters to its file after every so many updates."""

    def __init__(self, parameters: NamedParameters, folder: Path, every: int) -> None:
        self._parameters = parameters
        self._every = every
        names = "\n".join(name for name, _ in parameters)
        self._path = folder / f"{hashlib.sha256(names.encode()).hexdigest()[:12]}-{os.getpid()}.trace"
        self._is_over = False

    def __call__(self, optimizer: torch.optim.Optimizer, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        """After an update. The optimizer counts them in its state, which survives failures."""
        num_updates = int(next(iter(optimizer.state.values()))["step"])
        if self._is_over or num_updates % self._every:
            return
        try:
            self._append(num_updates, [_sample(parameter) for _, parameter in self._parameters])
        except OSError as error:
            self._is_over = True  # what comes after a torn record could not be read
            _log.warning("samples of the parameters are not written any more", file=str(self._path), reason=cause_of(error))

    def _append(self, num_updates: int, samples: Sequence[np.ndarray]) -> None:
        if not self._path.exists():
            self._begin(samples)
        with self._path.open("ab") as file:  # buffered, for that writes all of it or raises
            file.write(np.concatenate([[float(num_updates)], *samples]).tobytes())

    def _begin(self, samples: Sequence[np.ndarray]) -> None:
        """One line that says what every record holds: names, numbers of values, and what they are a sample of."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        sizes = [(name, len(own), p.numel()) for (name, p), own in zip(self._parameters, samples, strict=True)]
        self._path.write_bytes(json.dumps(sizes).encode() + b"\n")


def traced(factory: OptimizerFactory, folder: Path, every: int, parameters: NamedParameters) -> torch.optim.Optimizer:
    """The optimizer that `factory` makes, with a tracer."""
    optimizer = factory(parameters)
    optimizer.register_step_post_hook(Tracer(parameters, folder, every))
    return optimizer


def read_trace(folder: Path) -> Trace:
    """Everything that was kept; of what was written twice, the later. A file whose first line is torn holds nothing."""
    trace: Trace = {}
    for path in sorted(folder.glob("*.trace"), key=lambda path: path.stat().st_mtime_ns):
        header, end, body = path.read_bytes().partition(b"\n")
        if not end:
            continue
        sizes = json.loads(header)
        width = 1 + sum(length for _, length, _ in sizes)
        values = np.frombuffer(body, dtype=np.float64, count=len(body) // (8 * width) * width)
        for record in values.reshape(-1, width):
            own = trace.setdefault(int(record[0]), {})
            borders = np.cumsum([1, *(length for _, length, _ in sizes)])
            for (name, _, size), start, stop in zip(sizes, borders, borders[1:], strict=False):
                own[name] = (record[start:stop], size)
    return trace


def compare(cell: Cell, reference: Cell, matrix: Path) -> None:
    """Write the distances of a cell that is done from its reference into its steps; its own samples are removed.

    The log says of how many updates samples are missing in one of the two.
    """
    own, others = (read_trace(each.folder(matrix) / TRACE) for each in (cell, reference))
    apart = distances(own, others)
    steps = [_with_distance(step, apart) for step in read_steps(cell, matrix)]
    write_steps(cell, steps, matrix)
    sampled = [step for step in steps if step.global_step + 1 in own.keys() | others.keys()]
    if missing := sum(step.parameter_distance is None for step in sampled):
        told = "parameters are not compared after every update that they were to be: samples are missing"
        _log.warning(told, cell=cell.name, reference=reference.name, missing=missing, sampled=len(sampled))
    shutil.rmtree(cell.folder(matrix) / TRACE)


def _with_distance(step: StepRecord, apart: Mapping[int, float]) -> StepRecord:
    """What was told before stays where samples are missing: a comparison may have been stopped as it removed them."""
    return replace(step, parameter_distance=apart.get(step.global_step + 1, step.parameter_distance))


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
    values: np.ndarray = flat[::stride].to("cpu", torch.float64).numpy()
    return values


def _squares(values: np.ndarray, size: int) -> float:
    return float(np.square(values).sum()) * size / len(values)
