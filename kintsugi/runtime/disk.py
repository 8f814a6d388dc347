"""Files that are whole after anything, and how fast a folder is written and read."""

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from kintsugi.core.errors import InvalidInputError, cause_of
from kintsugi.core.logs import get_logger
from kintsugi.core.replacing import replacing
from kintsugi.runtime.clerk import Clerk, hung_named
from kintsugi.runtime.layout import JOURNALS

T = TypeVar("T")

_BYTES = 4 << 20
_ANSWER_SECONDS = 60.0
"""For a disk to say whether a folder is there, or what lies in it."""
_PRIVATE = 0o700
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)
"""What file systems say whose folders have no fsync, some of FUSE and CIFS among them."""


class NotSyncedError(OSError):
    """A file is there, and a crash of its host may undo that."""


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Bytes per second, through to the disk and back from the kernel's cache."""

    write_bytes_per_second: float
    read_bytes_per_second: float


_GUESSED = DiskRates(write_bytes_per_second=1e8, read_bytes_per_second=1e8)


def disk_rates(folder: Path) -> DiskRates:
    """Write and read one file of 4 MiB in `folder`, which is made where it is missing; where it is full a guess, with a warning."""
    try:
        return _measured(folder)
    except OSError as error:
        log = get_logger("kintsugi.runtime")
        log.warning("nothing can be written here now; how fast the disk is was guessed", folder=str(folder), reason=str(error))
        return _GUESSED


def _measured(folder: Path) -> DiskRates:
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder, buffering=0) as file:
        began = time.monotonic()
        file.write(bytes(_BYTES))
        os.fsync(file.fileno())
        written = time.monotonic()
        file.seek(0)
        file.read(_BYTES)
        read = time.monotonic()
    return DiskRates(_BYTES / max(written - began, 1e-9), _BYTES / max(read - written, 1e-9))


def answer_of(folder: Path, call: Callable[[], T], *, field: str = "run", seconds: float | None = None) -> T:
    """What comes of a call that needs the disk of `folder`, which is waited for a minute, or `seconds`.

    Where it answers no thread is left.

    Raises:
        UnavailableError: it hangs; `field` is what the folder was named as.
    """
    clerk = Clerk("folder")
    try:
        with hung_named(folder, "or name another one", field=field):
            return clerk.asked_alone(call, _ANSWER_SECONDS if seconds is None else seconds)
    finally:
        clerk.close(0.0)


def make_folder(folder: Path, field: str) -> None:
    """Make a folder that somebody named, and its parents, where they are missing.

    Raises:
        InvalidInputError: it cannot be made or written to; `field` is what it was named as.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        message = f"is no folder that can be made and written to ({cause_of(error)}); name another one"
        raise InvalidInputError(message, field=field, value=str(folder)) from error


def make_run_folder(folder: Path, field: str) -> None:
    """Make the folder of a run where it is missing, and require that for its journals to be writable where it is there.

    Raises:
        InvalidInputError: one of them cannot be made or written to; `field` is what the run's was named as.
        UnavailableError: its disk hangs.
    """

    def make() -> None:
        make_folder(folder, field)
        if os.path.lexists(folder / JOURNALS):  # else who holds the run makes it
            make_folder(folder / JOURNALS, field)

    answer_of(folder, make, field=field)


def make_private(folder: Path, field: str) -> None:
    """Make a folder that this user alone reads and writes, where all may make some; on a full or broken disk it is not there.

    Raises:
        InvalidInputError: it is somebody else's, or a link, by which what is written there would get anywhere; `field` is what
            leads there.
    """
    with suppress(OSError):
        folder.mkdir(mode=_PRIVATE)
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            message = "is no folder that this user made; remove it, or name another place for temporary files"
            raise InvalidInputError(message, field=field, value=str(folder))
        folder.chmod(_PRIVATE)
    except OSError:
        return


def require_folder(folder: Path, field: str) -> None:
    """Require a folder that somebody named to be there.

    Raises:
        InvalidInputError: it is not; `field` is what it was named as.
    """
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "there is no such folder"
        raise InvalidInputError(what, field=field, value=str(folder))


def write_synced(path: Path, text: str) -> None:
    """Write a file through to the disk; its name is not there yet (`sync_folder`)."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def append_whole(descriptor: int, content: bytes, end: int, *, is_synced: bool = False) -> None:
    """Write all of `content` behind the `end` bytes that an open file has, through to the disk if asked for, or nothing.

    Raises:
        OSError: the disk is full or broken. A disk that cuts nothing off either leaves a part there.
    """
    try:
        if os.pwrite(descriptor, content, end) < len(content):
            raise OSError("only a part could be written")
        if is_synced:
            os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, end)
        raise


def replace_whole(path: Path, text: str) -> None:
    """Write a file that is the old or the new one after anything: write, fsync, rename, fsync the folder (ECRL, section 4.3).

    Raises:
        NotSyncedError: the folder's fsync fails; the new one is there.
        OSError: the disk is full or broken, or somebody else is writing it; the old file stays.
    """
    with replacing(path) as new:
        new.write_text(text)
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise NotSyncedError(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where its file system does that for folders."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise
    finally:
        os.close(descriptor)
