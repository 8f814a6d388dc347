"""The few numbers of a decision that lists show, read without decoding its plan."""

import json
from dataclasses import dataclass
from functools import lru_cache

from api.pages import summary_of
from api.records import Records
from api.storage.stored import StoredDecision
from api.storage.wording import Detail
from kintsugi.core.messages import JobSummary
from kintsugi.core.plan import Policy

KEPT_FACTS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A decision in one line."""

    generation: int
    decided_at: str
    """RFC 3339, UTC."""
    number: int
    """Of the log entry that led to it."""
    policy: str
    reason: str
    dp: int
    longest_pp: int
    """Stages of the longest pipeline."""
    iteration_seconds: float
    reconfiguration_seconds: float
    throughput_samples_per_second: float
    goodput_samples_per_second: float
    moved_bytes: int
    elapsed_seconds: float
    """The planner's search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job in the list of jobs."""

    summary: JobSummary
    facts: Facts


@lru_cache(KEPT_FACTS)
def facts_of(stored: StoredDecision) -> Facts:
    """The facts of a stored decision."""
    told = json.loads(stored.wording.text(Detail.BRIEF))
    price, pipelines = told["estimate"], told["plan"]["pipelines"]
    return Facts(
        generation=stored.generation,
        decided_at=stored.decided_at,
        number=stored.number,
        policy=told["policy"],
        reason=told["reason"],
        dp=len(pipelines),
        longest_pp=max(len(pipeline["stages"]) for pipeline in pipelines),
        iteration_seconds=price["iteration_seconds"],
        reconfiguration_seconds=price["reconfiguration_seconds"],
        throughput_samples_per_second=price["throughput_samples_per_second"],
        goodput_samples_per_second=price["goodput_samples_per_second"],
        moved_bytes=told["migration"]["total_bytes"],
        elapsed_seconds=told["search"]["elapsed_seconds"],
    )


def job_lines(records: Records, cursor: str | None, limit: int, *, ended: bool) -> tuple[list[JobLine], str | None]:
    """Up to `limit` jobs above `cursor` that go on, or that `ended`, and the cursor of the next page; null at the end."""
    ids = records.store.job_ids(after=cursor or "", limit=limit + 1, ended=ended)
    lines = [_line(records, job) for job in ids[:limit]]
    return lines, ids[limit - 1] if len(ids) > limit else None


def _line(records: Records, job: str) -> JobLine:
    with records.store.looking():
        state = records.state(job)
        facts = facts_of(records.store.decision(job, state.history.generation))
    return JobLine(summary=summary_of(state, Policy(facts.policy)), facts=facts)
