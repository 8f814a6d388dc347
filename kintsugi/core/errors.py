"""The error tree of Kintsugi; every error names the field, the value and the way out.

KintsugiError
├── InvalidInputError            the caller's data is wrong (also a ValueError)
├── NotFoundError                no such job, worker, plan or generation
├── ConflictError                well-formed, but refused in the present state
│   ├── StaleGenerationError     speaks of a generation that is over; carries the current one
│   ├── StaleIncarnationError    speaks for a process life that is over; carries the last known one of each worker
│   └── StaleTermError           the scheduler that was asked is deposed: another one took over; carries its term
├── InfeasibleError              no plan exists: memory, too few workers, contradictory ranges
│   ├── StateLostError           no survivor holds some layer
│   └── PlanningFailedError      whether there is one nobody knows: the search kills its process, or fails by a mistake of ours
├── ReconfigurationError         the survivors could not move to the decided plan
├── AccessError                  the service does not do that for whoever asks
│   ├── UnauthenticatedError     no usable token came with the request
│   └── ForbiddenError           the token does not allow it
├── UnavailableError             the service or a worker did not answer in time
│   ├── TooManyRequestsError     the caller asks too often; carries how long to wait
│   └── CommunicationError       a peer or a link broke in the middle of a message
└── WorkerError                  the trainer's own code raised in a worker
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar, Self

PROBLEM_TYPE = "urn:kintsugi:problem:"
"""What the types of the service's problem documents begin with."""


class KintsugiError(Exception):
    """Base of every error that Kintsugi raises on purpose."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, field: str = "", value: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = value

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message

    def as_dict(self) -> dict[str, Any]:
        """The error as the contract's JSON object: code, field, value, message."""
        return {"code": self.code, "field": self.field, "value": self.value, "message": self.message}

    @classmethod
    def _rebuilt(cls, document: Mapping[str, Any]) -> Self:
        return cls(str(document.get("message", "")), field=str(document.get("field", "")), value=document.get("value"))


class InvalidInputError(KintsugiError, ValueError):
    """The caller's data is wrong: `field` says where, `value` what, the message how to mend it."""

    code = "invalid_input"


class NotFoundError(KintsugiError):
    """There is no such job, worker, plan or generation."""

    code = "not_found"


class ConflictError(KintsugiError):
    """A well-formed request that the present state refuses."""

    code = "conflict"


class StaleGenerationError(ConflictError):
    """The message speaks of a generation that is over; `current_generation` is the one to go on from."""

    code = "stale_generation"

    def __init__(self, message: str, *, current_generation: int, field: str = "generation", value: Any = None) -> None:
        super().__init__(message, field=field, value=value)
        self.current_generation = current_generation

    def as_dict(self) -> dict[str, Any]:
        """The contract's object with `current_generation` added."""
        return {**super().as_dict(), "current_generation": self.current_generation}

    @classmethod
    def _rebuilt(cls, document: Mapping[str, Any]) -> Self:
        current = int(document["current_generation"])
        return cls(str(document["message"]), current_generation=current, value=document.get("value"))


class StaleIncarnationError(ConflictError):
    """Speaks for workers whose process life is over: `incarnations` holds the last known one of each, to begin above."""

    code = "stale_incarnation"

    def __init__(self, message: str, *, incarnations: Mapping[str, int]) -> None:
        super().__init__(message, field="workers", value=list(incarnations))
        self.incarnations = dict(incarnations)

    def as_dict(self) -> dict[str, Any]:
        """The contract's object with `incarnations` added."""
        return {**super().as_dict(), "incarnations": self.incarnations}

    @classmethod
    def _rebuilt(cls, document: Mapping[str, Any]) -> Self:
        incarnations = {str(worker): int(incarnation) for worker, incarnation in document["incarnations"].items()}
        return cls(str(document["message"]), incarnations=incarnations)


