"""The copy of a scheduler's log that a worker keeps which stands by for it."""

import hashlib
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError, KintsugiError, cause_of
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay_messages import OverlayEntry, OverlayLog
from kintsugi.runtime.clerk import Clerk
from kintsugi.runtime.disk import answer_of, append_whole

LOG_FILE = "overlay-log.jsonl"
_DISK_SECONDS = 5.0
"""For the disk to take lines."""


class LogCopy:
    """Lines of a scheduler's log in a file, on the disk before the next ones are asked for."""

    def __init__(self, path: Path) -> None:
        """Go on behind the lines that lie there; half a line at the end is cut off.

        Raises:
            InvalidInputError: what lies there is no such log.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._disk = Clerk("log-copy")
        self.last_number, self.last_term, written = _whole_lines(path)
        self._num_bytes, self._written = len(written), hashlib.sha256(written)
        with path.open("ab") as file:
            file.truncate(self._num_bytes)

    def add(self, log: OverlayLog) -> None:
        """Keep further lines; where somebody took the file away or cut it off, none, for they are asked for anew from the first.

        Raises:
            OSError: the disk is full or broken; none of them is kept. Or it hangs: then they are kept once it answers.
        """
        self._disk.asked_once(partial(self._add, log), _DISK_SECONDS)

    def clear(self) -> None:
        """Begin anew: the log of another scheduler may differ from this one's in its last lines.

        Raises:
            OSError: the disk is full or broken, or hangs.
        """
        self._disk.asked_once(self._clear, _DISK_SECONDS)

    def require_whole(self) -> None:
        """Make sure that the lines are as they were written, or begin anew: damaged ones no service would start on.

        Without them a new scheduler goes on from the newest overlay that a voter knows.

        Raises:
            OSError: the disk is full or broken, or hangs.
        """
        self._disk.asked_once(self._require_whole, _DISK_SECONDS)

    # In the clerk's thread.

    def _add(self, log: OverlayLog) -> None:
        new = [entry for entry in log.entries if entry.number > self.last_number]
        if not new:
            return
        text = "".join(f"{codec.dumps(entry)}\n" for entry in new).encode()
        if not self._has_its_bytes():
            self._begin_anew()
            return
        with self.path.open("r+b", buffering=0) as file:
            file.truncate(self._num_bytes)  # a disk that was full may have kept part of a line
            append_whole(file.fileno(), text, self._num_bytes, is_synced=True)
        self._num_bytes += len(text)
        self._written.update(text)
        self.last_number, self.last_term = new[-1].number, new[-1].term

    def _clear(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w") as file:
            os.fsync(file.fileno())
        self.last_number = self.last_term = self._num_bytes = 0
        self._written = hashlib.sha256()

    def _require_whole(self) -> None:
        if not self._has_its_bytes() or self._read_digest() != self._written.digest():
            self._begin_anew()
        os.truncate(self.path, self._num_bytes)

    def _has_its_bytes(self) -> bool:
        with suppress(FileNotFoundError):
            return self.path.stat().st_size >= self._num_bytes
        return False

    def _read_digest(self) -> bytes:
        with self.path.open("rb") as file:
            return hashlib.sha256(file.read(self._num_bytes)).digest()

    def _begin_anew(self) -> None:
        log = get_logger("kintsugi.overlay")
        log.warning("the copy of the scheduler's log is damaged; it is begun anew", file=str(self.path), lines=self.last_number)
        self._clear()


def require_log(path: Path) -> None:
    """Require that what lies at `path`, if anything does, is a copy of a log; it is left as it is, for somebody may write there.

    Raises:
        InvalidInputError: it is none, or its disk does not give it.
        UnavailableError: the disk hangs.
    """
    answer_of(path.parent, partial(_require_log, path), field="standby.folder")


def _require_log(path: Path) -> None:
    try:
        _whole_lines(path)
    except (KintsugiError, OSError) as error:
        message = f"{path} is no copy of a scheduler's log ({cause_of(error)}); remove it, or name another folder"
        raise InvalidInputError(message, field="standby.folder", value=str(path.parent)) from error


def _whole_lines(path: Path) -> tuple[int, int, bytes]:
    """Number and term of the last whole line, and what is written up to its end."""
    number = term = num_bytes = 0
    written = path.read_bytes() if path.exists() else b""
    for line in written.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        num_bytes += len(line)
        entry = codec.loads(OverlayEntry, line)
        number, term = entry.number, entry.term
    return number, term, written[:num_bytes]
