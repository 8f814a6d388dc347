"""Plans made ahead: what to run when a worker, a host or any two of them are lost.

Every contingency is `replan` of the snapshot that the loss would lead to, so it equals a fresh search; it is found again by
the fingerprint of that snapshot.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.identity import kept_by_identity
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from planner.replan import replan

PAIR_WORK = 16_384
"""Work that pairs of losses may take, counted in workers planned for: all pairs of 32 workers, the nearest ones of more."""

DIGESTS = 256
"""Digests of profiles, clusters, settings and plans that are kept: they are immutable, and most snapshots share them."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost at once."""

    subjects: tuple[str, ...]
    """Workers and hosts that fail (ids)."""
    workers: frozenset[str]
    """Living workers that are gone with them."""


@dataclass(frozen=True, slots=True)
class Contingency:
    """The decision for a loss that has not happened."""

    loss: Loss
    fingerprint: str
    """Of the snapshot that the loss leads to."""
    decision: Decision


def fingerprint(snapshot: Snapshot) -> str:
    """SHA-256 by which a snapshot is found again; equal snapshots have equal ones. O(workers) once its parts were seen."""
    parts = (snapshot.profile, snapshot.cluster, snapshot.settings, snapshot.plan)
    state = (snapshot.stateless, snapshot.draining)
    rest = (snapshot.alive, snapshot.generation, *state, snapshot.failures, snapshot.refused_policies, snapshot.speeds_changed)
    text = codec.dumps([None if part is None else _digest(part) for part in parts]) + codec.dumps(rest)
    return hashlib.sha256(text.encode()).hexdigest()


@kept_by_identity(DIGESTS)
def _digest(part: Profile | Cluster | JobSettings | Plan) -> str:
    return codec.digest(part)


def accepted(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """The snapshot of the next decision once the workers run this one's plan and nothing else has happened."""
    return replace(
        snapshot,
        plan=decision.plan,
        generation=decision.plan.generation + 1,
        stateless=(),
        draining=(),
        refused_policies=(),
        speeds_changed=False,
    )


def after(base: Snapshot, loss: Loss) -> Snapshot:
    """`base` once `loss` happened: what was refused for the membership before may be right for this one."""
    present = (base.alive, base.stateless, base.draining)
    alive, stateless, draining = (tuple(w for w in workers if w not in loss.workers) for workers in present)
    return replace(base, alive=alive, stateless=stateless, draining=draining, refused_policies=())


def losses(base: Snapshot, pair_work: int = PAIR_WORK) -> Iterator[Loss]:
    """Every single worker, every single host, and pairs of these as far as `pair_work` goes; each set of workers once.

    Pairs come by their distance in the cluster, nearest first: what stands side by side fails together. A loss that
    leaves nobody is left out.

    Args:
        base: the snapshot of the next decision if nothing were lost.
        pair_work: workers to be planned for, summed over the pairs.
    """
    seen: set[frozenset[str]] = set()
    units = _units(base)
    for loss in units:
        if _is_new(loss, base, seen):
            yield loss
    for first, second in _by_distance(units):
        loss = Loss(subjects=first.subjects + second.subjects, workers=first.workers | second.workers)
        if not _is_new(loss, base, seen):
            continue
        pair_work -= len(base.alive) - len(loss.workers)
        if pair_work < 0:
            return
        yield loss


def plans_ahead(base: Snapshot, pair_work: int = PAIR_WORK) -> Iterator[Contingency]:
    """The decision for each of the `losses` of `base`, one at a time; those that leave no plan are left out."""
    for loss in losses(base, pair_work):
        contingency = plan_ahead(base, loss)
        if contingency is not None:
            yield contingency


def plan_ahead(base: Snapshot, loss: Loss) -> Contingency | None:
    """The decision for one loss; None where it leaves no plan: a fresh search says why better than a stored error."""
    snapshot = after(base, loss)
    try:
        return Contingency(loss=loss, fingerprint=fingerprint(snapshot), decision=replan(snapshot))
    except InfeasibleError:
        return None


def _units(base: Snapshot) -> list[Loss]:
    """Living workers and the hosts of living workers, both in cluster order."""
    workers = [Loss(subjects=(worker,), workers=frozenset((worker,))) for worker in base.alive]
    return workers + [Loss(subjects=(host,), workers=frozenset(lost)) for host, lost in base.cluster.by_host(base.alive).items()]


def _is_new(loss: Loss, base: Snapshot, seen: set[frozenset[str]]) -> bool:
    """Whether somebody is left and these workers were not lost together before; remembers them."""
    if loss.workers in seen or len(loss.workers) == len(base.alive):
        return False
    seen.add(loss.workers)
    return True


def _by_distance(units: Sequence[Loss]) -> Iterator[tuple[Loss, Loss]]:
    for distance in range(1, len(units)):
        yield from zip(units, units[distance:], strict=False)
