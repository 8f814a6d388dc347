"""What every page of one job starts from: one of its decisions, and who was there at that time."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from api.decisions.planning import restored
from api.pages import summary_of
from api.records import Records
from api.storage.stored import StoredDecision
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.ending import EndingRecord
from kintsugi.core.job import JobSettings
from kintsugi.core.messages import JobSummary
from kintsugi.core.plan import Plan, Slot
from kintsugi.core.profile import Profile

MOST_ANCESTORS = 32
"""Plans that are looked back at for the names of dead slots."""
DECODED_DECISIONS = 64
"""Kept for those who look at the same pages again; decisions never change."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One decision of a job in its surroundings."""

    summary: JobSummary
    profile: Profile
    settings: JobSettings
    cluster: Cluster
    """As events had changed it when the decision was made; of the latest decision, as it is now."""
    alive: tuple[str, ...]
    draining: tuple[str, ...]
    """Workers that were asked to leave and still serve the state that they hold."""
    decision: Decision
    decided_at: str
    """RFC 3339, UTC."""
    buried: Mapping[Slot, str]
    """Who held each dead slot last, as far as earlier plans of the same shape tell."""
    ended: EndingRecord | None
    """When and how the job ended; null as long as it goes on."""

    @property
    def generation(self) -> int:
        """Of the decision."""
        return self.decision.plan.generation

    @property
    def is_latest(self) -> bool:
        """Whether no later decision was made."""
        return self.generation == self.summary.generation

    @property
    def before(self) -> Plan | None:
        """The plan that ran when the decision was made."""
        return self.decision.previous_plan

    @property
    def problem(self) -> Mapping[str, Any] | None:
        """Why there is no plan for those who are alive now; told with the latest decision only, and as long as the job goes on."""
        return self.summary.problem if self.is_latest and self.ended is None else None

    @cached_property
    def lost(self) -> tuple[str, ...]:
        """Workers of the cluster that were not alive, in cluster order."""
        alive = set(self.alive)
        return tuple(worker.id for worker in self.cluster.workers if worker.id not in alive)

    @cached_property
    def leaving(self) -> tuple[str, ...]:
        """Of the lost, those that still serve."""
        return tuple(worker for worker in self.lost if worker in self.draining)

    @cached_property
    def gone(self) -> tuple[str, ...]:
        """The lost without the leaving."""
        return tuple(worker for worker in self.lost if worker not in self.leaving)

    @cached_property
    def living_hosts(self) -> tuple[str, ...]:
        """Hosts with a living worker, in cluster order."""
        living = {self.cluster.by_id[worker].host for worker in self.alive if worker in self.cluster.by_id}
        return tuple(host for host in self.cluster.hosts if host in living)


def scene_of(records: Records, job: str, generation: int | None = None) -> Scene:
    """The scene of one decision, by default the latest.

    Raises:
        NotFoundError: there is no such job or generation.
    """
    with records.store.looking():
        state = records.state(job)
        latest = state.history.generation
        stored = records.store.decision(job, latest if generation is None else generation)
        present = state.history.membership
        past = None if stored.generation == latest else restored(records.store, state.job, stored.generation)
        newest = stored if past is None else records.store.decision(job, latest)
    return Scene(
        summary=summary_of(state, decoded(newest).policy),
        profile=state.profile,
        settings=state.settings,
        cluster=(past or present).cluster,
        alive=(past or present).alive,
        draining=(past or present).draining,
        decision=decoded(stored),
        decided_at=stored.decided_at,
        buried=buried(records, job, decoded(stored)),
        ended=state.history.ended,
    )


def buried(records: Records, job: str, decision: Decision) -> dict[Slot, str]:
    """Names for the dead slots of a decision's plan, from the plans before it, latest first."""
    unnamed, plan = set(decision.plan.dead_slots), decision.previous_plan
    result: dict[Slot, str] = {}
    for _ in range(MOST_ANCESTORS):
        if not unnamed or plan is None:
            break
        found = {slot: worker for slot in unnamed if (worker := _holder(plan, slot)) is not None}
        result |= found
        unnamed -= found.keys()
        plan = decoded(records.store.decision(job, plan.generation)).previous_plan if unnamed else None
    return result


def _holder(plan: Plan, slot: Slot) -> str | None:
    if slot.pipeline >= plan.dp or slot.stage >= len(plan.pipelines[slot.pipeline].stages):
        return None
    return plan.pipelines[slot.pipeline].stages[slot.stage].worker


@lru_cache(DECODED_DECISIONS)
def decoded(stored: StoredDecision) -> Decision:
    """The decision itself, decoded once."""
    return stored.wording.decision()
