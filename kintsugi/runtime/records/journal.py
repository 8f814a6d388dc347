"""What a worker writes down of its run, so that others can prove later what was trained: one append-only file per process life.

Every line is a JSON object with a checksum that is chained through all lines before it. A step is written twice: what this
worker passed, before the commit point, and that the step is committed, after it. So the samples of a committed step are on
record even where their worker dies right after the commit point.

Lines reach the kernel one by one and survive the process. They reach the disk with `sync`, which precedes every
checkpoint: a host that crashes goes on from one, and what it forgets is trained again. Where the disk hangs nobody waits for a line
for long: those that follow are written once it answers.
"""

import errno
import hashlib
import json
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from kintsugi.core.errors import InvalidInputError, cause_of
from kintsugi.core.logs import get_logger
from kintsugi.runtime.changes import first_change
from kintsugi.runtime.clerk import Clerk, HungError
from kintsugi.runtime.disk import append_whole

_HASH_DIGITS = 16
_LINE_SECONDS = 5.0
"""For a line to reach the kernel, after which the training goes on without it."""
_MOST_WAITING = 10_000
"""Lines that are kept for a disk that hangs."""


class Source(StrEnum):
    """Where the state comes from that an attempt begins with."""

    START = "start"
    """Every layer from its seed."""
    MEMORY = "memory"
    """The survivors."""
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What the samples of every step follow from."""

    num_samples: int
    global_batch_size: int
    seed: int
    num_layers: int
    num_steps: int
    """To train in all; a later life may have more."""

    def is_same_job(self, other: "Geometry") -> bool:
        """Whether both give the same samples to the same layers."""
        return replace(self, num_steps=0) == replace(other, num_steps=0)

    @property
    def described(self) -> dict[str, str]:
        """All that the samples of a step follow from but the seed, which is not always as a user gave it."""
        return {name: str(getattr(self, name)) for name in ("num_samples", "global_batch_size", "num_layers")}


@dataclass(frozen=True, slots=True)
class Pass:
    """Samples that went forward through layers [layer_start, layer_stop) of one worker."""

    offset: int
    """Of the first in the window of its step."""
    count: int
    layer_start: int
    layer_stop: int
    sample_hash: str

    @classmethod
    def of(cls, offset: int, samples: Sequence[int], layer_start: int, layer_stop: int) -> "Pass":
        """The record of samples that passed."""
        return cls(offset, len(samples), layer_start, layer_stop, sample_hash(samples))


def sample_hash(samples: Iterable[int]) -> str:
    """The first half of SHA-256 over the sample indices in their order, as 64-bit integers."""
    return _short(array("q", samples).tobytes())


class Journal:
    """The record of one worker's process life. Numbers of attempts grow within a life of the agent.

    A full or broken disk does not stop the training, not even before the first line: a warning says so, and the audit will miss
    what could not be written.
    """

    def __init__(self, folder: Path, worker: str, life: int, geometry: Geometry) -> None:
        """Begin a file of its own.

        Args:
            folder: for the files of all workers; made where it is missing.
            worker: this worker's id.
            life: of the agent, counted from 1.
            geometry: of the job.
        """
        self._folder = folder
        self._chain = ""
        self._is_whole = True
        self._descriptor: int | None = None
        """Null where no file could be made."""
        self._clerk = Clerk(f"journal-{worker}")
        self._waiting: deque[Future[None]] = deque()
        """What the disk has held up."""
        self._do(partial(self._begin, f"{life:04d}-{worker}"))
        self._write("begin", worker=worker, life=life, pid=os.getpid(), **asdict(geometry))

    def resume(self, attempt: int, *, step: int, source: Source, generation: int = 0, world_size: int = 1) -> None:
        """Training begins or goes on at `step`, with the state as it was right before it."""
        self._write("resume", attempt=attempt, step=step, source=source.value, generation=generation, world_size=world_size)

    def passed(self, attempt: int, step: int, passes: Sequence[Pass], *, epoch: int, cursor: int) -> None:
        """This worker's part in a step that is about to be committed."""
        rows = [[p.offset, p.count, p.layer_start, p.layer_stop, p.sample_hash] for p in passes]
        self._write("step", attempt=attempt, step=step, epoch=epoch, cursor=cursor, passes=rows)

    def committed(self, attempt: int, step: int, loss: float, microbatches: Sequence[int] = ()) -> None:
        """A step that this worker applied."""
        self._write("commit", attempt=attempt, step=step, loss=loss, microbatches=list(microbatches))

    def sync(self) -> None:
        """Bring all lines to the disk, however long that takes: not for the thread that trains."""
        try:
            if self._descriptor is not None:
                self._clerk.do(lambda: None).result()
            if self._descriptor is not None:
                os.fsync(self._descriptor)
        except (OSError, HungError) as error:
            self._fail(str(error))

    def close(self) -> None:
        """Write no more."""
        self._clerk.do(self._end)
        self._clerk.close(0.0 if self._is_held_up() else _LINE_SECONDS)

    def _write(self, kind: str, **content: Any) -> None:
        """Append a line, or nothing of it."""
        self._do(partial(self._append, _body({"kind": kind, **content})))

    def _do(self, call: Callable[[], None]) -> None:
        """Have the clerk do something; where the disk holds that up, the training goes on, and it is done later."""
        is_held_up = self._is_held_up()
        if len(self._waiting) >= _MOST_WAITING:
            self._fail("more lines wait than are kept, for the disk does not answer")
            return
        done = self._clerk.do(call)
        if is_held_up:
            self._waiting.append(done)
        elif not self._clerk.awaits(done, _LINE_SECONDS):
            self._waiting.append(done)
            log = get_logger("kintsugi.runtime")
            log.warning(
                "the journal's disk does not answer; the training goes on, and its lines are written once it does",
                folder=str(self._folder),
                waited_seconds=_LINE_SECONDS,
            )

    def _is_held_up(self) -> bool:
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        return bool(self._waiting)

    # In the clerk's thread.

    def _begin(self, stem: str) -> None:
        try:
            self._descriptor = _create(self._folder, stem)
        except OSError as error:
            self._fail(str(error))

    def _append(self, body: str) -> None:
        if self._descriptor is None:
            return
        chain = _short((self._chain + body).encode())
        line = f'{body[:-1]},"chain":"{chain}"}}\n'.encode()
        try:
            append_whole(self._descriptor, line, os.lseek(self._descriptor, 0, os.SEEK_END))
        except OSError as error:
            self._fail(str(error))
            return
        self._chain = chain

    def _end(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # what a remote disk says of lines that it took before
                os.close(self._descriptor)
            self._descriptor = None

    def _fail(self, why: str) -> None:
        if self._is_whole:
            get_logger("kintsugi.runtime").warning("this run cannot be proven: its journal failed", error=why)
        self._is_whole = False


@dataclass(frozen=True, slots=True)
class Record:
    """A journal as it was read back."""

    name: str
    worker: str
    life: int
    geometry: Geometry
    lines: tuple[Mapping[str, Any], ...]
    """After the first."""
    problem: str | None
    """Why what follows the lines is not believed."""


def read_journal(path: Path) -> Record | None:
    """Read a file as far as its chain holds; None where its writer ended before the first line was whole.

    A last line without an end was cut off by the death of its writer; that is no problem.

    Raises:
        InvalidInputError: not even the first line is what a journal begins with, or it cannot be read.
    """
    try:
        written = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path.name} cannot be read: {error.strerror}", field="run", value=str(path)) from error
    lines: list[dict[str, Any]] = []
    chain, problem = "", None
    for number, text in enumerate(written.split(b"\n")[:-1], 1):
        line = _checked(text, chain)
        if line is None:
            problem = f"{path.name}, line {number}: does not follow from the lines before it; it was changed, moved or lost"
            break
        chain = line.pop("chain")
        lines.append(line)
    if problem is None and not lines:
        return None
    if not lines or lines[0].get("kind") != "begin":
        raise InvalidInputError(problem or f"{path.name} does not begin as a journal does", field="run", value=str(path))
    first = lines[0]
    try:
        geometry = Geometry(**{field.name: first[field.name] for field in fields(Geometry)})
        return Record(path.name, first["worker"], first["life"], geometry, tuple(lines[1:]), problem)
    except KeyError as error:
        message = f"{path.name} begins without {error}: another version of Kintsugi wrote it, which can read it"
        raise InvalidInputError(message, field="run", value=str(path)) from error


