"""Files that are the old or the new one, and nothing in between."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MOST_TRIES = 100
"""To claim what others put in place at the same moment."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of a file once the block ends well; of what was begun nothing is left otherwise.

    It lies beside the file, hidden, under a name that nobody gives a file of their own. One writer at a time has it, and it is on
    the disk before it gets the file's name.

    Raises:
        OSError: it cannot take its place, or somebody else is writing it; the old file stays.
    """
    new = path.with_name(f".{path.name}.new")
    descriptor = _claimed(new)
    try:
        yield new
        os.fsync(descriptor)
        new.replace(path)
    except BaseException:
        with suppress(OSError):  # why nothing was written is what counts
            new.unlink(missing_ok=True)
        raise
    finally:
        with suppress(OSError):  # nothing was written by it
            os.close(descriptor)


def _claimed(new: Path) -> int:
    """An open file of this name that no other writer has until it is closed; how its writer ends does not matter."""
    for _ in range(_MOST_TRIES):
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            opened = os.fstat(descriptor)
            if stat.S_ISREG(opened.st_mode):
                _lock(descriptor)
            if os.path.samestat(opened, new.stat()):
                return descriptor
        except FileNotFoundError:  # who had it has put it in place
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(errno.EAGAIN, "others are writing it", str(new))


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(errno.EAGAIN, "somebody else is writing it") from error
    except OSError:  # its file system has no locks
        return
