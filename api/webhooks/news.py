"""News of a job as CloudEvents 1.0 in structured JSON: small, since whoever wants the whole plan fetches it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.storage.stored import StoredDecision
from api.webhooks.hooks import HookKind
from kintsugi.core import codec
from kintsugi.core.ending import EndingRecord

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One event for one webhook: the id of its delivery and the text that is sent.

    The text has an id of its own: where the database was set back a generation may come a second time, and it is another event.
    """

    id: str
    body: str


def plan_decided(job: str, stored: StoredDecision) -> News:
    """A new plan, with its price and where to fetch it."""
    decision = stored.wording.decision()
    plan = f"/v1/jobs/{job}/plans/{stored.generation}"
    data = {
        "job": job,
        "generation": stored.generation,
        "decided_at": stored.decided_at,
        "policy": decision.policy.value,
        "reason": decision.reason,
        "iteration_seconds": decision.estimate.iteration_seconds,
        "goodput_samples_per_second": decision.estimate.goodput_samples_per_second,
        "plan": plan,
    }
    return _news(
        HookKind.PLAN_DECIDED, job, stored.generation, subject=f"plans/{stored.generation}", time=stored.decided_at, data=data
    )


def plan_missing(job: str, number: int, received_at: str, generation: int, problem: Mapping[str, Any]) -> News:
    """Events after which no plan is left; `number` is that of the log entry."""
    data = {"job": job, "number": number, "generation": generation, "problem": dict(problem)}
    return _news(HookKind.PLAN_MISSING, job, number, subject=f"log/{number}", time=received_at, data=data)


def job_ended(job: str, ended: EndingRecord) -> News:
    """The end of a job."""
    data = {"job": job, "number": ended.number, "generation": ended.generation, "ending": codec.encode(ended.ending)}
    return _news(HookKind.JOB_ENDED, job, ended.number, subject=f"log/{ended.number}", time=ended.received_at, data=data)


def _news(kind: HookKind, job: str, position: int, *, subject: str, time: str, data: Mapping[str, Any]) -> News:
    event_id = f"{kind.value}.{position}"
    envelope = {
        "specversion": "1.0",
        "id": f"{event_id}@{time}",
        "source": f"/v1/jobs/{job}",
        "type": f"kintsugi.{kind.value}",
        "subject": subject,
        "time": time,
        "datacontenttype": "application/json",
        "data": data,
    }
    return News(id=event_id, body=codec.dumps(envelope))
