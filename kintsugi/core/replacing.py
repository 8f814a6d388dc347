"""Files that are the old or the new one, and nothing in between."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of a file once the block ends well; of what was begun nothing is left otherwise.

    It lies beside the file, hidden, under a name that nobody gives a file of their own.

    Raises:
        OSError: it cannot take its place; the old file stays.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        yield new
        new.replace(path)
    except BaseException:
        with suppress(OSError):  # why nothing was written is what counts
            new.unlink(missing_ok=True)
        raise