class StaleTermError(ConflictError):
    """Whoever asks has heard of a later scheduler: this one decides nothing any more; `current_term` is that one's term."""

    code = "stale_term"

    def __init__(self, message: str, *, current_term: int, field: str = "term", value: Any = None) -> None:
        super().__init__(message, field=field, value=value)
        self.current_term = current_term

    def as_dict(self) -> dict[str, Any]:
        """The contract's object with `current_term` added."""
        return {**super().as_dict(), "current_term": self.current_term}

    @classmethod
    def _rebuilt(cls, document: Mapping[str, Any]) -> Self:
        return cls(str(document["message"]), current_term=int(document["current_term"]), value=document.get("value"))


class InfeasibleError(KintsugiError):
    """No plan satisfies the request; the message says what is missing and how much."""

    code = "infeasible"


class StateLostError(InfeasibleError):
    """No survivor holds the layers in `layers` (indices)."""

    code = "state_lost"

    def __init__(self, message: str, *, layers: tuple[int, ...]) -> None:
        super().__init__(message, field="layers", value=list(layers))
        self.layers = layers

    @classmethod
    def _rebuilt(cls, document: Mapping[str, Any]) -> Self:
        return cls(str(document["message"]), layers=tuple(int(layer) for layer in document["value"]))


class PlanningFailedError(InfeasibleError):
    """The search for a plan was tried again and came to no end; it says nothing of whether there is one."""

    code = "planning_failed"


class ReconfigurationError(KintsugiError):
    """The survivors could not move to the decided plan."""

    code = "reconfiguration_failed"


class UnavailableError(KintsugiError):
    """The service or a worker did not answer in time."""

    code = "unavailable"


class AccessError(KintsugiError):
    """The service does not do that for whoever asks."""

    code = "access_denied"


class UnauthenticatedError(AccessError):
    """No usable token came with the request."""

    code = "unauthenticated"


class ForbiddenError(AccessError):
    """The token does not allow what was asked."""

    code = "forbidden"


class TooManyRequestsError(UnavailableError):
    """The caller asks too often; `retry_seconds` is how long to wait."""

    code = "too_many_requests"

    def __init__(self, message: str, *, field: str = "", value: Any = None, retry_seconds: int = 1) -> None:
        super().__init__(message, field=field, value=value)
        self.retry_seconds = retry_seconds

    def as_dict(self) -> dict[str, Any]:
        """The contract's object with `retry_seconds` added."""
        return {**super().as_dict(), "retry_seconds": self.retry_seconds}

    @classmethod
    def _rebuilt(cls, document: Mapping[str, Any]) -> Self:
        seconds = int(document.get("retry_seconds", 1))
        return cls(
            str(document.get("message", "")),
            field=str(document.get("field", "")),
            value=document.get("value"),
            retry_seconds=seconds,
        )


@contextmanager
def told_as(names: Mapping[str, str]) -> Iterator[None]:
    """Has errors name a field as whoever is told of them knows it: `names` gives it by the field that was refused."""
    try:
        yield
    except KintsugiError as error:
        error.field = names.get(error.field, error.field)
        raise


def cause_of(error: Exception) -> str:
    """What the system says of an error, without its number and the file, which messages name in their own way."""
    return getattr(error, "strerror", None) or str(error)


def some(names: Collection[str], most: int = 8) -> str:
    """The first of these names, and how many others there are, for messages that say what exists."""
    left = len(names) - most
    return ", ".join(islice(names, most)) + (f" and {left:,} more" if left > 0 else "")


def error_from(document: Mapping[str, Any]) -> KintsugiError:
    """The error that `as_dict` described, of the same class; an unknown code gives the tree's root."""
    kinds: dict[str, type[KintsugiError]] = {}
    for kind in _tree(KintsugiError):
        kinds.setdefault(kind.code, kind)  # a child without a code of its own is told as its parent
    return kinds.get(str(document.get("code")), KintsugiError)._rebuilt(document)


def _tree(kind: type[KintsugiError]) -> Iterator[type[KintsugiError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


class CommunicationError(UnavailableError):
    """A peer or a link broke, or the message was called off, while a worker waited for it."""

    code = "communication_failed"


class WorkerError(KintsugiError):
    """The trainer's own code raised in a worker; the message carries its traceback."""

    code = "worker_failed"
