"""Invariants that the nouns state in their `__post_init__`."""

import math
import re
from collections.abc import Callable, Collection, Hashable, Sequence
from datetime import datetime
from enum import StrEnum
from numbers import Integral
from typing import TypeVar
from urllib.parse import urlsplit

from kintsugi.core.errors import InvalidInputError

E = TypeVar("E", bound=StrEnum)

LONGEST_SECONDS = 3600.0
"""Longest credible time of one layer and one micro-batch; more is a wrong unit."""
LONGEST_LATENCY_SECONDS = 10.0
"""Longest credible latency of a link; more is a number of microseconds."""
LONGEST_RECOVERY_SECONDS = 86_400.0
"""A day: longest credible time of one phase of a recovery."""
SLOWEST_SECONDS_PER_BYTE = 1e-2
"""A hundred bytes per second: a larger beta is a rate (bytes per second) in the place of its inverse."""
SMALLEST_DEVICE_BYTES = 1_000_000
"""A device memory below this is a number of gigabytes in the place of bytes."""
MOST_MICROBATCHES, MOST_PER_WORKER, MOST_ANYWHERE = 65_536, 64, 2**20
"""Most micro-batches of a step, at least and by the number of workers, and of any job; more are a number of samples or tokens,
and nobody has the time to plan for them."""
LEAST_SPEED_RATIO, MOST_SPEED_RATIO = 1e-6, 1e6
"""A worker's credible speed beside that of the profile's device."""
SHORTEST_MEAN_SECONDS = 1.0
"""Shortest credible mean time between failures; less is a number of hours or days, or a rate in its place."""
SHORTEST_HEARTBEAT_SECONDS = 0.1
"""Shortest time in which heartbeats, three of them, can be told; a busy machine is silent for longer."""
LONGEST_NAME, LONGEST_ADDRESS, LONGEST_TEXT = 200, 300, 8_192
"""Characters."""
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PATH_SEGMENTS = (".", "..")
"""Which are left out of a URL before it is asked for."""
HIGHEST_PORT = 2**16 - 1
LARGEST_INTEGER = 2**63 - 1
"""What databases and other languages can hold."""


def seconds(field: str, value: float, *, at_most: float = math.inf) -> None:
    """Require a finite time of at least 0 s and at most `at_most` s."""
    non_negative(field, value)
    if value > at_most:
        raise InvalidInputError(
            f"{value:g} s is not credible (over {at_most:g} s); times are in seconds, not in milli- or microseconds",
            field=field,
            value=value,
        )


def mean_time(field: str, value: float) -> None:
    """Require a credible mean time between failures in seconds."""
    _at_least(field, value, SHORTEST_MEAN_SECONDS, "a mean time between failures is in seconds, and no rate")


def heartbeat_timeout(field: str, value: float) -> None:
    """Require a credible time in seconds after which who tells nothing counts as failed."""
    _at_least(field, value, SHORTEST_HEARTBEAT_SECONDS, "nobody tells three heartbeats in so short a time")


def _at_least(field: str, value: float, least: float, hint: str) -> None:
    positive(field, value)
    if value < least:
        raise InvalidInputError(f"{value:g} s is not credible (below {least:g} s); {hint}", field=field, value=value)


def non_negative(field: str, value: float) -> None:
    """Require a finite number of at least 0."""
    if not _is_finite(value) or value < 0:
        raise InvalidInputError(f"must be a finite number of at least 0, not {_worded(value)}", field=field, value=_shown(value))


def positive(field: str, value: float) -> None:
    """Require a finite number above 0."""
    if not _is_finite(value) or value <= 0:
        raise InvalidInputError(f"must be a finite number above 0, not {_worded(value)}", field=field, value=_shown(value))


def count(field: str, value: int) -> None:
    """Require a whole number above 0."""
    if not _is_whole(value) or value < 1:
        raise InvalidInputError(f"must be a whole number above 0, not {_worded(value)}", field=field, value=_shown(value))


def whole(field: str, value: int) -> None:
    """Require a whole number; true and false are none."""
    if not _is_whole(value):
        raise InvalidInputError(f"must be a whole number, not {_worded(value)}", field=field, value=_shown(value))


