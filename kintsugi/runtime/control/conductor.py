"""Conducts the workers of a job from plan to plan. One thread runs it; a loss at any moment begins a new attempt.

    lost -> fence -> call off (all survivors) -> quiesced (all)  -> prepare (all) -> ready (all) -> go -> training
                  -> decisions.after(events), in a thread        /

An attempt supersedes whatever was under way. A worker that joins is started and planned for while the others train; only
then they are called off.
"""

import itertools
import time
from collections.abc import Sequence

from kintsugi.core.decision import Decision
from kintsugi.core.errors import KintsugiError, ReconfigurationError, StateLostError, UnavailableError
from kintsugi.core.logs import get_logger
from kintsugi.core.membership import EventKind
from kintsugi.core.plan import Plan
from kintsugi.runtime.checkpoints.keeper import Keeper
from kintsugi.runtime.control.attempt import Attempt, Phase, replicas_differ
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.decisions import JobRequest
from kintsugi.runtime.control.exposure import tell_exposure
from kintsugi.runtime.control.farewell import Farewells
from kintsugi.runtime.control.fleet import ENDED, Fleet
from kintsugi.runtime.control.hearing import Hearing
from kintsugi.runtime.control.patience import Patience
from kintsugi.runtime.control.preparation import Settlement, is_same_work
from kintsugi.runtime.control.preparer import Preparer
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.control.recovery import Recoveries
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.messages import CallOff, CheckpointEvery, Collect, Differing, Go
from kintsugi.runtime.options import AgentOptions
from kintsugi.runtime.processes import WorkerHandle
from kintsugi.runtime.result import RunResult, run_result


