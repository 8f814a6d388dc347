"""Plain values as JSON, with what JSON does not know: tuples, and dictionaries with other keys than text."""

from collections import Counter
from typing import Any

from kintsugi.core.errors import InvalidInputError

_TUPLE, _DICTIONARY, _COUNTER = "tuple", "dictionary", "counter"


def to_plain(value: Any, field: str) -> Any:
    """`value` as data that JSON carries without loss.

    Raises:
        InvalidInputError: it holds what is no plain value.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [to_plain(one, field) for one in value]
    if isinstance(value, tuple):
        return {_TUPLE: [to_plain(one, field) for one in value]}
    if isinstance(value, dict):
        kind = _COUNTER if isinstance(value, Counter) else _DICTIONARY
        return {kind: [[to_plain(key, field), to_plain(one, field)] for key, one in value.items()]}
    raise InvalidInputError(
        f"holds a {type(value).__name__}, which cannot be sent to a joining worker; keep plain values and tensors",
        field=field,
    )


def from_plain(data: Any) -> Any:
    """The value that `to_plain` described."""
    if isinstance(data, list):
        return [from_plain(one) for one in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == _TUPLE:
        return tuple(from_plain(content))
    pairs = {from_plain(key): from_plain(value) for key, value in content}
    return Counter(pairs) if kind == _COUNTER else pairs