def port(field: str, value: int) -> None:
    """Require a port to listen at; 0 stands for one that is free."""
    if not _is_whole(value) or not 0 <= value <= HIGHEST_PORT:
        message = f"must be a whole number from 0 to {HIGHEST_PORT}, not {_worded(value)}"
        raise InvalidInputError(message, field=field, value=_shown(value))


def address(field: str, value: str) -> None:
    """Require `host:port` at which others can call."""
    message = f"must be host:port, with a port from 1 to {HIGHEST_PORT}, as the others call it"
    if not isinstance(value, str):
        raise InvalidInputError(message, field=field, value=_repr_of(value))
    host, _, number = value.rpartition(":")
    is_port = number.isascii() and number.isdigit() and len(number) <= 5 and 1 <= int(number) <= HIGHEST_PORT
    if not host or not is_port or not value.isprintable() or len(value) > LONGEST_ADDRESS:
        raise InvalidInputError(message, field=field, value=value[:200])


def service_url(field: str, value: str) -> None:
    """Require an http or https URL at which a service can answer."""
    message = "must be the URL of a service, such as http://127.0.0.1:8000"
    if not isinstance(value, str):
        raise InvalidInputError(message, field=field, value=_repr_of(value))
    try:
        parts = urlsplit(value)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an address, or a port that cannot be
        is_one = False
    if not is_one or not value.isprintable():
        raise InvalidInputError(message, field=field, value=value[:200])


def name(field: str, value: str) -> None:
    """Require a name of 1 to 200 printable characters."""
    _text(field, value)
    if not 1 <= len(value) <= LONGEST_NAME or not value.isprintable():
        raise InvalidInputError(f"must be a name of 1 to {LONGEST_NAME} printable characters", field=field, value=value[:200])


def path_segment(field: str, value: str) -> None:
    """Require a name that can stand for itself between two slashes of a URL."""
    name(field, value)
    if "/" in value or value in _PATH_SEGMENTS:
        message = "is no name that a URL can hold; choose one without slashes that is no . or .."
        raise InvalidInputError(message, field=field, value=value)


def identifier(field: str, value: str) -> None:
    """Require an id of 1 to 100 letters, digits, dots, dashes and underscores, as who creates something may give it."""
    if not _IDENTIFIER.fullmatch(value):
        message = "must be 1 to 100 letters, digits, dots, dashes and underscores, a letter or digit first"
        raise InvalidInputError(message, field=field, value=value[:200])


def instance(field: str, value: object, kind: type, *, hint: str = "") -> None:
    """Require an object of a class; `hint` says how it is given where another is given easily."""
    if not isinstance(value, kind):
        way_out = f": {hint}" if hint else ""
        raise InvalidInputError(f"must be of {kind.__name__}, not {_repr_of(value)}{way_out}", field=field, value=_repr_of(value))


def flag(field: str, value: bool) -> None:
    """Require true or false: everything else is one of them to Python, a text of any words is true."""
    if not isinstance(value, bool):
        raise InvalidInputError(f"must be True or False, not {_repr_of(value)}", field=field, value=_repr_of(value))


def not_empty(field: str, value: Collection[object]) -> None:
    """Require at least one item."""
    if not value:
        raise InvalidInputError("must have at least one item", field=field, value=[])


