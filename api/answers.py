"""Decisions as they are told: JSON put together from what lies in the database."""

from functools import lru_cache

from api.stored import StoredDecision
from api.wording import Detail
from kintsugi.core import codec

TOLD_ANSWERS = 64
"""Answers kept ready, for all who wait for the same plan."""


@lru_cache(TOLD_ANSWERS)
def answer_body(job: str, decision: StoredDecision, detail: Detail) -> bytes:
    """A stored decision as an `Answer` in JSON."""
    head = codec.dumps({"decided_at": decision.decided_at, "generation": decision.generation, "job": job})
    return f'{head[:-1]},"decision":{decision.wording.text(detail)}}}'.encode()
