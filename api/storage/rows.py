"""From nouns to rows and back."""

import json
from typing import Any

from sqlalchemy import Row

from api.jobs.history import Content, Entry, History
from api.storage import states
from api.storage.legible import legible
from api.storage.stored import StoredDecision
from api.storage.wording import Wording
from kintsugi.core import codec
from kintsugi.core.ending import Ending
from kintsugi.core.handling import Approval, Expiry
from kintsugi.core.membership import Event
from kintsugi.core.messages import Report
from kintsugi.core.version import __version__

EVENT, REPORT, APPROVAL, EXPIRY, ENDING = "event", "report", "approval", "expiry", "ending"
CONTENTS: dict[str, type[Content]] = {EVENT: Event, REPORT: Report, APPROVAL: Approval, EXPIRY: Expiry, ENDING: Ending}
"""What log entries hold, by the kind under which they are stored."""
KINDS = {content: kind for kind, content in CONTENTS.items()}


def row_of_entry(job: str, entry: Entry) -> dict[str, Any]:
    """A log entry as the log takes it."""
    return {
        "job": job,
        "number": entry.number,
        "kind": KINDS[type(entry.content)],
        "event_id": entry.content.id if isinstance(entry.content, Event) else None,
        "body": codec.dumps(entry.content),
        "received_at": entry.received_at,
        "generation": entry.generation,
        "decided": entry.decided,
        "deferred": entry.deferred,
        "problem": None if entry.problem is None else codec.dumps(entry.problem),
    }


@legible
def entry_of(row: Row[Any]) -> Entry:
    """The log entry in a row of the log."""
    return Entry(
        number=row.number,
        received_at=row.received_at,
        content=codec.loads(CONTENTS[row.kind], row.body),
        generation=row.generation,
        decided=row.decided,
        deferred=row.deferred,
        problem=None if row.problem is None else json.loads(row.problem),
    )


def row_of_decision(job: str, decision: StoredDecision) -> dict[str, Any]:
    """A decision as its table takes it."""
    row = codec.encode(decision)
    return {"job": job, **row.pop("wording"), **row}


@legible
def decision_of(row: Row[Any]) -> StoredDecision:
    """The decision in a row of its table."""
    values = {name: value for name, value in row._mapping.items() if name != "job"}
    return StoredDecision(wording=Wording(brief=values.pop("brief"), account=values.pop("account")), **values)


def row_of_history(job: str, history: History) -> dict[str, Any]:
    """A history as the table of states takes it."""
    return {"job": job, "number": history.number, "planner_version": __version__, "history": states.packed(history)}
