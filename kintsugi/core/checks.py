"""Invariants that the nouns state in their `__post_init__`."""

import math
from collections.abc import Collection, Sequence

from kintsugi.core.errors import InvalidInputError

LONGEST_SECONDS = 3600.0
"""Longest credible time of one layer and one micro-batch, or of one latency; more is a wrong unit."""
SLOWEST_SECONDS_PER_BYTE = 1e-2
"""A hundred bytes per second: a larger beta is a rate (bytes per second) in the place of its inverse."""


def seconds(field: str, value: float, *, at_most: float = math.inf) -> None:
    """Require a finite time of at least 0 s and at most `at_most` s."""
    non_negative(field, value)
    if value > at_most:
        raise InvalidInputError(
            f"{value:g} s is not credible (over {at_most:g} s); times are in seconds, not in milli- or microseconds",
            field=field,
            value=value,
        )


def non_negative(field: str, value: float) -> None:
    """Require a finite number of at least 0."""
    if not math.isfinite(value) or value < 0:
        raise InvalidInputError(f"must be a finite number of at least 0, not {value}", field=field, value=_shown(value))


def positive(field: str, value: float) -> None:
    """Require a finite number above 0."""
    if not math.isfinite(value) or value <= 0:
        raise InvalidInputError(f"must be a finite number above 0, not {value}", field=field, value=_shown(value))


def name(field: str, value: str) -> None:
    """Require a name of 1 to 200 printable characters."""
    if not 1 <= len(value) <= 200 or not value.isprintable():
        raise InvalidInputError("must be a name of 1 to 200 printable characters", field=field, value=value[:200])


def not_empty(field: str, value: Collection[object]) -> None:
    """Require at least one item."""
    if not value:
        raise InvalidInputError("must have at least one item", field=field, value=[])


def unique(field: str, values: Sequence[str]) -> None:
    """Require that no value stands twice."""
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            raise InvalidInputError(f"{value!r} stands there twice", field=f"{field}[{index}]", value=value)
        seen.add(value)


def beta(field: str, value: float) -> None:
    """Require a credible inverse bandwidth in seconds per byte."""
    non_negative(field, value)
    if value > SLOWEST_SECONDS_PER_BYTE:
        raise InvalidInputError(
            f"{value:g} seconds per byte is slower than 100 bytes/s; give the inverse of the bandwidth (1 / bytes per second)",
            field=field,
            value=value,
        )


def _shown(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
