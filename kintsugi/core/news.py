"""What a stream tells: the log of one job or of all, line by line, with the plans that its lines led to."""

from dataclasses import dataclass
from enum import StrEnum

from kintsugi.core.ending import EndingRecord
from kintsugi.core.messages import Answer, EventRecord, ReportRecord
from kintsugi.core.profile import PYDANTIC_CONFIG


class NewsKind(StrEnum):
    """What a message of a stream tells of."""

    EVENT = "event"
    REPORT = "report"
    PLAN = "plan"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One message of a stream: an event, a report or a plan of one job, or its end."""

    __pydantic_config__ = PYDANTIC_CONFIG

    job: str
    event: EventRecord | None = None
    report: ReportRecord | None = None
    plan: Answer | None = None
    ending: EndingRecord | None = None

    @property
    def kind(self) -> NewsKind:
        """What it tells of."""
        return next(kind for kind in NewsKind if getattr(self, kind) is not None)
