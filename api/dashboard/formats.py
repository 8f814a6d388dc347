"""Quantities as people read them; the only place where pages leave SI base units."""

import math
import re
from collections.abc import Callable
from datetime import datetime

from kintsugi.core.plan import Policy, Stage

MINUTE_SECONDS, HOUR_SECONDS, DAY_SECONDS = 60.0, 3_600.0, 86_400.0
DASH = "\N{EN DASH}"
ABSENT = DASH
TIMES = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"))
FIELD = re.compile(r"\w+([.\[_]\w+)+.*: ")
"""How a reason begins that tells of a field: `recovery.checkpoint_interval_seconds: `."""
BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|min|h|days|B|kB|MB|GB|TB|PB|%|samples/s)(?!\w))")
"""The space between a number and its unit."""
SIZES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def seconds(value: float | None) -> str:
    """A duration with three significant digits up to two minutes, in two units above."""
    if value is None:
        return ABSENT
    if value == 0:
        return "0 s"
    for below, factor, unit in TIMES:
        if abs(value) < below:
            return f"{_digits(value * factor)} {unit}"
    return f"{_digits(value)} s" if value < 2 * MINUTE_SECONDS else _long(value)


def _long(value: float) -> str:
    if value < 2 * HOUR_SECONDS:
        return _two(value, MINUTE_SECONDS, "min", 1.0, "s")
    if value < 2 * DAY_SECONDS:
        return _two(value, HOUR_SECONDS, "h", MINUTE_SECONDS, "min")
    return f"{_digits(value / DAY_SECONDS)} days"


def _two(value: float, large: float, large_unit: str, small: float, small_unit: str) -> str:
    whole, rest = divmod(round(value / small), round(large / small))
    return f"{whole} {large_unit} {rest} {small_unit}" if rest else f"{whole} {large_unit}"


def size(value: float | None) -> str:
    """Bytes in decimal units with three significant digits."""
    if value is None:
        return ABSENT
    for unit_bytes, unit in SIZES:
        if value >= unit_bytes:
            return f"{_digits(value / unit_bytes)} {unit}"
    return f"{value:.0f} B"


def four_digits(value: float) -> str:
    """Four significant digits, where the unit stands beside them."""
    return _digits(value, 4)


def rate(value: float | None) -> str:
    """Samples per second with four significant digits."""
    return ABSENT if value is None else f"{four_digits(value)}/s"


def percent(value: float | None) -> str:
    """A ratio (0..1) as a percentage; what is below a hundredth of a percent is said to be."""
    if value is None:
        return ABSENT
    if 0 < value < 1e-4:
        return "< 0.01 %"
    return f"{_digits(100 * value)} %"


def signed_percent(value: float) -> str:
    """A relative difference as a percentage with its sign; one that is nothing in the digits shown has none."""
    text = f"{100 * value:+.1f}"
    return "0 %" if float(text) == 0 else f"{text} %".replace("-", "\N{MINUS SIGN}")


def words(name: str) -> str:
    """A name of code or JSON as words: `data_rerouting` is data rerouting."""
    return name.replace("_", " ")


def prose(text: str) -> str:
    """A sentence of the planner's as people write it: a capital first, but of a field's name, and policies in words."""
    for policy in Policy:
        text = text.replace(policy.value, words(policy.value))
    return text if FIELD.match(text) else text[:1].upper() + text[1:]


def layers(stage: Stage) -> str:
    """The layers of a stage, counted from 0: `8` to `15` with a dash between."""
    last = stage.layer_stop - 1
    return str(last) if stage.layer_start == last else f"{stage.layer_start}{DASH}{last}"


def moment(timestamp: str) -> str:
    """An RFC 3339 time to the second, in UTC."""
    return datetime.fromisoformat(timestamp).strftime("%Y-%m-%d %H:%M:%S")


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def _digits(value: float, num_digits: int = 3) -> str:
    """At least `num_digits` significant digits, never an exponent; whole numbers, and only they, without decimals."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, num_digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.0f}" if math.isclose(value, round(value)) else f"{value:,.{places}f}"


def unbroken(shown: Callable[..., str]) -> Callable[..., str]:
    """The same text, whose numbers stay on one line with their units."""
    return lambda *given: BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", shown(*given))


FILTERS = {
    **{each.__name__: unbroken(each) for each in (seconds, size, percent, signed_percent, prose)},
    "four_digits": four_digits,
    "rate": rate,
    "words": words,
    "moment": moment,
    "count": count,
}
"""What the templates call."""
