"""The state of layers and random generators as torch.distributed.checkpoint keeps it: one part per layer, one per worker.

A layer's part holds the same entries that a migration moves, so a checkpoint is one more source of state: any worker under
any plan reads the layers it needs, bit for bit.
"""

import io
import json
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from kintsugi.core.decision import StateKind
from kintsugi.core.descriptors import ran_out
from kintsugi.core.errors import ReconfigurationError, UnavailableError, cause_of
from kintsugi.core.plan import Plan
from kintsugi.runtime.checkpoints.manifest import FileRecord, record_part
from kintsugi.runtime.workers.fit import UPDATED_BY
from kintsugi.runtime.workers.state import ModelState

Entries = dict[str, Any]
"""What one part holds: tensors and plain values by name."""


def _name(kind: StateKind, owner: str, key: str) -> str:
    """What a value of a layer's state is called in its part; names of layers and parameters may hold anything."""
    return json.dumps([kind.value, owner, key])


def _place(name: str) -> tuple[StateKind, str, str]:
    """Kind, owner and key by what a value is called; checkpoints of earlier versions have them with `|` between."""
    if name.startswith("["):
        kind, owner, key = json.loads(name)
    else:
        kind, _, rest = name.partition("|")
        owner, _, key = rest.rpartition("|")
    return StateKind(kind), owner, key


@contextmanager
def _alone() -> Iterator[None]:
    """Without torch's warning that this process writes for itself, and with its errors as those of the disk.

    Raises:
        OSError: why a file could not be written or read.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as error:  # no Exception, so that nobody would catch it
        raise OSError("; ".join(str(_origin(failure[0])) for failure in error.failures.values())) from error


def _origin(failure: BaseException) -> BaseException:
    """What the disk said; after that torch's archive often fails to be closed, and tells of offsets alone."""
    origin: BaseException | None = failure
    while origin is not None and not isinstance(origin, OSError):
        origin = origin.__cause__ or origin.__context__
    return origin or failure


def layer_part(layer: int) -> str:
    """Folder of a layer within a checkpoint."""
    return f"layer-{layer:05d}"


def worker_part(worker: str) -> str:
    """Folder of a worker's own state within a checkpoint."""
    return f"worker-{worker}"


def writers(plan: Plan) -> dict[str, tuple[int, ...]]:
    """The layers that each worker of a plan writes: every layer once, its holders in turn."""
    shares: dict[str, list[int]] = {worker: [] for worker in plan.workers}
    for layer, holders in enumerate(plan.holders):
        shares[holders[layer % len(holders)]].append(layer)
    return {worker: tuple(layers) for worker, layers in shares.items()}


def layer_entries(state: ModelState, layer: int) -> Entries:
    """A layer's parameters, buffers and optimizer state, and what kind of optimizer updates it; tensors are live."""
    kinds = (StateKind.PARAMETER, StateKind.OPTIMIZER)
    entries: Entries = {_name(StateKind.PARAMETER, name, UPDATED_BY): kind for name, kind in state.updated_by(layer).items()}
    return entries | {
        _name(kind, owner, key): value.detach() if isinstance(value, Tensor) else value
        for kind in kinds
        for (owner, key), value in state.export(layer, kind).items()
    }


