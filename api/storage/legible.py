"""What is stored made nouns again: what is not understood another version of the program stored, and no caller is to blame."""

import zlib
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from kintsugi.core import codec
from kintsugi.core.errors import UnavailableError

P = ParamSpec("P")
T = TypeVar("T")


class IllegibleError(UnavailableError):
    """The database answers with what this version of the program does not understand: asking it again does not help."""


def legible(read: Callable[P, T]) -> Callable[P, T]:
    """`read`, which decodes what is stored; it raises `IllegibleError` where that is not understood."""

    @wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (LookupError, ValueError, TypeError, zlib.error) as error:
            message = f"holds what this version does not understand; all processes on a database must be of one version ({error})"
            raise IllegibleError(message, field="stored") from error

    return reading


@legible
def loaded(kind: type[T], text: str) -> T:
    """A noun from its stored JSON."""
    return codec.loads(kind, text)
