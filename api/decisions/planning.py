"""From a history to a decision, and both in the form in which they are stored."""

from dataclasses import dataclass

from api.storage.legible import loaded
from api.storage.shelf import Decided
from api.storage.store import Store
from api.storage.stored import Document, StoredDecision, StoredJob, cluster_document
from api.storage.wording import Wording
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import Policy
from kintsugi.core.profile import Profile
from kintsugi.core.reliability import FailureRecord
from kintsugi.core.version import __version__
from planner.adoption import adopt
from planner.replan import is_kept, replan

LONG = 65_536
"""Layers times living workers of the least job whose searches may be long: half a second of 80 layers and 1,024 workers, five of
200 layers. The way to another process and back takes 0.03 s of the former, and of smaller jobs too much of their short searches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A snapshot with its large parts by digest; with the job's other decisions it can be put together again."""

    profile: str
    cluster: str
    settings: str
    plan_generation: int | None
    """The generation whose plan the snapshot starts from; its own where a running plan was adopted."""
    alive: tuple[str, ...]
    generation: int
    stateless: tuple[str, ...]
    failures: FailureRecord | None = None
    refused_policies: tuple[Policy, ...] = ()
    draining: tuple[str, ...] = ()
    speeds_changed: bool = False


def decide(snapshot: Snapshot) -> Decision:
    """The decision for a snapshot; at generation 0 a plan that runs already is adopted as it is.

    Raises:
        InfeasibleError: no plan exists.
        InvalidInputError: the running plan does not fit the job.
    """
    if snapshot.generation == 0 and snapshot.plan is not None:
        return adopt(snapshot)
    return replan(snapshot)


def decided(snapshot: Snapshot) -> Decided:
    """The decision for a snapshot as it is stored; raises as `decide` does."""
    return Decided.of(decide(snapshot))


def is_quick(snapshot: Snapshot) -> bool:
    """Whether to decide takes less than to let somebody else do it: the plan that runs is kept."""
    return snapshot.generation > 0 and is_kept(snapshot)


def is_long(num_layers: int, num_workers: int) -> bool:
    """Whether a search for a job of so many layers and living workers may hold up whatever else its process does."""
    return num_layers * num_workers >= LONG


def stored(
    wording: Wording, snapshot: Snapshot, *, profile: str, settings: str, number: int, decided_at: str
) -> tuple[StoredDecision, Document]:
    """A decision ready for the store, and the cluster that its snapshot refers to.

    Args:
        wording: of the decision.
        snapshot: what it is a function of.
        profile: digest of the snapshot's profile.
        settings: digest of the snapshot's settings.
        number: of the log entry that led to the decision; 0 for the job's creation.
        decided_at: RFC 3339, UTC.
    """
    cluster = cluster_document(snapshot.cluster)
    reference = StoredSnapshot(
        profile=profile,
        cluster=cluster.digest,
        settings=settings,
        plan_generation=None if snapshot.plan is None else snapshot.plan.generation,
        alive=snapshot.alive,
        generation=snapshot.generation,
        stateless=snapshot.stateless,
        failures=snapshot.failures,
        refused_policies=snapshot.refused_policies,
        draining=snapshot.draining,
        speeds_changed=snapshot.speeds_changed,
    )
    text = Document.of(reference)
    result = StoredDecision(
        generation=snapshot.generation,
        number=number,
        decided_at=decided_at,
        wording=wording,
        snapshot=text.body,
        snapshot_digest=text.digest,
        planner_version=__version__,
    )
    return result, cluster


def restored(store: Store, job: StoredJob, generation: int) -> Snapshot:
    """The snapshot that a decision was a pure function of: `decide` gives the same decision again.

    Raises:
        NotFoundError: nothing was decided for this generation.
    """
    reference = loaded(StoredSnapshot, store.decision(job.id, generation).snapshot)
    base = reference.plan_generation
    return Snapshot(
        profile=store.document(Profile, reference.profile),
        cluster=store.document(Cluster, reference.cluster),
        settings=store.document(JobSettings, reference.settings),
        plan=None if base is None else store.decision(job.id, base).wording.plan(),
        alive=reference.alive,
        generation=reference.generation,
        stateless=reference.stateless,
        failures=reference.failures,
        refused_policies=reference.refused_policies,
        draining=reference.draining,
        speeds_changed=reference.speeds_changed,
    )