def random_entries() -> Entries:
    """The state of every random generator of this process; CUDA's only where it is in use, for asking would put it in use."""
    entries: Entries = {
        "python": json.dumps(random.getstate()),
        "numpy": json.dumps(np.random.get_state(legacy=False), default=np.ndarray.tolist),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        entries |= {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return entries


def restore_random(entries: Entries) -> None:
    """Set every random generator of this process back; CUDA's as far as the devices are here."""
    version, words, gauss = json.loads(entries["python"])
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(json.loads(entries["numpy"]))
    torch.set_rng_state(entries["torch"])
    for index in range(torch.cuda.device_count()):
        if f"cuda.{index}" in entries:
            torch.cuda.init()  # else torch seeds them at the first use, by a seed that was set before
            torch.cuda.set_rng_state(entries[f"cuda.{index}"], index)


def write_part(temporary: Path, part: str, entries: Entries) -> dict[str, FileRecord]:
    """Write a part, through to the disk; the records of its files by path within the checkpoint.

    Raises:
        OSError: the disk is full or broken.
    """
    writer = FileSystemWriter(temporary / part, per_thread_copy_ahead=0)  # to host memory; torch would put CUDA in use for it
    with _alone():
        save(dict(entries), storage_writer=writer, no_dist=True)
    return record_part(temporary, part)


def read_part(checkpoint: Path, part: str, moved: Callable[[], None] = lambda: None) -> Entries:
    """Everything in a part; nothing has to be known of it before. `moved` is told of every value that was read."""
    reader = FileSystemReader(checkpoint / part)
    described = reader.read_metadata().state_dict_metadata
    entries: Entries = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype) if isinstance(entry, TensorStorageMetadata) else None
        for name, entry in described.items()
    }
    if entries:
        with _alone():
            load(entries, storage_reader=reader, planner=_Told(moved), no_dist=True)
    return entries


class _Told(DefaultLoadPlanner):
    """Loads as torch does, and tells of every value."""

    def __init__(self, moved: Callable[[], None]) -> None:
        super().__init__()
        self._moved = moved

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        super().load_bytes(read_item, value)
        self._moved()

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        super().commit_tensor(read_item, tensor)
        self._moved()


@contextmanager
def giving(checkpoint: Path, run: Path) -> Iterator[None]:
    """Tells of a checkpoint that the disk gave when it was compared, and does not give now; want of descriptors is no such matter.

    Raises:
        UnavailableError: with the way out.
    """
    try:
        yield
    except OSError as error:
        if ran_out(error):
            raise
        message = f"{checkpoint.name} cannot be read: {cause_of(error)}; mend what its disk is on, and train again in it"
        raise UnavailableError(message, field="run", value=str(run)) from error


def read_layers(
    checkpoint: Path, layers: Iterable[int], moved: Callable[[], None] = lambda: None
) -> dict[tuple[int, StateKind], dict[tuple[str, str], Any]]:
    """The state of some layers as though it had arrived from other workers.

    Raises:
        ReconfigurationError: the checkpoint has no such layer.
    """
    arrived: dict[tuple[int, StateKind], dict[tuple[str, str], Any]] = {}
    for layer in layers:
        if not (checkpoint / layer_part(layer)).is_dir():
            raise ReconfigurationError(f"{checkpoint.name} holds no layer {layer}", field="checkpoint", value=str(checkpoint))
        for name, value in read_part(checkpoint, layer_part(layer), moved).items():
            kind, owner, key = _place(name)
            arrived.setdefault((layer, kind), {})[owner, key] = value
    return arrived


class SnapshotPool:
    """Copies of live state. Memory is used again, for a copy into fresh memory takes several times as long."""

    def __init__(self) -> None:
        self._free: list[dict[str, Entries]] = []

    def copy(self, parts: Mapping[str, Entries]) -> dict[str, Entries]:
        """A copy on the CPU of all tensors in `parts`, into memory that was given back where it fits.

        Those of CUDA devices are copied fastest to pinned memory.
        """
        spare = self._free.pop() if self._free else {}
        return {
            part: {name: _copied(value, spare.get(part, {}).get(name)) for name, value in own.items()}
            for part, own in parts.items()
        }

    def give_back(self, copied: dict[str, Entries]) -> None:
        """Let a copy's memory be used again."""
        self._free.append(copied)


def _copied(value: Any, spare: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    fits = isinstance(spare, Tensor) and spare.shape == value.shape and spare.dtype == value.dtype
    target = spare if fits else torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=value.is_cuda)
    return target.copy_(value)
