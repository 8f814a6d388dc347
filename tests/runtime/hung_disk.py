"""A disk that hangs: whoever opens a named pipe waits for its other end, for ever if need be."""

import os
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
        path.unlink()
        os.close(both)
