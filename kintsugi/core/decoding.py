"""From JSON data to nouns: one decoder per type, put together once, so that decoding a large document reflects on nothing.

A decoder knows nothing of its place: an error is told the path of what it concerns on its way out of the document.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any

from kintsugi.core.checks import LARGEST_INTEGER
from kintsugi.core.errors import InvalidInputError

Decoder = Callable[[Any], Any]
"""Raises InvalidInputError, with the path of the field below what it was given."""

HIDDEN = "hidden"
"""Key in the metadata of a field that no document needs to give: errors do not name it among those that are known."""


@cache
def decoder(kind: Any) -> Decoder:
    """What builds a `kind` (dataclass, container or scalar type) from JSON data."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _optional(kind)
    if origin is tuple:
        return _tuple(kind)
    if origin in (dict, Mapping):
        return _mapping(kind)
    if dataclasses.is_dataclass(kind):
        return _Dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enumeration(kind)
    if kind is Any:
        return lambda data: data
    return {int: _integer, float: _float}.get(kind) or _scalar(kind)


def join(path: str, rest: str) -> str:
    """The path of what `rest` names below `path`."""
    separator = "." if path and rest and not rest.startswith("[") else ""
    return f"{path}{separator}{rest}"


def below(path: str, error: InvalidInputError) -> InvalidInputError:
    """`error` as it is told one level further out."""
    return InvalidInputError(error.message, field=join(path, error.field), value=error.value)


class _Dataclass:
    """Decodes one dataclass; its fields' decoders are looked up at the first use, for a class may contain itself."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        fields = dataclasses.fields(kind)
        self._names = tuple(field.name for field in fields)
        self._known = frozenset(self._names)
        self._needed = frozenset(
            field.name for field in fields if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        self._decoders: tuple[tuple[str, Decoder], ...] = ()

    def __call__(self, data: Any) -> Any:
        if type(data) is not dict:
            if isinstance(data, self._kind):
                return data
            raise wrong(data, f"an object ({self._kind.__name__})")
        if not data.keys() <= self._known:
            raise self._unknown(data)
        name, values = "", {}
        try:
            for name, decode in self._decoders or self._prepare():
                if name in data:
                    values[name] = decode(data[name])
        except InvalidInputError as error:
            raise below(name, error) from None
        if not values.keys() >= self._needed:
            missing = next(name for name in self._names if name in self._needed and name not in values)
            raise InvalidInputError(f"is missing from {self._kind.__name__}", field=missing)
        return self._kind(**values)

    def _prepare(self) -> tuple[tuple[str, Decoder], ...]:
        hints = typing.get_type_hints(self._kind)
        self._decoders = tuple((name, decoder(hints[name])) for name in self._names)
        return self._decoders

    def _unknown(self, data: dict[Any, Any]) -> InvalidInputError:
        name = next(name for name in data if name not in self._known)
        known = ", ".join(field.name for field in dataclasses.fields(self._kind) if HIDDEN not in field.metadata)
        message = f"is not a field of {self._kind.__name__}; known fields: {known}"
        return InvalidInputError(message, field=str(name), value=shown(data[name]))


def _optional(kind: Any) -> Decoder:
    choices = [choice for choice in typing.get_args(kind) if choice is not type(None)]
    decode = decoder(choices[0])
    if len(choices) == len(typing.get_args(kind)):
        return decode
    return lambda data: None if data is None else decode(data)


def _tuple(kind: Any) -> Decoder:
    arguments = typing.get_args(kind)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _sequence(decoder(arguments[0]))
    return _row(tuple(decoder(argument) for argument in arguments))


def _sequence(decode: Decoder) -> Decoder:
    def sequence(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list | tuple):
            raise wrong(data, "a list")
        result: list[Any] = []
        try:
            for item in data:
                result.append(decode(item))  # noqa: PERF401 (an error must know how far it went)
        except InvalidInputError as error:
            raise below(f"[{len(result)}]", error) from None
        return tuple(result)

    return sequence


def _row(decoders: tuple[Decoder, ...]) -> Decoder:
    def row(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list | tuple):
            raise wrong(data, "a list")
        if len(data) != len(decoders):
            raise InvalidInputError(f"must be a list of {len(decoders)}, not of {len(data)}", value=len(data))
        result: list[Any] = []
        try:
            for decode, item in zip(decoders, data, strict=True):
                result.append(decode(item))
        except InvalidInputError as error:
            raise below(f"[{len(result)}]", error) from None
        return tuple(result)

    return row


def _mapping(kind: Any) -> Decoder:
    of_key, of_item = typing.get_args(kind)
    decode, read_key = decoder(of_item), _number_of if of_key is int else str

    def mapping(data: Any) -> dict[Any, Any]:
        if not isinstance(data, dict):
            raise wrong(data, "an object")
        key, result = "", {}
        try:
            for key, item in data.items():
                result[read_key(key)] = decode(item)
        except InvalidInputError as error:
            raise below(str(key), error) from None
        return result

    return mapping


def _number_of(key: Any) -> int:
    """The whole number that stands as a name in JSON, where names are texts."""
    try:
        return int(key)
    except ValueError:
        raise wrong(key, "a whole number as name") from None


def _enumeration(kind: type[Enum]) -> Decoder:
    members = {member.value: member for member in kind}

    def enumeration(data: Any) -> Any:
        member = members.get(data) if isinstance(data, str) else None
        if member is not None:
            return member
        try:
            return kind(data)
        except ValueError:
            raise wrong(data, "one of " + ", ".join(str(member.value) for member in kind)) from None

    return enumeration


def _scalar(kind: type) -> Decoder:
    expected = {str: "a text", bool: "true or false"}.get(kind, str(kind))

    def scalar(data: Any) -> Any:
        if not isinstance(data, kind):
            raise wrong(data, expected)
        return data

    return scalar


def _integer(data: Any) -> int:
    if type(data) is int and -LARGEST_INTEGER <= data <= LARGEST_INTEGER:
        return data
    if not isinstance(data, int | float) or isinstance(data, bool) or (isinstance(data, float) and not data.is_integer()):
        raise wrong(data, "an integer")
    if not -LARGEST_INTEGER <= data <= LARGEST_INTEGER:
        raise wrong("a longer one", "an integer of at most 64 bits")
    return int(data)


def _float(data: Any) -> float:
    if type(data) is float and -math.inf < data < math.inf:
        return data
    if not isinstance(data, int | float) or isinstance(data, bool):
        raise wrong(data, "a number")
    try:
        number = float(data)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise wrong(str(data)[:80], "a finite number")
    return number


def wrong(value: Any, expected: str) -> InvalidInputError:
    """The error for a value that is not what is expected in its place."""
    told = shown(value)
    if isinstance(value, list | dict):
        found = "a list" if isinstance(value, list) else "an object"
    else:
        found = told if isinstance(value, float) else json.dumps(told, default=str)[:80]
    return InvalidInputError(f"must be {expected}, not {found}", value=told)


def shown(value: Any) -> Any:
    """What an error carries of an offending value: a container by what JSON calls it, a text by its beginning; JSON can say it."""
    if isinstance(value, list | dict):
        return "list" if isinstance(value, list) else "object"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value[:200] if isinstance(value, str) else value