def choice(kind: type[E], field: str, value: str, *, noun: str = "", without: Collection[E] = ()) -> E:
    """The member of an enumeration that a text names; `noun` says what it is, where the field does not.

    Who named none is told of the known ones, `without` those that would be refused, too.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(member.value for member in kind if member not in without)
        raise InvalidInputError(f"is no {noun or field}; known ones: {known}", field=field, value=value) from None


def settle_choice(of: object, kind: type[E], field: str) -> None:
    """Have the field of a frozen dataclass hold a member of an enumeration where it was given its text."""
    object.__setattr__(of, field, choice(kind, field, getattr(of, field)))


def settle_text(of: object, field: str) -> None:
    """Have the field of a frozen dataclass hold a text for people without its middle where it is longer than anybody reads.

    A report with a whole log in it is taken like any other one: what it reports counts. Its first lines and its last say most.

    Raises:
        InvalidInputError: it is no text.
    """
    _text(field, value := getattr(of, field))
    if len(value) > LONGEST_TEXT:
        mark = f" [... {len(value):,} characters in all ...] "
        begin = (LONGEST_TEXT - len(mark)) // 2
        object.__setattr__(of, field, value[:begin] + mark + value[begin + len(mark) - LONGEST_TEXT :])


def storable(field: str, value: str) -> None:
    """Require a text that every database can store: without NUL and lone surrogates, which are no characters."""
    if _UNSTORABLE.search(value):
        raise InvalidInputError("holds NUL or half a surrogate pair, which are no characters", field=field, value=value[:200])


def unique(field: str, values: Sequence[str]) -> None:
    """Require that no value of a list stands twice."""
    distinct(values, lambda index: f"{field}[{index}]")


def distinct(values: Sequence[Hashable], path: Callable[[int], str]) -> None:
    """Require that no value stands twice; `path` gives the field of the value at an index."""
    if len(set(values)) == len(values):
        return
    index = next(index for index, value in enumerate(values) if value in values[:index])
    raise InvalidInputError(f"{values[index]!r} stands there twice", field=path(index), value=values[index])


def beta(field: str, value: float) -> None:
    """Require a credible inverse bandwidth in seconds per byte."""
    non_negative(field, value)
    if value > SLOWEST_SECONDS_PER_BYTE:
        raise InvalidInputError(
            f"{value:g} seconds per byte is slower than 100 bytes/s; give the inverse of the bandwidth (1 / bytes per second)",
            field=field,
            value=value,
        )


def timestamp(field: str, value: str) -> None:
    """Require a point in time as in RFC 3339, with its offset from UTC."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidInputError("must be a time as in RFC 3339, such as 2026-01-31T12:00:00Z", field=field, value=value[:200])


def rate(field: str, value: float) -> None:
    """Require a credible bandwidth in bytes per second."""
    positive(field, value)
    if value * SLOWEST_SECONDS_PER_BYTE < 1:
        raise InvalidInputError(
            f"{value:g} bytes per second is not credible; give bytes, not gigabytes, per second", field=field, value=value
        )


def microbatches(field: str, value: int, num_workers: int | None = 1) -> None:
    """Require a credible number of micro-batches in a step of so many workers (null: of any job), at least one."""
    count(field, value)
    most = MOST_ANYWHERE if num_workers is None else max(MOST_MICROBATCHES, MOST_PER_WORKER * num_workers)
    if value > most:
        raise InvalidInputError(
            f"{value} micro-batches in one step are not credible (over {most}); "
            "give micro-batches, not samples or tokens, or profile larger ones",
            field=field,
            value=value,
        )


def speed_ratio(field: str, value: float) -> None:
    """Require a credible speed, as a multiple of that of the profile's device."""
    positive(field, value)
    if not LEAST_SPEED_RATIO <= value <= MOST_SPEED_RATIO:
        raise InvalidInputError(
            f"{value:g} is not credible; it is a multiple of the speed that the profile was measured at, from "
            f"{LEAST_SPEED_RATIO:g} to {MOST_SPEED_RATIO:g}",
            field=field,
            value=value,
        )


def device_memory(field: str, value: int) -> None:
    """Require a credible device memory in bytes."""
    positive(field, value)
    if value < SMALLEST_DEVICE_BYTES:
        raise InvalidInputError(
            "is given in bytes; fewer than 1,000,000 is not credible (a number of gigabytes?)", field=field, value=value
        )


def _text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidInputError(f"must be a text, not {_repr_of(value)}", field=field, value=_repr_of(value))


def _is_finite(value: float) -> bool:
    """Whether it is a number at all, and a finite one."""
    try:
        return abs(value) <= LARGEST_INTEGER if isinstance(value, int) else math.isfinite(value)
    except TypeError:
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _shown(value: float) -> float | str:
    if _is_finite(value):
        return value
    if isinstance(value, int):
        return "an integer beyond 64 bits"
    return (str if isinstance(value, float | str) else repr)(value)[:200]


def _worded(value: float) -> float | str:
    return _repr_of(value) if isinstance(value, str) else _shown(value)


def _repr_of(value: object) -> str:
    return repr(value)[:200]
