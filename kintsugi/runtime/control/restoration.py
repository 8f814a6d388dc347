"""Where the state comes from that an attempt begins with: survivors as far as they have it, the last checkpoint, or the seed."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision, Migration
from kintsugi.core.logs import get_logger
from kintsugi.core.plan import Plan, Policy
from kintsugi.core.profile import Profile
from kintsugi.runtime.checkpoints.keeper import Keeper
from kintsugi.runtime.checkpoints.manifest import Checkpoint
from kintsugi.runtime.control.preparation import Settlement
from kintsugi.runtime.messages import Restore
from restorer.migration import plan_migration
from restorer.needs import needs_of


@dataclass(frozen=True, slots=True)
class Restoration:
    """A decision with what it takes to begin with the state that there is."""

    decision: Decision
    settlement: Settlement
    restore: Restore | None = None
    is_rewound: bool = False
    """Whether steps that were committed are trained again."""


def restoration(
    decision: Decision,
    settlement: Settlement,
    keeper: Keeper,
    *,
    applied: Plan | None,
    found: Checkpoint | None,
    survivors: Collection[str],
    profile: Profile,
    cluster: Cluster,
    distrusted: tuple[int, ...] = (),
) -> Restoration:
    """Settle where to begin.

    Args:
        decision: to be carried out.
        settlement: of the interrupted step.
        keeper: of the checkpoints.
        applied: the plan that says where the state lies; null before any was made.
        found: the checkpoint that an earlier life of the job left, while nothing was trained in this one.
        survivors: workers that are here.
        profile: of the job.
        cluster: all workers that the plan may name.
        distrusted: layers of which nobody can tell which of the survivors' numbers are right.
    """
    if distrusted:
        return _from_checkpoint(replace(decision, migration=Migration()), settlement, keeper.newest(), layers=distrusted)
    if applied is None and found is not None and settlement.start_step in (0, found.step):
        return Restoration(replace(decision, migration=Migration()), Settlement(None, found.step), _all(found, decision.plan))
    if applied is None or applied == decision.plan:
        return Restoration(decision, settlement)
    if decision.policy is not Policy.CHECKPOINT_RESTART:
        return Restoration(_moving_from(applied, decision, survivors, profile, cluster), settlement)
    checkpoint = keeper.newest()
    lost = tuple(layer for layer, holders in enumerate(applied.holders) if not set(holders) & set(survivors))
    if checkpoint is not None and checkpoint.step == settlement.start_step:
        living = [worker for worker in applied.workers if worker in survivors]
        migration = plan_migration(applied, decision.plan, profile, cluster, living, elsewhere=lost)
        partial = Restore(checkpoint.folder, lost, is_whole=False)
        return Restoration(replace(decision, migration=migration), settlement, partial)
    return _from_checkpoint(decision, settlement, checkpoint, layers=lost)


def _from_checkpoint(
    decision: Decision, settlement: Settlement, checkpoint: Checkpoint | None, *, layers: tuple[int, ...]
) -> Restoration:
    start = checkpoint.step if checkpoint is not None else 0
    get_logger("kintsugi.runtime").warning(
        "state is lost; steps are trained again",
        layers=layers,
        trained=settlement.start_step,
        again_from=start,
        checkpoint=checkpoint.folder.name if checkpoint is not None else "none",
    )
    whole = _all(checkpoint, decision.plan) if checkpoint is not None else None
    return Restoration(decision, Settlement(None, start), whole, is_rewound=True)


def _moving_from(applied: Plan, decision: Decision, survivors: Collection[str], profile: Profile, cluster: Cluster) -> Decision:
    """The decision with the migration that leads from the plan that is applied.

    Whoever decided may think of an older one, as a service whose database was restored from a backup.

    Raises:
        StateLostError: the decision reckons with state that no survivor holds.
    """
    living = [worker for worker in applied.workers if worker in survivors]
    needs = needs_of(applied, decision.plan, profile, living)
    transfers, reads = decision.migration.transfers, decision.migration.from_checkpoint
    brought = {(part.target, part.layer) for part in transfers} | {(part.target, part.layer) for part in reads}
    is_sent_by_holders = all(part.source in applied.holders[part.layer] for part in transfers)
    if is_sent_by_holders and brought == {(need.target, need.layer) for need in needs}:
        return decision
    get_logger("kintsugi.runtime").warning(
        "the plan was decided from another one than runs; its migration is planned anew",
        generation=decision.plan.generation,
        runs=applied.generation,
    )
    return replace(decision, migration=plan_migration(applied, decision.plan, profile, cluster, living))


def _all(checkpoint: Checkpoint, plan: Plan) -> Restore:
    return Restore(checkpoint.folder, tuple(range(plan.num_layers)), is_whole=True)
