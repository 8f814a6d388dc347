"""The quality of plans over a set of cases: what each case comes to, and how that compares with a baseline."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from kintsugi.core import checks, codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.profile import PYDANTIC_CONFIG, Profile
from planner.contingency import accepted
from planner.legality import violations
from planner.replan import replan

TOLERANCE = 1e-3
"""A figure that is worse by more than this is a loss: relative, and absolute for the gap, which is a ratio itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happens at once between two plans, each of which is carried out."""

    fail: tuple[str, ...] = ()
    fail_hosts: tuple[str, ...] = ()
    join: tuple[str, ...] = ()
    """Workers, new ones on hosts of their own; one that fails in the same change comes back without state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job and what happens to it; the decision after the last change is the one that counts."""

    __pydantic_config__ = PYDANTIC_CONFIG

    schema_version: int = 1
    description: str = ""
    profile: str | None = None
    """A file, relative to the case's own folder."""
    inline_profile: Profile | None = None
    """The profile itself, in the place of a file."""
    cluster: str | None = None
    """A file, relative to the case's own folder."""
    inline_cluster: Cluster | None = None
    workers: int | None = None
    """So many equal workers in the place of a cluster."""
    workers_per_host: int = 1
    settings: JobSettings
    first_ranges: Ranges | None = None
    """Of the first plan, where they differ from the job's: both degrees fixed start from that grid."""
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        if self.schema_version != 1:
            raise InvalidInputError("this version reads schema_version 1", field="schema_version", value=self.schema_version)
        for field, given in (
            ("profile", (self.profile, self.inline_profile)),
            ("cluster", (self.cluster, self.inline_cluster, self.workers)),
        ):
            if sum(value is not None for value in given) != 1:
                raise InvalidInputError("give exactly one: a file, the thing itself, or a number of workers", field=field)
        if self.workers is not None:
            checks.count("workers", self.workers)
            checks.count("workers_per_host", self.workers_per_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a case comes to."""

    __pydantic_config__ = PYDANTIC_CONFIG

    iteration_seconds: float
    pipeline_seconds: float
    goodput_samples_per_second: float
    gap_ratio: float
    makespan_seconds: float

    @classmethod
    def of(cls, decision: Decision) -> "Figures":
        """The figures of a decision."""
        return cls(
            iteration_seconds=decision.estimate.iteration_seconds,
            pipeline_seconds=decision.estimate.pipeline_seconds,
            goodput_samples_per_second=decision.estimate.goodput_samples_per_second,
            gap_ratio=decision.search.gap_ratio,
            makespan_seconds=decision.migration.makespan_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The figures that were accepted, by the case's name."""

    __pydantic_config__ = PYDANTIC_CONFIG

    schema_version: int = 1
    cases: Mapping[str, Figures]

    def __post_init__(self) -> None:
        if self.schema_version != 1:
            raise InvalidInputError("this version reads schema_version 1", field="schema_version", value=self.schema_version)


class Verdict(StrEnum):
    """How a figure, or a case, compares with the baseline."""

    SAME = "same"
    BETTER = "better"
    TRADED = "traded"
    """Worse, but for a better goodput, which is what the planner maximises."""
    WORSE = "worse"


def decide(case: Case, folder: Path) -> tuple[Decision, tuple[str, ...]]:
    """The last decision of a case, and what is illegal about any of its decisions.

    Args:
        case: what happens.
        folder: where its files lie.

    Raises:
        InvalidInputError: a file is wrong.
        NotFoundError: a change names a worker or host that there is not.
        InfeasibleError: there is no plan.
    """
    snapshot = _first(case, folder)
    settings = replace(snapshot.settings, ranges=case.first_ranges or snapshot.settings.ranges, policy=None)
    first = replace(snapshot, settings=settings)
    decision = replan(first)
    illegal = violations(first, decision)
    membership = Membership.of(snapshot.cluster)
    for change in case.changes:
        survivors = _after(membership, _losses(change))
        membership = _after(survivors, _arrivals(change))
        snapshot = _next(accepted(snapshot, decision), survivors, membership)
        decision = replan(snapshot)
        illegal += violations(snapshot, decision)
    return decision, illegal


def compare(before: Figures, after: Figures) -> dict[str, Verdict]:
    """The verdict on each figure, by its name.

    A worse step, pipeline or migration is a trade where goodput became better; a worse gap is a loss in any case.
    """
    verdicts = {name: _verdict(name, getattr(before, name), getattr(after, name)) for name in codec.encode(before)}
    if verdicts["goodput_samples_per_second"] is Verdict.BETTER:
        for name in ("iteration_seconds", "pipeline_seconds", "makespan_seconds"):
            if verdicts[name] is Verdict.WORSE:
                verdicts[name] = Verdict.TRADED
    return verdicts


def _first(case: Case, folder: Path) -> Snapshot:
    profile = case.inline_profile or codec.load(Profile, folder / str(case.profile))
    if case.workers is not None:
        cluster = Cluster.uniform(case.workers, workers_per_host=case.workers_per_host)
    else:
        cluster = case.inline_cluster or codec.load(Cluster, folder / str(case.cluster))
    alive = tuple(worker.id for worker in cluster.workers)
    return Snapshot(profile=profile, cluster=cluster, settings=case.settings, plan=None, alive=alive, generation=0)


def _losses(change: Change) -> Iterator[Event]:
    for worker in change.fail:
        yield Event(kind=EventKind.WORKER_FAILED, id=worker, generation=0, worker=worker)
    for host in change.fail_hosts:
        yield Event(kind=EventKind.HOST_FAILED, id=host, generation=0, host=host)


def _arrivals(change: Change) -> Iterator[Event]:
    for worker in change.join:
        yield Event(kind=EventKind.WORKER_JOINED, id=worker, generation=0, worker=worker)


def _after(membership: Membership, events: Iterable[Event]) -> Membership:
    for event in events:
        membership = membership.after(event)
    return membership


def _next(base: Snapshot, survivors: Membership, membership: Membership) -> Snapshot:
    """`base` with those who are there after a change; who is there but did not survive it holds nothing of its plan."""
    assert base.plan is not None
    returned = set(membership.alive).difference(survivors.alive)
    stateless = tuple(worker for worker in membership.alive if worker in returned and worker in base.plan.pipeline_of)
    return replace(base, cluster=membership.cluster, alive=membership.alive, stateless=stateless)


def _verdict(name: str, before: float, after: float) -> Verdict:
    loss = before - after if name == "goodput_samples_per_second" else after - before
    allowed = TOLERANCE if name == "gap_ratio" else TOLERANCE * abs(before)
    if abs(loss) <= allowed or math.isclose(before, after, rel_tol=1e-9, abs_tol=1e-12):
        return Verdict.SAME
    return Verdict.WORSE if loss > 0 else Verdict.BETTER
