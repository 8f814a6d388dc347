"""Frozen dataclasses to JSON and back, with errors that name the path of the field.

The same nouns go through FastAPI and pydantic unchanged; this codec serves everything that must not need them:
files, the client, the wire between agent and workers, and digests.
"""

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kintsugi.core.checks import LARGEST_INTEGER
from kintsugi.core.errors import InvalidInputError

_EXACT = 2**53
"""Below this every whole number has a float of its own."""

T = TypeVar("T")


def encode(value: Any) -> Any:
    """`value` as plain JSON data: dataclasses become objects, tuples lists, enumerations their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: encode(getattr(value, name)) for name in _field_names(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], data: Any, *, field: str = "") -> T:
    """Build a `kind` (dataclass, container or scalar type) from JSON data.

    Args:
        kind: the type to build; dataclass fields are decoded recursively and unknown fields are refused.
        data: parsed JSON.
        field: path of `data` in its document, the prefix of the field named in an error.

    Raises:
        InvalidInputError: with the path of the offending field, its value and what was expected.
    """
    result: T = _decode(kind, data, field)
    return result


def dumps(value: Any) -> str:
    """`value` as canonical JSON: sorted keys, no spaces, whole numbers without a point; equal values give equal text."""
    return json.dumps(_canonical(encode(value)), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(kind: type[T], text: str | bytes) -> T:
    """Parse JSON text into a `kind`.

    Raises:
        InvalidInputError: the text is no JSON or does not describe a `kind`.
    """
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"is not JSON: {error}", field="document") from error
    return decode(kind, data)


def load(kind: type[T], path: str | Path) -> T:
    """Read a `kind` from a JSON file.

    Raises:
        InvalidInputError: the file cannot be read or does not describe a `kind`.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror or error}", field="file", value=str(path)) from error
    return loads(kind, text)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def _canonical(data: Any) -> Any:
    if isinstance(data, float) and data.is_integer() and abs(data) < _EXACT:
        return int(data)
    if isinstance(data, dict):
        return {key: _canonical(item) for key, item in data.items()}
    if isinstance(data, list):
        return [_canonical(item) for item in data]
    return data


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return result


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _decode(kind: Any, data: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_optional(kind, data, path)
    if origin is tuple:
        return _decode_tuple(kind, data, path)
    if origin in (dict, Mapping):
        return _decode_mapping(kind, data, path)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, path)
    return _decode_scalar(kind, data, path)


def _decode_optional(kind: Any, data: Any, path: str) -> Any:
    choices = [choice for choice in typing.get_args(kind) if choice is not type(None)]
    if data is None and len(choices) < len(typing.get_args(kind)):
        return None
    return _decode(choices[0], data, path)


def _decode_tuple(kind: Any, data: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise _wrong(path, data, "a list")
    arguments = typing.get_args(kind)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_decode(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(data))
    if len(arguments) != len(data):
        raise _wrong(path, data, f"a list of {len(arguments)}")
    return tuple(
        _decode(argument, item, f"{path}[{index}]") for index, (argument, item) in enumerate(zip(arguments, data, strict=True))
    )


def _decode_mapping(kind: Any, data: Any, path: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _wrong(path, data, "an object")
    item_kind = typing.get_args(kind)[1]
    return {str(key): _decode(item_kind, item, _join(path, str(key))) for key, item in data.items()}


def _decode_dataclass(kind: Any, data: Any, path: str) -> Any:
    if isinstance(data, kind):
        return data
    if not isinstance(data, dict):
        raise _wrong(path, data, f"an object ({kind.__name__})")
    names = _field_names(kind)
    for name in data:
        if name not in names:
            raise InvalidInputError(
                f"is not a field of {kind.__name__}; known fields: {', '.join(names)}",
                field=_join(path, str(name)),
                value=_shown(data[name]),
            )
    hints = _hints(kind)
    values = {name: _decode(hints[name], data[name], _join(path, name)) for name in names if name in data}
    for field in dataclasses.fields(kind):
        if field.name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidInputError(f"is missing from {kind.__name__}", field=_join(path, field.name))
    try:
        return kind(**values)
    except InvalidInputError as error:
        raise InvalidInputError(error.message, field=_join(path, error.field), value=error.value) from None


def _decode_scalar(kind: Any, data: Any, path: str) -> Any:
    if kind is Any:
        return data
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        return _decode_float(data, path)
    if kind is int and isinstance(data, int | float) and not isinstance(data, bool):
        return _decode_integer(data, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise _wrong(path, data, "one of " + ", ".join(str(member.value) for member in kind)) from None
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise _wrong(path, data, {int: "an integer", float: "a number", str: "a text", bool: "true or false"}.get(kind, str(kind)))
    return data


def _decode_integer(data: float, path: str) -> int:
    if isinstance(data, float) and not data.is_integer():
        raise _wrong(path, data, "an integer")
    if abs(data) > LARGEST_INTEGER:
        raise _wrong(path, "a longer one", "an integer of at most 64 bits")
    return int(data)


def _decode_float(data: float, path: str) -> float:
    try:
        number = float(data)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _wrong(path, str(data)[:80], "a finite number")
    return number


def _wrong(path: str, value: Any, expected: str) -> InvalidInputError:
    shown = _shown(value)
    return InvalidInputError(
        f"must be {expected}, not {json.dumps(shown, default=str)[:80]}", field=path or "document", value=shown
    )


def _shown(value: Any) -> Any:
    """What an error carries of an offending value: a container by its type's name, a text by its beginning."""
    if isinstance(value, list | dict):
        return type(value).__name__
    return value[:200] if isinstance(value, str) else value
