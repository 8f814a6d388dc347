"""One life at a time in the folder of a run: two would write over each other's checkpoints and journals, or mix their traces."""

import errno
import fcntl
import os
import socket
import threading
from collections import Counter
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kintsugi.core.errors import ConflictError, InvalidInputError, cause_of
from kintsugi.core.logs import get_logger
from kintsugi.runtime.disk import answer_of
from kintsugi.runtime.layout import LIFE_LOCK

_TAKEN = (errno.EACCES, errno.EAGAIN)
_MOST_BYTES = 400


class _OwnLocks:
    """What this process holds, by file: closing any descriptor of a file frees it, so all of them are closed with the last."""

    def __init__(self) -> None:
        self._num_holders: Counter[tuple[int, ...]] = Counter()
        self._left_open: dict[tuple[int, ...], list[int]] = {}
        self._guard = threading.Lock()

    def take(self, descriptor: int) -> None:
        """Lock an open file.

        Raises:
            OSError: another process holds it, or its file system has no locks.
        """
        with self._guard:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._num_holders[_file_of(descriptor)] += 1

    def close(self, descriptor: int) -> None:
        """Give up one holder's part in a file."""
        file = _file_of(descriptor)
        with self._guard:
            self._num_holders[file] -= 1
            descriptors = [*self._left_open.pop(file, ()), descriptor]
            if self._num_holders[file] > 0:
                self._left_open[file] = descriptors
                return
            del self._num_holders[file]
            for each in descriptors:
                os.close(each)


def _file_of(descriptor: int) -> tuple[int, ...]:
    status = os.fstat(descriptor)
    return os.getpid(), status.st_dev, status.st_ino  # a process that was forked holds nothing yet


_OWN = _OwnLocks()


class RunLock(AbstractContextManager["RunLock"]):
    """A file in the folder that one process at a time holds; the kernel frees it when that process ends, in whatever way.

    It is the process's own (POSIX): no child has it, not even one that is forked, and within one process nobody is shut out, as
    where a script that failed in a notebook is begun again.
    """

    def __init__(self, folder: Path, name: str = LIFE_LOCK, *, field: str = "run") -> None:
        """`field` is what the folder was named as."""
        self._folder = folder
        self._path = folder / name
        self._field = field
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def take(self) -> None:
        """Hold it from now on; the folder is made where it is missing. A file system without locks is told of, and used.

        Raises:
            ConflictError: another process holds it.
            InvalidInputError: the disk is full or broken, or something else has its name.
            UnavailableError: it hangs.
        """
        answer_of(self._folder, self._take, field=self._field)

    def _take(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            message = f"cannot be worked in: {self._path.name} cannot be opened ({cause_of(error)}); mend that, or name another"
            raise InvalidInputError(message, field=self._field, value=str(self._folder)) from error
        try:
            _OWN.take(descriptor)
        except OSError as error:
            holder = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace")
            os.close(descriptor)
            if error.errno in _TAKEN:
                raise self._refusal(holder) from error
            log = get_logger("kintsugi.runtime")
            log.warning(
                "nothing keeps a second life out of this folder: it has no locks", folder=str(self._folder), error=str(error)
            )
            return
        with suppress(OSError):  # a full disk does not stop the training
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Hold it no more."""
        if self._descriptor is not None:
            _OWN.close(self._descriptor)
            self._descriptor = None

    def _refusal(self, holder: str) -> ConflictError:
        message = f"{self._folder} is in use by {holder or 'another process'}: wait for its end or end it, or take another folder"
        return ConflictError(message, field=self._field, value=str(self._folder))
