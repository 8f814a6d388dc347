"""`NAME=VALUES` as it is written on the command line."""

import json
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from kintsugi.core.errors import InvalidInputError
from kintsugi.simulator.rows import Value

MOST_VALUES = 10_000

LARGEST, FINEST = Decimal("1e300"), Decimal("1e-300")
"""Of the numbers that bound a range, and of its steps: beyond them quotients overflow, or are computed for minutes."""


def parsed(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Values by name: `spares=0..8`, `mtbf=3600..36000..3600`, `settings.schedule=1f1b,zb-h1`, `faults.repair_seconds=null,600`.

    Raises:
        InvalidInputError: a text is no such thing, or a name or one of its values stands twice.
    """
    result: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or not name or not values:
            raise InvalidInputError("is no NAME=VALUES, such as spares=0..8 or mtbf=3600,7200", field="vary", value=text)
        if name in result:
            raise InvalidInputError(f"{name} stands there twice", field="vary", value=text)
        result[name] = _once(name, [value for part in values.split(",") for value in _values(part, text)], text)
    return result


def _once(name: str, values: Sequence[Value], text: str) -> tuple[Value, ...]:
    """The values, none of which stands twice: its runs would count twice, and the mean seem surer than it is."""
    seen: set[Value] = set()
    for value in values:
        if value in seen:
            raise InvalidInputError(f"gives {name} the value {value} twice; leave one out", field="vary", value=text)
        seen.add(value)
    return tuple(values)


def _values(part: str, text: str) -> Sequence[Value]:
    if ".." not in part:
        return [_value(part)]
    try:
        bounds = [Decimal(bound) for bound in part.split("..")]
    except InvalidOperation:
        bounds = []
    if len(bounds) not in (2, 3) or not all(bound.is_finite() and abs(bound) <= LARGEST for bound in bounds):
        raise InvalidInputError(f"{part} is no FROM..TO or FROM..TO..STEP", field="vary", value=text)
    first, last, step = (*bounds, Decimal(1))[:3]
    if step < FINEST or last < first or (last - first) / step >= MOST_VALUES:
        raise InvalidInputError(f"{part} must go up, in at most {MOST_VALUES} steps", field="vary", value=text)
    numbers = (first + step * index for index in range(int((last - first) / step) + 1))
    return [int(number) if number == number.to_integral_value() else float(number) for number in numbers]


def _value(part: str) -> Value:
    """A number, null, or a word."""
    try:
        value = json.loads(part)
    except ValueError:
        return part
    return value if value is None or (isinstance(value, int | float) and not isinstance(value, bool)) else part
