"""Decisions as they are told: JSON put together from what lies in the database."""

from functools import lru_cache

from api.records import StandingDecision
from api.storage.wording import Detail
from kintsugi.core import codec

TOLD_ANSWERS = 64
"""Answers kept ready, for all who wait for the same plan."""


@lru_cache(TOLD_ANSWERS)
def answer_body(job: str, standing_decision: StandingDecision, detail: Detail) -> bytes:
    """A stored decision as an `Answer` in JSON."""
    decision, standing = standing_decision.decision, standing_decision.standing
    head = codec.dumps(
        {
            "decided_at": decision.decided_at,
            "generation": decision.generation,
            "job": job,
            "standing": standing,
            "status": standing.status,
        }
    )
    return f'{head[:-1]},"decision":{decision.wording.text(detail)}}}'.encode()
