"""What benchmarks that take minutes share: they tell how far they are, and leave nothing behind when they are stopped."""

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
