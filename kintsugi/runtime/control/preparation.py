"""What every member of an attempt is told so that all of them come to run one plan."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from estimator.program import compile_program
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision, Migration
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from kintsugi.runtime.messages import Prepare, Restore
from kintsugi.runtime.verdicts import Slot
from kintsugi.runtime.workers.commit import CommitRecord, StepStatus, resolve


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of the interrupted step."""

    record: CommitRecord | None
    """With which survivors that have not applied it roll forward; null discards the step."""
    start_step: int

    @classmethod
    def of(cls, statuses: Iterable[StepStatus | None]) -> "Settlement":
        """From how far the survivors are; null is one that holds no stage."""
        known = [status for status in statuses if status is not None]
        record = resolve(known)
        start = max([status.step for status in known] + ([record.step + 1] if record else []), default=0)
        return cls(record, start)


def is_same_work(plan: Plan, other: Plan) -> bool:
    """Whether nobody who trains under one plan would do anything else under the other."""
    return (plan.pipelines, plan.routes, plan.rounds) == (other.pipelines, other.routes, other.rounds)


def at_stake(applied: Plan, following: Plan, members: Collection[str]) -> tuple[Slot, ...]:
    """Layers that others get, or that a member lets go of, each with all members that hold it: a copy would be of what errs, and
    who lets go can tell what is right for the last time.

    What the same workers go on holding is compared at the next commit point.
    """
    slots, is_here = [], set(members)
    for layer, (holders, later) in enumerate(zip(applied.holders, following.holders, strict=True)):
        here = [holder for holder in holders if holder in is_here]
        if len(here) > 1 and set(here) != set(later):
            slots += [(layer, holder) for holder in here]
    return tuple(slots)


def preparation(
    attempt: int,
    decision: Decision,
    members: tuple[str, ...],
    settlement: Settlement,
    *,
    applied: Plan | None,
    profile: Profile,
    cluster: Cluster,
    restore: Restore | None = None,
    checkpoint_every: int | None = None,
    stop_step: int | None = None,
    compares: bool = False,
    is_unsaved: bool = False,
) -> dict[str, Prepare]:
    """The message for every member.

    Args:
        attempt: number of the attempt.
        decision: with the plan and the migration that leads to it.
        members: who takes part, in rank order.
        settlement: of the interrupted step.
        applied: the plan that says where the state lies; null before any state was made.
        profile: of the job.
        cluster: all workers that the plan may name.
        restore: state that comes from a checkpoint.
        checkpoint_every: interval in steps; null where it is not known yet.
        stop_step: before which the job ends early; null where it does not.
        compares: whether replicas are compared.
        is_unsaved: whether all is trained, and no checkpoint has it.
    """
    is_anew = settlement.start_step == 0 or (restore is not None and restore.is_whole)
    compared = at_stake(applied, decision.plan, members) if compares and applied is not None and not is_anew else ()
    program = compile_program(decision.plan, profile, cluster)
    return {
        worker: Prepare(
            attempt=attempt,
            plan=decision.plan,
            actions=program.texts.get(worker, ()),
            places=program.places.get(worker, ()),
            digests=program.digests,
            reductions=program.reductions,
            checksum=program.checksum,
            members=members,
            migration=Migration() if applied == decision.plan else decision.migration,
            record=settlement.record,
            start_step=settlement.start_step,
            is_initial=settlement.start_step == 0,
            restore=restore,
            checkpoint_every=checkpoint_every,
            stop_step=stop_step,
            compared=compared,
            is_unsaved=is_unsaved,
        )
        for worker in members
    }
