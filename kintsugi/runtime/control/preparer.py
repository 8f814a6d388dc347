"""Readies an attempt for a decision: who takes part, where the state comes from, and what every member is told."""

import time
from dataclasses import dataclass

from kintsugi.core.decision import Decision
from kintsugi.core.errors import ReconfigurationError
from kintsugi.core.plan import Plan, Policy
from kintsugi.runtime.checkpoints.keeper import Keeper
from kintsugi.runtime.checkpoints.manifest import Checkpoint
from kintsugi.runtime.control.attempt import Attempt
from kintsugi.runtime.control.decisions import JobRequest
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.preparation import Settlement, preparation
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.control.restoration import Restoration, restoration
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.messages import Prepare
from kintsugi.runtime.options import AgentOptions


@dataclass(slots=True)
class Preparer:
    """Of one job."""

    request: JobRequest
    roster: Roster
    fleet: Fleet
    keeper: Keeper
    progress: Progress
    options: AgentOptions
    is_concluding: bool = False
    """Whether the job ends with the steps that are committed when its workers have left the present one."""
    distrusted: tuple[int, ...] = ()
    """Layers of which nobody can tell whose numbers are right: until all have gone back to a checkpoint."""
    _found: Checkpoint | None = None
    """What an earlier life of the job left."""
    _stop_step: int | None = None
    """The step before which a job that is concluded ends; the same over all later attempts."""

    def begin(self) -> None:
        """See what an earlier life of the job left."""
        self._found = self.keeper.begin()

    @property
    def begun_step(self) -> int:
        """Which step this life of the job began with: before any of its own is trained no state can be lost."""
        return self._found.step if self._found is not None else 0

    def awaits_checkpoint(self, decision: Decision, attempt: Attempt) -> bool:
        """Whether the attempt goes on from a checkpoint, and a newer one than the last is about to be whole.

        Not for ever, for disks may hang.

        Raises:
            ReconfigurationError: nobody writes checkpoints.
        """
        if not self._goes_back(decision):
            return False
        if not self.keeper.is_on:
            raise ReconfigurationError(
                "the plan restarts from a checkpoint; train with run=... to have some written", field="policy"
            )
        attempt.members = self._members(decision, attempt)
        waited_seconds = time.monotonic() - max(attempt.phase_began_at, self.fleet.back_at)
        return waited_seconds < self.options.checkpoint_timeout_seconds and self.keeper.is_hopeful(attempt.writing)

    def messages(self, decision: Decision, attempt: Attempt, settlement: Settlement, applied: Plan | None) -> dict[str, Prepare]:
        """What every member of the attempt is told.

        Args:
            decision: to be carried out.
            attempt: learns its members.
            settlement: of the interrupted step.
            applied: the plan that says where the state lies; null before any was made.
        """
        attempt.members = self._members(decision, attempt)
        start = self._begin_from(decision, settlement, applied)
        if self.is_concluding and self._stop_step is None:
            self._stop_step = start.settlement.start_step
        return preparation(
            attempt.number,
            start.decision,
            attempt.members,
            start.settlement,
            applied=applied,
            profile=self.request.profile,
            cluster=self.roster.cluster,
            restore=start.restore,
            checkpoint_every=self.keeper.every_steps,
            stop_step=self._stop_step,
            compares=self.options.worker.compares,
            is_unsaved=self.keeper.lacks_end(start.settlement.start_step),
        )

    def _goes_back(self, decision: Decision) -> bool:
        return decision.policy is Policy.CHECKPOINT_RESTART or bool(self.distrusted)

    def _members(self, decision: Decision, attempt: Attempt) -> tuple[str, ...]:
        """Who takes part in the transfers: who trains (first: without others, theirs is the same group), and who holds a stage.

        With a checkpoint all others too: they let go of state that was on its way to them, for its steps may be trained again.
        """
        is_everybody = self._goes_back(decision)
        others = [worker for worker in self.fleet.handles if is_everybody or attempt.statuses[worker] is not None]
        return tuple(dict.fromkeys((*decision.plan.workers, *others)))

    def _begin_from(self, decision: Decision, settlement: Settlement, applied: Plan | None) -> Restoration:
        """Where the state comes from; steps that are to be trained again are forgotten."""
        start = restoration(
            decision,
            settlement,
            self.keeper,
            applied=applied,
            found=self._found,
            survivors=self.fleet.handles,
            profile=self.request.profile,
            cluster=self.roster.cluster,
            distrusted=self.distrusted,
        )
        if start.is_rewound:
            self.progress.rewind(start.settlement.start_step)
            self.keeper.forget(start.settlement.start_step)
        return start
