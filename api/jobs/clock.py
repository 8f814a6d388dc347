"""Moments as RFC 3339 text in UTC to the microsecond: such texts sort as their moments do."""

from datetime import UTC, datetime, timedelta


def utc_now() -> str:
    """The present."""
    return _text(datetime.now(UTC))


def moment_after(moment: str, seconds: float) -> str:
    """The moment `seconds` after another one; the last that can be written where that comes later still."""
    try:
        return _text(datetime.fromisoformat(moment) + timedelta(seconds=seconds))
    except OverflowError:
        return _text(datetime.max.replace(tzinfo=UTC))


def seconds_between(first: str, second: str) -> float:
    """Seconds from one moment to another."""
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
