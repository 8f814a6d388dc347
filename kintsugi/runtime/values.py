"""Plain values as JSON, with what JSON does not know: tuples, dictionaries with other keys than text, and tensors beside it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kintsugi.core.errors import InvalidInputError

_TUPLE, _DICTIONARY, _COUNTER, _TENSOR = "tuple", "dictionary", "counter", "tensor"


def to_plain(value: Any, field: str, tensors: list[Tensor] | None = None) -> Any:
    """`value` as data that JSON carries without loss.

    Args:
        value: of any depth.
        field: that an error names.
        tensors: takes the tensors in it, for which their numbers stand; without it there may be none.

    Raises:
        InvalidInputError: it holds what is no plain value.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor) and tensors is not None:
        tensors.append(value)
        return {_TENSOR: len(tensors) - 1}
    if isinstance(value, list):
        return [to_plain(one, field, tensors) for one in value]
    if isinstance(value, tuple):
        return {_TUPLE: [to_plain(one, field, tensors) for one in value]}
    if isinstance(value, dict):
        kind = _COUNTER if isinstance(value, Counter) else _DICTIONARY
        return {kind: [[to_plain(key, field, tensors), to_plain(one, field, tensors)] for key, one in value.items()]}
    raise InvalidInputError(
        f"holds a {type(value).__name__}, which cannot go on in another process; keep plain values and tensors",
        field=field,
    )


def from_plain(data: Any, tensors: Sequence[Tensor] = ()) -> Any:
    """The value that `to_plain` described."""
    if isinstance(data, list):
        return [from_plain(one, tensors) for one in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == _TENSOR:
        return tensors[content]
    if kind == _TUPLE:
        return tuple(from_plain(content, tensors))
    pairs = {from_plain(key, tensors): from_plain(value, tensors) for key, value in content}
    return Counter(pairs) if kind == _COUNTER else pairs
