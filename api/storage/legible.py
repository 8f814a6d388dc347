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


class ContradictoryError(IllegibleError):
    """What the database holds of one job contradicts itself: parts of it are gone, or of another time than the others."""

    code = "storage_contradictory"


def contradictory(job: str, what: str) -> ContradictoryError:
    """The error of a job of which `what` is stored beside what cannot be beside it."""
    way_out = f"kintsugi replay --job {job} tells where; stop the service and restore a backup"
    return ContradictoryError(f"what is stored of it contradicts itself: {what}; {way_out}", field="job", value=job)


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
