"""A disk that hangs: whoever opens a named pipe waits for its other end, for ever if need be."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hung(path: Path) -> Iterator[None]:
    """Whoever writes the file, or reads it, waits in the block; after it they can do neither."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        both = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        path.unlink(missing_ok=True)  # whoever was held up may have done so
        os.close(both)


def await_threads(name: str) -> None:
    """Until threads of this name have ended, which the disk held up."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(120.0)
            assert not thread.is_alive()
