"""Moments as RFC 3339 text in UTC to the microsecond: such texts sort as their moments do."""

from datetime import UTC, datetime, timedelta

from api import moments
from api.moments import text_of


def utc_now() -> str:
    """The present."""
    return text_of(moments.utc_now())


def moment_after(moment: str, seconds: float) -> str:
    """The moment `seconds` after another one; the last that can be written where that comes later still."""
    try:
        return text_of(datetime.fromisoformat(moment) + timedelta(seconds=seconds))
    except OverflowError:
        return text_of(datetime.max.replace(tzinfo=UTC))


def seconds_between(first: str, second: str) -> float:
    """Seconds from one moment to another."""
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()
