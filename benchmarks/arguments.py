"""Types of options that a benchmark's command line refuses with the reason, rather than measure something else."""

import argparse
import math
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path


def at_least(least: int) -> Callable[[str], int]:
    """A whole number that is not below `least`."""

    def whole(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
        return value

    return whole


def above_zero(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0 and finite, not {text}")
    return value


def some_of(known: Collection[str]) -> Callable[[str], str]:
    """Names with commas between them, as given, all of which are known."""

    def names(text: str) -> str:
        strange = [name for name in text.split(",") if name not in known]
        if strange:
            raise argparse.ArgumentTypeError(f"knows {', '.join(known)}, not {', '.join(map(repr, strange))}")
        return text

    return names


def folder(text: str) -> Path:
    """A folder for results, which is made where it is not there; refused before anything is measured for it."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"is no folder that can be made and written to: {path} ({error.strerror})") from error
    return path
