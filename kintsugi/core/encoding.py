"""From nouns to JSON data: what a class takes is found out once, so that encoding a large document reflects on nothing."""

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

_EXACT = 2**53
"""Below this every whole number has a float of its own."""


def same(value: Any) -> Any:
    """`value` itself."""
    return value


def whole(number: float) -> float | int:
    """A whole number without its point, where that loses nothing."""
    return int(number) if number.is_integer() and -_EXACT < number < _EXACT else number


class Encoder:
    """Makes plain JSON data of values: dataclasses become objects, containers lists and objects, enumerations their values."""

    def __init__(self, of_float: Callable[[float], Any] = same) -> None:
        self._of_float = of_float
        self._by_type: dict[type, Callable[[Any], Any]] = dict.fromkeys((str, int, bool, type(None)), same)

    def __call__(self, value: Any) -> Any:
        """`value` as plain JSON data; what is none of these stays what it is."""
        kind = type(value)
        encode = self._by_type.get(kind)
        return encode(value) if encode else self._prepared(kind, value)(value)

    def _prepared(self, kind: type, value: Any) -> Callable[[Any], Any]:
        self._by_type[kind] = encode = self._encoder(kind, value)
        return encode

    def _encoder(self, kind: type, value: Any) -> Callable[[Any], Any]:
        if dataclasses.is_dataclass(kind):
            return self._object(tuple(field.name for field in dataclasses.fields(kind)))
        if isinstance(value, Enum):
            return _value_of
        if isinstance(value, Mapping):
            return lambda mapping: {str(key): self(item) for key, item in mapping.items()}
        if isinstance(value, list | tuple):
            return self._list
        return self._of_float if isinstance(value, float) else same

    def _object(self, names: tuple[str, ...]) -> Callable[[Any], dict[str, Any]]:
        by_type, encode_any = self._by_type, self.__call__

        def encode(value: Any) -> dict[str, Any]:
            result = {}
            for name in names:
                item = getattr(value, name)
                encode_item = by_type.get(type(item), encode_any)
                result[name] = item if encode_item is same else encode_item(item)
            return result

        return encode

    def _list(self, items: Any) -> list[Any]:
        by_type, encode_any = self._by_type, self.__call__
        return [item if (encode := by_type.get(type(item), encode_any)) is same else encode(item) for item in items]


def _value_of(member: Enum) -> Any:
    return member.value