class Conductor:
    """The protocol between one job's workers and its decisions."""

    def __init__(self, request: JobRequest, fleet: Fleet, decider: Decider, options: AgentOptions) -> None:
        self._request = request
        self._fleet = fleet
        self._decider = decider
        self._options = options
        self._log = get_logger("kintsugi.runtime")
        self._roster = Roster(request)
        self._numbers = itertools.count(1)
        self._attempt = Attempt(0)
        self._idle_attempts = 0
        self._distrusted_step = -1
        """Before which replicas differed last, and nobody could tell which of them was right."""
        self._distrusted_in = 0
        """The attempt in which that was."""
        self._decision: Decision | None = None
        self._saved_from: int | None = None
        """How many steps were trained when a checkpoint of them was asked for."""
        self._applied: Plan | None = None
        """Says where the state lies; null before any was made."""
        self.phase = Phase.STARTING
        self.progress = Progress()
        self.recoveries = Recoveries()
        self._patience = Patience(options, fleet, self.progress)
        self.keeper = Keeper(options.worker.run, self.progress, compares=options.worker.compares, presence=fleet.presence)
        self._preparer = Preparer(request, self._roster, fleet, self.keeper, self.progress, options)
        self._farewells = Farewells(fleet, self._roster, decider)
        self._hearing = Hearing(fleet, decider, self.progress, self.recoveries, self.keeper)

    @property
    def decision(self) -> Decision:
        """The decision that the workers carry out, or move to."""
        assert self._decision is not None
        return self._decision

    def start(self) -> None:
        """Get the first decision, see what an earlier life left, and start all workers."""
        self._preparer.begin()
        self._decision = self._decider.start(self._request)
        self._fleet.start([worker.id for worker in self._request.cluster.workers])
        self._begin_attempt(Phase.STARTING)

    def invite(self, worker: str, host: str | None) -> None:
        """Start a process for a worker that comes back or is new; it is taken in once it knows its model."""
        self._fleet.invite(worker)
        self._roster.live(worker, host)

    def drain(self, worker: str) -> None:
        """Have a worker leave once others have its state."""
        self._fleet.handles[worker].is_leaving = True

    def conclude(self) -> None:
        """Have all workers leave what they do, and regroup with no step left to train; once."""
        if not self._preparer.is_concluding and self.phase in (Phase.PREPARING, Phase.TRAINING):
            self._begin_attempt(Phase.QUIESCING)
        self._preparer.is_concluding = True

    def save(self) -> None:
        """Have a checkpoint written after the step under way, and nobody join or leave before; once."""
        self._saved_from = self.progress.next_step
        self.keeper.hurry()

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint of what is trained now is still to come: of a job that has a folder, and trains or recovers."""
        steps = self.progress.next_step if self._saved_from is None else self._saved_from
        is_under_way = self.phase in (Phase.QUIESCING, Phase.PREPARING, Phase.TRAINING)
        return self.keeper.is_on and is_under_way and not self.keeper.has_kept(steps)

    @property
    def has_saved(self) -> bool:
        """Whether what was trained when a checkpoint was asked for is in one, and was compared."""
        return self._saved_from is not None and self.keeper.has_kept(self._saved_from)

    def is_done(self) -> bool:
        """Whether everything is trained and collected."""
        return self.phase is Phase.COLLECTING and set(self.decision.plan.workers) <= self._attempt.collected.keys()

    def close(self) -> None:
        """End every thread."""
        self.keeper.close()

    def result(self) -> RunResult:
        """What came of the run, once it is done."""
        self.keeper.conclude()
        self.close()
        return run_result(self.progress, self._attempt.collected, self.recoveries.all, self._decider.decisions, self.keeper)

    def poll(self) -> None:
        """Take in one batch of messages, losses and deadlines, and do what follows from them."""
        news = self._fleet.listen(self._decider.wake, self._options.worker.heartbeat_seconds)
        for handle, message in news.messages:
            if self._hearing.hear(message, handle, self._attempt):
                self._idle_attempts = 0
        if self.phase is Phase.TRAINING:
            self._note_resumed()
        self._heed_differences([message for _, message in news.messages if isinstance(message, Differing)])
        silent = dict.fromkeys([*news.ended, *self._fleet.frozen(self._options)])
        missing = [handle for handle in silent if not self._fleet.dismiss(handle, ENDED) and self._fleet.counts_on(handle)]
        gone = [handle for handle in missing if self._farewells.has_gone(handle)]
        for handle in gone:
            self.keeper.lost(handle.worker)
        if lost := [handle for handle in missing if handle not in gone]:
            self._lose(lost)
        if self._saved_from is None and self.phase is not Phase.PREPARING:  # then it would be planned from the plan that is left
            self._farewells.announce(is_training=self.phase is Phase.TRAINING)
        self._check_deadlines()
        self._advance()
        is_preparing = self.phase is Phase.PREPARING  # who gets ready goes by the older interval that it is to begin with
        if (every := self.keeper.look(tells=not is_preparing)) is not None:
            for handle in self._fleet.handles.values():
                handle.send(CheckpointEvery(every))

    def _lose(self, handles: Sequence[WorkerHandle], detail: str = "") -> None:
        """Fence workers, and begin to recover from their loss, unless none of them had a part in what is left to do."""
        for handle in handles:
            self._fleet.lose(handle, detail)
            self.keeper.lost(handle.worker)
        self._fleet.require_some_able(len(self._request.cluster.workers))
        self._decider.submit([self._roster.failed(handle.worker, detail or handle.ending) for handle in handles])
        if not self._are_missed({handle.worker for handle in handles}):
            return
        for handle in handles:
            self.recoveries.lost(handle.worker, handle.struck_at, time.monotonic())
        self._idle_attempts = 0
        self._begin_attempt(Phase.QUIESCING)

    def _are_missed(self, workers: set[str]) -> bool:
        """Whether workers that are lost had a part in what is left to do."""
        if self.phase is Phase.TRAINING:
            return self._applied is not None and not workers.isdisjoint(self._applied.workers)
        if self.phase is Phase.COLLECTING:
            return not (workers & set(self.decision.plan.workers)) <= self._attempt.collected.keys()
        return True

    def _begin_attempt(self, phase: Phase) -> None:
        self._attempt = Attempt(next(self._numbers))
        self._enter(phase)
        for handle in self._fleet.handles.values():
            handle.send(CallOff(self._attempt.number))

    def _regroup(self, why: str) -> None:
        """Try again with the same workers."""
        self._idle_attempts += 1
        if self._idle_attempts >= self._options.max_idle_attempts:
            raise ReconfigurationError(f"gave up after {self._idle_attempts} attempts without a loss between them: {why}")
        self._begin_attempt(Phase.QUIESCING)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._attempt.phase_began_at = time.monotonic()

    def _advance(self) -> None:
        """Take the step of the protocol that everything is there for."""
        if self.phase in (Phase.STARTING, Phase.QUIESCING):
            if self._attempt.statuses.keys() >= self._fleet.handles.keys() and self._decider.is_done():
                self._prepare()
        elif self.phase is Phase.PREPARING and self._attempt.ready.keys() >= set(self._attempt.members):
            self._go()
        elif self.phase is Phase.TRAINING:
            self._look_after_training()

    def _look_after_training(self) -> None:
        """See to joining workers once all members train again, and to the end."""
        if not self._note_resumed():
            return
        workers = set(self.decision.plan.workers)
        self._farewells.release(workers)
        if self._attempt.finished >= workers:
            self._collect()
        elif self._saved_from is not None:
            return
        elif self._decider.has_answer():
            self._take_up()
        elif self._decider.is_done() and (admitted := self._fleet.admit()):
            self._decider.submit([self._roster.joined(handle.worker) for handle in admitted])

    def _note_resumed(self) -> bool:
        """Whether all members train again: that is the end of a recovery, and a loss that is heard of after it begins the next."""
        if not self._attempt.resumed.keys() >= set(self.decision.plan.workers) - self._attempt.finished:
            return False
        self.recoveries.note(resumed_at=max(self._attempt.resumed.values(), default=None))
        self.recoveries.end(self.decision.plan)
        return True

    def _heed_differences(self, told: Sequence[Differing]) -> None:
        """Go back where nobody can tell which replicas are right, once for all who say so; who is surely wrong ends by itself.

        So where the attempt has been superseded since, too: what differed would be migrated, and compared with nothing.
        """
        for differing in told:
            if differing.unsettled and differing.attempt > self._distrusted_in:
                self._go_back(differing)

    def _go_back(self, differing: Differing) -> None:
        """Leave the step for the newest checkpoint.

        Raises:
            StateLostError: there is nothing to go back to, or the job got no further since it last went back.
        """
        if not self.keeper.is_on or differing.step <= self._distrusted_step:
            raise replicas_differ(differing, self._request.profile, can_go_back=self.keeper.is_on)
        holders = (self._applied or self.decision.plan).holders
        self._log.warning(
            "replicas differ, and nobody can tell which of them is right: test the memory and the processors of their hosts",
            step=differing.step,
            layers=differing.unsettled,
            workers=sorted({worker for layer in differing.unsettled for worker in holders[layer]}),
        )
        self._distrusted_in, self._distrusted_step = differing.attempt, differing.step
        self._preparer.distrusted = differing.unsettled
        self.recoveries.differed(differing.unsettled, time.monotonic())
        if self.phase is not Phase.QUIESCING:
            self._begin_attempt(Phase.QUIESCING)

    def _check_deadlines(self) -> None:
        overdue = self._patience.overdue(self.phase, self._attempt, self.decision, self._applied)
        if overdue is None:
            return
        if overdue.lost:
            self._lose(overdue.lost, overdue.reason)
        else:
            self._regroup(overdue.reason)

    # The messages that move all members.

    def _prepare(self) -> None:
        """Settle the interrupted step, and have all members stage the plan."""
        self.keeper.give_up_incomplete(self._attempt.writing)
        settlement = Settlement.of(self._attempt.statuses.values())
        try:
            planned_at = self._decider.finish()
        except UnavailableError:
            raise
        except KintsugiError as error:
            if not self._has_other_way(error, settlement):
                raise
            return
        self.recoveries.note(quiesced_at=time.monotonic(), planned_at=planned_at)
        self._decision = decision = self._decider.decisions[-1]
        if strangers := [worker for worker in decision.plan.workers if worker not in self._fleet.handles]:
            self._decider.submit([self._roster.failed(worker) for worker in strangers])
            self._regroup(f"the plan names workers that are not here: {', '.join(strangers)}")
            return
        if self._preparer.awaits_checkpoint(decision, self._attempt):
            return
        self._enter(Phase.PREPARING)
        for worker, message in self._preparer.messages(decision, self._attempt, settlement, self._applied).items():
            self._fleet.handles[worker].send(message)

    def _has_other_way(self, error: KintsugiError, settlement: Settlement) -> bool:
        """Ask for something else where there is no plan; False where nothing is left to ask for."""
        if self._keep_leaving(error):
            return True
        if not isinstance(error, StateLostError):
            return self._refuse_joining(error)
        trained = max(self.progress.next_step, settlement.start_step) > self._preparer.begun_step
        if self._applied is not None and trained:
            return False
        self._applied = None
        self._decider.start_over(self._roster.restart(self._fleet.handles))  # from the seed, or where an earlier life had come to
        return True

    def _keep_leaving(self, error: KintsugiError) -> bool:
        """Ask again with those who were to leave: who cannot be done without stays; False where nobody was to."""
        kept = self._farewells.keep()
        if kept:
            self._log.warning("those who were asked to leave stay: no plan without them", workers=kept, error=str(error))
            self._decider.submit([self._roster.staying(worker) for worker in kept])
        return bool(kept)

    def _refuse_joining(self, error: KintsugiError) -> bool:
        """Ask again without those who joined since the last decision: they must not end the job; False where nobody did.

        That they joined stays told, for a service forgets nothing, and so are they told to be gone.
        """
        joined = dict.fromkeys(self._decider.unanswered(EventKind.WORKER_JOINED))
        refused = [worker for worker in joined if worker in self._fleet.handles]
        for worker in refused:
            self._log.warning("refused a worker that joined: no plan with it", worker=worker, error=str(error))
            self._fleet.remove(self._fleet.handles[worker])
        if refused:
            self._decider.submit([self._roster.failed(worker, "refused: no plan with it") for worker in refused])
        return bool(refused)

    def _go(self) -> None:
        """Have all members swap the staged state in: from here on it lies where the plan puts it."""
        self.recoveries.note(
            regrouped_at=max(ready.regrouped_at for ready in self._attempt.ready.values()),
            transferred_at=max(ready.transferred_at for ready in self._attempt.ready.values()),
            generation=self.decision.plan.generation,
            policy=self.decision.plan.policy.value,
        )
        self._enter(Phase.TRAINING)
        for worker in self._attempt.members:
            self._fleet.handles[worker].send(Go(self._attempt.number))
        self._note_applied(self.decision.plan)
        tell_exposure(self.decision.plan, self._request.profile, has_checkpoints=self.keeper.is_on)
        self._preparer.distrusted = ()
        self.keeper.expect(self._attempt.number, self.decision.plan.workers)

    def _note_applied(self, plan: Plan) -> None:
        self._applied = plan
        self._decider.tell_applied(plan.generation)

    def _take_up(self) -> None:
        """A decision that came while the job trains: leave the step for it, unless it changes nothing for those who train."""
        try:
            planned_at = self._decider.finish()
        except UnavailableError as error:  # nothing may happen for long that it would be asked with: somebody waits to leave
            self._log.warning("who joined, leaves, or left without a slot is asked about once more", error=str(error))
            self._decider.submit(())
            return
        except KintsugiError as error:  # told again with the next events
            self._log.warning("those who joined, leave, or left without a slot, change no plan", error=str(error))
            return
        decision, applied = self._decider.decisions[-1], self.decision.plan
        if is_same_work(decision.plan, applied):
            self._decision = decision
            self._note_applied(decision.plan)
            return
        joined = [worker for worker in decision.plan.workers if worker not in applied.workers]
        self.recoveries.changed(joined, self._farewells.leaving(), time.monotonic(), planned_at)
        self._begin_attempt(Phase.QUIESCING)

    def _collect(self) -> None:
        """Ask all holders for digests, and the first holder of each layer for its parameters."""
        self._enter(Phase.COLLECTING)
        plan = self.decision.plan
        for worker in plan.workers:
            layers = tuple(layer for layer in plan.layers_of[worker] if plan.holders[layer][0] == worker)
            self._fleet.handles[worker].send(Collect(self._attempt.number, layers))
