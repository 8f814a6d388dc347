"""Files that a command writes: whole, or as they were before."""

import os
from pathlib import Path

from kintsugi.cli.errors import tell
from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.disk import NotSyncedError, replace_whole

_SYSTEMS_OWN = {Path("/dev"), Path("/proc")}
_MOST_LINKS = 40
"""As the kernel follows."""


def write_text(path: Path, text: str, field: str = "output") -> None:
    """Write what the option `field` names; a file that is there already, or that a link leads to, stays where the disk is full.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    try:
        target = _target(path)
        if _is_special(target):
            target.write_text(text)
        else:
            replace_whole(target, text)
    except NotSyncedError as error:
        tell(f"warning: {path} is written, and may be lost where its host crashes now: {error.strerror}")
    except OSError as error:
        raise InvalidInputError(f"cannot be written: {error.strerror}", field=field, value=str(path)) from error


def require_writable(path: Path) -> None:
    """Require that a file can be written there later, after work that should not be lost.

    Raises:
        InvalidInputError: its folder is not there, or it cannot be written.
    """
    if not path.parent.is_dir():
        raise InvalidInputError("cannot be written: its folder is not there", field="output", value=str(path))
    if path.is_dir():
        raise InvalidInputError("cannot be written: it is a folder; name a file in it", field="output", value=str(path))
    target = _target(path)
    if not os.access(target if _is_special(target) else target.parent, os.W_OK):
        raise InvalidInputError("cannot be written: you may not write there", field="output", value=str(path))


def _target(path: Path) -> Path:
    """What a link leads to; a link of the system's own, such as /dev/stdout, stands for what is open already, and stays."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink() or _SYSTEMS_OWN & set(path.absolute().parents):
            return path
        path = path.parent / path.readlink()
    return path  # a circle, which the kernel refuses


def _is_special(path: Path) -> bool:
    """Whether it is a link that stays, a device, a pipe or a folder: nothing that another file can take the place of."""
    return path.is_symlink() or (path.exists() and not path.is_file())
