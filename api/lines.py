"""Lines of the log on their way to standard error: whoever works waits for nobody who is to read them."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

import structlog

MOST_LINES = 10_000
"""That wait where standard error takes none, as a pipe does that is full; later ones are lost."""
LAST_SECONDS = 1.0
"""How long the end waits for those that are left."""


class Lines:
    """A thread's work: it writes what loggers of `structlog` are given, and says how many lines were lost once it can again."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[str | threading.Event] = SimpleQueue()  # which signal handlers may put into, too
        self._num_lost = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def end(self) -> None:
        """Write what was told so far, and no more; nobody waits long for that where nobody takes it."""
        written = threading.Event()
        self._waiting.put(written)
        written.wait(LAST_SECONDS)

    def tell(self, line: str) -> None:
        """Have a line written behind all that were told before."""
        if self._waiting.qsize() < MOST_LINES:
            self._waiting.put(line)
        else:
            self._num_lost += 1

    debug = info = warning = error = critical = exception = tell

    def _run(self) -> None:
        while True:
            line = self._waiting.get()
            if isinstance(line, threading.Event):
                line.set()
                return
            _write(line)
            if self._num_lost and self._waiting.qsize() < MOST_LINES:
                num_lost, self._num_lost = self._num_lost, 0
                structlog.get_logger("kintsugi.api").warning("lines were lost: standard error took none", lines=num_lost)


@contextmanager
def in_a_thread() -> Iterator[Lines]:
    """Meanwhile `structlog` gives its lines to a thread that writes them."""
    lines, before = Lines(), structlog.get_config()["logger_factory"]
    lines.start()
    structlog.configure(logger_factory=lambda *_: lines)
    try:
        yield lines
    finally:
        structlog.configure(logger_factory=before)
        lines.end()


def _write(line: str) -> None:
    """Not through Python's buffer: who is kept waiting holds it, and Python cannot end while somebody does."""
    with suppress(OSError, ValueError, AttributeError):
        left = f"{line}\n".encode(errors="backslashreplace")
        while left:
            left = left[os.write(sys.stderr.fileno(), left) :]
