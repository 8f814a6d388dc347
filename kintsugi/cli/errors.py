"""How a command says on a terminal that it failed."""

import os
import reprlib

from kintsugi.core.errors import KintsugiError

_LONGEST = 120
"""Characters of a value that are shown."""


def error_line(error: KintsugiError) -> str:
    """Field, message, and the value that the error is about, shortened in its middle where it is long."""
    if error.value is None:
        return f"kintsugi: {error}"
    value = os.fspath(error.value) if isinstance(error.value, os.PathLike) else error.value
    short = reprlib.Repr()
    short.maxstring = short.maxother = _LONGEST
    return f"kintsugi: {error} (value: {short.repr(value)})"
