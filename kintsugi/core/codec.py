"""Frozen dataclasses to JSON and back, with errors that name the path of the field.

The same nouns go through FastAPI and pydantic unchanged; this codec serves everything that must not need them:
files, the client, the wire between agent and workers, and digests.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from kintsugi.core.decoding import below, decoder
from kintsugi.core.encoding import Encoder, whole
from kintsugi.core.errors import InvalidInputError, cause_of

T = TypeVar("T")

_plain, _canonical = Encoder(), Encoder(whole)


def encode(value: Any) -> Any:
    """`value` as plain JSON data: dataclasses become objects, tuples lists, enumerations their values."""
    return _plain(value)


def decode(kind: type[T], data: Any, *, field: str = "") -> T:
    """Build a `kind` (dataclass, container or scalar type) from JSON data.

    Args:
        kind: the type to build; dataclass fields are decoded recursively and unknown fields are refused.
        data: parsed JSON.
        field: path of `data` in its document, the prefix of the field named in an error.

    Raises:
        InvalidInputError: with the path of the offending field, its value and what was expected.
    """
    wanted: Any = kind
    try:
        result: T = decoder(wanted)(data)
    except InvalidInputError as error:
        told = below(field, error)
        raise InvalidInputError(told.message, field=told.field or "document", value=told.value) from None
    return result


def dumps(value: Any) -> str:
    """`value` as canonical JSON: sorted keys, no spaces, whole numbers without a point; equal values give equal text."""
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(kind: type[T], text: str | bytes) -> T:
    """Parse JSON text into a `kind`.

    Raises:
        InvalidInputError: the text is no JSON or does not describe a `kind`.
    """
    if not text.strip():
        raise InvalidInputError("is not JSON: it is empty", field="document")
    try:
        data = parsed(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise InvalidInputError(f"is not JSON: {error}", field="document") from error
    return decode(kind, data)


def parsed(text: str | bytes, *, parse_constant: Callable[[str], float] | None = None) -> Any:
    """The data that JSON text has; `parse_constant` is what `json.loads` takes.

    Raises:
        ValueError: it is not JSON, a field stands twice in one object, or it is nested deeper, or has longer numbers, than is read.
    """
    try:
        return json.loads(text, parse_constant=parse_constant, object_pairs_hook=_object_of)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):
            raise ValueError(f"a number has more than {sys.get_int_max_str_digits():,} digits") from None
        raise


def load(kind: type[T], path: str | Path, *, named: str = "") -> T:
    """Read a `kind` from a JSON file.

    Args:
        kind: the type to build.
        path: of the file.
        named: what it was named by, such as an option, for errors to say.

    Raises:
        InvalidInputError: the file cannot be read or does not describe a `kind`; the message says which file it is.
    """
    with read_from(path, named):
        try:
            text = Path(path).read_bytes()
        except (OSError, ValueError) as error:  # of which the latter is how names with a zero byte are refused
            raise InvalidInputError(f"cannot be read: {cause_of(error)}", field="file", value=str(path)) from error
        return loads(kind, text)


@contextmanager
def read_from(path: str | Path, named: str = "") -> Iterator[None]:
    """Has errors about what a file holds say which file it is.

    Raises:
        InvalidInputError: what was raised inside, with the path in its message.
    """
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"{error.message} ({named or 'in'} {path})", field=error.field, value=error.value) from error


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"field {twice!r} stands twice in one object")
    return result