def next_life(folder: Path, geometry: Geometry) -> int:
    """The number of the life that begins now, from the journals of earlier ones.

    A damaged one is warned of, and does not stop the training: the checkpoints tell as well whose they are.

    Raises:
        InvalidInputError: they are of another job, or the disk does not say which there are.
    """
    paths = _journals(folder)
    before = next((record for path in reversed(paths) if (record := _undamaged(path)) is not None), None)
    if before is not None and not before.geometry.is_same_job(geometry):
        changed = first_change(before.geometry.described, geometry.described) or " (another seed)"
        raise InvalidInputError(f"holds journals of another job{changed}; take a new folder", field="run", value=str(folder))
    return max((_life_in(path) for path in paths), default=0) + 1


def _journals(folder: Path) -> list[Path]:
    """By name; `glob` would take a folder that cannot be read for an empty one, or raise what the disk says."""
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(".jsonl"))
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"cannot be read: {cause_of(error)}; mend what its disk is on, or take another folder"
        raise InvalidInputError(message, field="run", value=str(folder)) from error


def _life_in(path: Path) -> int:
    """Whose file it is, by its name; 0 where that is not a journal's."""
    number = path.name.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def _undamaged(path: Path) -> Record | None:
    try:
        return read_journal(path)
    except InvalidInputError as error:
        get_logger("kintsugi.runtime").warning("this run cannot be proven: a journal is damaged", reason=error.message)
        return None


def _checked(text: bytes, chain: str) -> dict[str, Any] | None:
    """The line, if it is exactly what was written after lines that end in `chain`."""
    try:
        line = json.loads(text)
        body = _body({name: value for name, value in line.items() if name != "chain"})
        return line if line["chain"] == _short((chain + body).encode()) else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def _body(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"))


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]


def _create(folder: Path, stem: str) -> int:
    """A new file, numbered after those of the same worker's earlier processes.

    Raises:
        OSError: the disk is full, broken or read-only, there is no folder any more, or it has too many already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for incarnation in range(10_000):
        try:
            return os.open(folder / f"{stem}-{incarnation}.jsonl", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, 0o644)
        except FileExistsError:
            continue
    raise OSError(errno.EEXIST, "has too many journals of one worker; take a new folder", str(folder))
