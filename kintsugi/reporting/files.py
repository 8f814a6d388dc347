"""Files of a report: each of them is whole, or what it was before."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kintsugi.core.replacing import replacing


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file; one that is there already stays as it is where there is no room. A link is followed.

    Raises:
        OSError: it cannot be written; the error names it.
    """
    try:
        with replacing(path.resolve()) as new:
            new.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_rows(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file, its header first.

    Raises:
        OSError: it cannot be written; the error names it.
    """
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_whole(path, text.getvalue())
