"""How a command says on a terminal that it failed."""

import io
import os
import reprlib
import sys
from contextlib import suppress

import typer

from api.texts import escaped
from kintsugi.core.errors import KintsugiError

_LONGEST = 120
"""Characters of a value that are shown."""


def error_line(error: KintsugiError) -> str:
    """Field, message, and the value that the error is about, shortened in its middle where it is long.

    Names in files that others wrote may be in any of them: what would steer the terminal is written as Python does.
    """
    told = escaped(str(error))
    if error.value is None:
        return f"kintsugi: {told}"
    value = os.fspath(error.value) if isinstance(error.value, os.PathLike) else error.value
    short = reprlib.Repr()
    short.maxstring = short.maxother = _LONGEST
    return f"kintsugi: {told} (value: {short.repr(value)})"


def tell(line: str) -> None:
    """A line on the standard error; where that takes none, the exit status alone says what became of the command."""
    with suppress(OSError):
        typer.echo(line, err=True)


def open_output() -> None:
    """Have a standard output where none is open: one that takes nothing, for `print` drops what it has no file for.

    One that is open takes every text: characters that it has none for, such as halves of pairs from JSON, are escaped.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush_output() -> None:
    """Bring what was printed to where it goes.

    Raises:
        OSError: it takes no more.
    """
    sys.stdout.flush()


def is_output_broken() -> bool:
    """Whether the standard output takes no further line; what it did not take is dropped then."""
    try:
        print(flush=True)
    except OSError:
        with open(os.devnull, "w") as nowhere:  # a device
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return True
    return False
