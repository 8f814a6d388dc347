"""Moments as they are stored: RFC 3339 in UTC to the microsecond, so that texts sort as times do."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The present."""
    return datetime.now(UTC)


def text_of(moment: datetime) -> str:
    """A moment as text of 27 letters."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def moment_of(text: str) -> datetime:
    """The moment that a text stands for."""
    return datetime.fromisoformat(text)
