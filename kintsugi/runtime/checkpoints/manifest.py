"""What one checkpoint holds: a manifest that names every file with size and SHA-256, and whether all are as they were written."""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kintsugi.core.codec import digest
from kintsugi.core.errors import KintsugiError, cause_of
from kintsugi.runtime.disk import sync_folder
from kintsugi.runtime.sampler import SamplerState

MANIFEST = "manifest.json"
_PIECE_BYTES = 1 << 20
"""That are read at a time."""


class DamagedCheckpointError(KintsugiError):
    """A checkpoint is not as it was written; `field` names it, `value` the file."""

    code = "damaged_checkpoint"


class UnreadableCheckpointError(DamagedCheckpointError):
    """The disk does not give a file of a checkpoint that is there: it may be whole, and readable again one day."""

    code = "unreadable_checkpoint"


_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Of what is not there, or is something else: that does not come back."""


def unreadable(error: OSError, checkpoint: str, name: str) -> DamagedCheckpointError:
    """What a file's reading failed by, as it is told of a checkpoint."""
    kind = DamagedCheckpointError if error.errno in _GONE else UnreadableCheckpointError
    return kind(f"{name} cannot be read: {cause_of(error)}", field=checkpoint, value=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A file as it was written."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint is of, and every file in it."""

    step: int
    """The next step to train: everything before it is in the state."""
    job: str
    """Digest of what the state fits to; another job's is refused."""
    epoch: int
    cursor: int
    seed: str
    """Of the sampler; text, for JSON's numbers are too narrow."""
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    """By path within the checkpoint."""

    @property
    def sampler(self) -> SamplerState:
        """Where the samples go on."""
        return SamplerState(epoch=self.epoch, cursor=self.cursor, seed=int(self.seed))

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(record.num_bytes for record in self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A manifest with its own checksum."""

    manifest: Manifest
    sha256: str
    about: Mapping[str, str] = field(default_factory=dict)
    """What `job` is the digest of, for a refusal to say what differs; nothing else depends on it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that is whole."""

    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """The next step to train."""
        return self.manifest.step

    def verify(self, moved: Callable[[], None] = lambda: None) -> None:
        """Require every file to be as it was written; `moved` is told of every piece that was read. O(bytes).

        Raises:
            DamagedCheckpointError: with the first that is not.
        """
        for name, record in sorted(self.manifest.files.items()):
            try:
                problem = _problem(self.folder / name, record, moved)
            except OSError as error:
                raise unreadable(error, self.folder.name, name) from error
            if problem is not None:
                raise DamagedCheckpointError(f"{name} {problem}", field=self.folder.name, value=name)

    @property
    def has_all_sizes(self) -> bool:
        """Whether every file is as long as it was written: what can be seen without reading any.

        Raises:
            DamagedCheckpointError: one is gone, or the disk does not give it (`UnreadableCheckpointError`).
        """
        try:
            return all(_size_problem(self.folder / name, record) is None for name, record in self.manifest.files.items())
        except OSError as error:
            raise unreadable(error, self.folder.name, MANIFEST) from error


def _problem(path: Path, record: FileRecord, moved: Callable[[], None]) -> str | None:
    return _size_problem(path, record) or (
        None if file_record(path, moved) == record else "does not have the checksum it was written with"
    )


def _size_problem(path: Path, record: FileRecord) -> str | None:
    size = path.stat().st_size
    return None if size == record.num_bytes else f"has {size} bytes where {record.num_bytes} were written"


def file_record(path: Path, moved: Callable[[], None] = lambda: None) -> FileRecord:
    """Size and checksum of a file; `moved` is told of every piece that was read."""
    read = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        piece = memoryview(bytearray(min(size, _PIECE_BYTES)))
        while count := file.readinto(piece):
            read.update(piece[:count])
            moved()
    return FileRecord(num_bytes=size, sha256=read.hexdigest())


def record_part(temporary: Path, part: str) -> dict[str, FileRecord]:
    """Records of a part's files, by path within the checkpoint; its names are on the disk afterwards."""
    records = {
        str(path.relative_to(temporary)): file_record(path) for path in sorted((temporary / part).rglob("*")) if path.is_file()
    }
    sync_folder(temporary / part)
    return records


def is_whole(text: bytes) -> bool:
    """Whether a manifest is as it was written, whatever it says."""
    try:
        sealed = json.loads(text)
        return bool(sealed["sha256"] == digest(sealed["manifest"]))
    except (ValueError, LookupError, TypeError):
        return False
