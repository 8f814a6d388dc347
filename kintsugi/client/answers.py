"""What was answered: by the service, or by somebody in its place, which is its absence."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import httpx2
import msgspec

from kintsugi.core import codec
from kintsugi.core.errors import PROBLEM_TYPE, InvalidInputError, KintsugiError, UnavailableError, error_from

T = TypeVar("T")


class AwayError(UnavailableError):
    """No answer, one that asks to come back later, or one that is none of the service's: worth another attempt."""

    pause_seconds: float | None = None
    """What the service asks for before the next attempt."""


def noun_of(kind: type[T], text: str | bytes) -> T:
    """What JSON of the service's says, without fields that a later service added; in a fifth of the time that our codec takes.

    Raises:
        InvalidInputError: it does not describe a `kind`; in our codec's words, which name the field.
    """
    wanted: Any = kind
    try:
        result: T = _decoder(wanted).decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return codec.loads(kind, text)
    return result


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def answer_of(kind: type[T]) -> Callable[[httpx2.Response], T]:
    """Reads what a response holds."""
    return lambda response: noun_of(kind, response.content)


def newer_of(kind: type[T]) -> Callable[[httpx2.Response], T | None]:
    """Reads what a response holds, or None from one that says that nothing newer came."""
    return lambda response: None if response.status_code == httpx2.codes.NO_CONTENT else noun_of(kind, response.content)


def require_answer(response: httpx2.Response, address: str) -> None:
    """Raise what the service refused with; its own errors, and what others say in its place, are its absence."""
    if not response.is_error:
        return
    refusal = refusal_of(response)
    if refusal is not None and response.is_client_error and response.status_code != httpx2.codes.TOO_MANY_REQUESTS:
        raise refusal
    why = "without a problem document of its own" if refusal is None else str(refusal)
    error = AwayError(f"the service at {address} answers {response.status_code}: {why}", field="url")
    asked = response.headers.get("Retry-After", "")
    error.pause_seconds = float(asked) if asked.isdecimal() else None
    raise error


def refusal_of(response: httpx2.Response) -> KintsugiError | None:
    """What the service refused with; None where it is not the service that speaks."""
    try:
        document = response.json()
        return error_from(document["error"]) if document["type"].startswith(PROBLEM_TYPE) else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def understood(read: Callable[[httpx2.Response], T], response: httpx2.Response, address: str) -> T:
    """What `read` makes of a response; what it does not understand (`InvalidInputError`) somebody else said."""
    try:
        return read(response)
    except InvalidInputError as error:
        message = f"the service at {address} answers {response.status_code} with what is no answer of its own: {error}"
        raise AwayError(message, field="url") from error
