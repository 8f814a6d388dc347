"""What stands in a job's log, in a few words for people."""

from collections.abc import Sequence

from api.jobs.history import Content
from kintsugi.core.ending import Ending
from kintsugi.core.handling import Approval, Expiry
from kintsugi.core.membership import Event
from kintsugi.core.messages import Report, ReportStatus

MOST_NAMED = 10
"""Of the contents of one write."""


def headline(content: Content) -> str:
    """What one entry tells, such as `worker_failed w01`."""
    if isinstance(content, Event):
        subject = content.worker or content.host or "-".join(content.link or ())
        return f"{content.kind.value} {subject}"
    if isinstance(content, Report):
        return f"{content.status.value} {content.generation}"
    if isinstance(content, Ending):
        return f"ended: {content.outcome.value}"
    return f"{content.decision if isinstance(content, Approval) else f'{content.kind} expired'} {content.generation}"


def headlines(contents: Sequence[Content]) -> str:
    """What the entries of one write tell; of many, the first."""
    named = ", ".join(map(headline, contents[:MOST_NAMED]))
    return named if len(contents) <= MOST_NAMED else f"{named} and {len(contents) - MOST_NAMED} more"


def said(contents: Sequence[Content]) -> dict[str, str]:
    """Who says so and why, as far as the first content that says anything tells: `by`, `reason` and an event's `id`."""
    first = next((content for content in contents if _reason(content)), contents[0])
    by = first.by if isinstance(first, Approval | Ending) else None
    told = {"id": first.id if isinstance(first, Event) else None, "by": by, "reason": _reason(first)}
    return {name: text for name, text in told.items() if text}


def is_routine(content: Content) -> bool:
    """Whether it comes all the time and changes no plan."""
    return isinstance(content, Report) and content.status is ReportStatus.MEASURED


def _reason(content: Content) -> str:
    if isinstance(content, Expiry):
        return ""
    return content.detail if isinstance(content, Event) else content.reason
