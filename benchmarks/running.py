"""What benchmarks that take minutes share: they tell how far they are, and leave nothing behind when they are stopped."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from kintsugi.runtime.signals import ending_in_order


def tell(*words: object) -> None:
    """A line for those who watch, on standard error."""
    print(*words, sep=" | ", file=sys.stderr, flush=True)


class LiveTable(Table):
    """A table whose rows are told as they are measured, too: printed it is at the end alone, which a stopped run lacks."""

    def add_row(self, *cells: RenderableType | None, **style: Any) -> None:
        """Append a row, and tell it."""
        tell(*cells)
        super().add_row(*cells, **style)


def whole_lines(path: Path) -> list[str]:
    """Lines of a file that grows by lines, if it is there; a last one without an end was cut off by the death of its writer."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


def cut_torn_line(path: Path) -> None:
    """Take a last line without an end out of a file, if there is one, so that further lines can be appended."""
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


@contextmanager
def scratch(where: Path | None = None) -> Iterator[Path]:
    """A folder for the block, gone however that ends, by SIGTERM and SIGHUP too.

    Args:
        where: the folder that it is made in, on the disk that is to be measured; where temporary files lie by default.

    Raises:
        SystemExit: no folder can be made there.
    """
    with ending_in_order():
        try:
            made = tempfile.TemporaryDirectory(prefix="kintsugi-", dir=where)
        except OSError as error:
            place = "where temporary files lie; name a place by TMPDIR" if where is None else f"in {where}; start it elsewhere"
            raise SystemExit(f"no folder can be made {place} ({error.strerror})") from error
        with made as folder:
            yield Path(folder)
