"""The agent's part where workers govern themselves: it starts them, hears what they do, and collects what they trained.

It decides nothing: who is lost, what runs then and from when on is the workers' own affair, and none of it waits for the agent.
Processes that are stopped it ends: the others then find out sooner, and another process can take their place. So it does with
one of two that cannot reach each other, once nothing moves for that.
"""

import time

from kintsugi.core.decision import Decision
from kintsugi.core.errors import ConflictError, KintsugiError, ReconfigurationError, StateLostError, UnavailableError, some
from kintsugi.core.logs import get_logger
from kintsugi.runtime.checkpoints.keeper import Keeper
from kintsugi.runtime.control.attempt import Attempt, Phase, replicas_differ
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.decisions import JobRequest
from kintsugi.runtime.control.exposure import tell_exposure
from kintsugi.runtime.control.fleet import ENDED, Fleet
from kintsugi.runtime.control.hearing import Hearing
from kintsugi.runtime.control.patience import dismiss_unstarted
from kintsugi.runtime.control.preparation import is_same_work
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.control.recovery import Recoveries
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.messages import Collect, FromWorker, Reached, Stop
from kintsugi.runtime.options import AgentOptions
from kintsugi.runtime.processes import WorkerHandle
from kintsugi.runtime.result import RunResult, run_result
from kintsugi.runtime.selfgoverned.account import Account
from kintsugi.runtime.selfgoverned.course import Course, first_course
from kintsugi.runtime.selfgoverned.cuts import Cuts
from kintsugi.runtime.selfgoverned.foresight import Foresight
from kintsugi.runtime.selfgoverned.leasing import HeldLeases
from kintsugi.runtime.selfgoverned.notes import Reachable
from kintsugi.runtime.selfgoverned.reception import Reception
from kintsugi.runtime.selfgoverned.words import Adopted, Agreed, Asked, Begin, FromGovernor, Here, Leave, Refused, Renew, Stays

_STEPS = 10
"""Of the longest step that was seen or estimated, beyond which a job in which nothing happens counts as stuck."""


class Overseer:
    """Of one job; stands where an agent that decides has its conductor."""

    def __init__(self, request: JobRequest, fleet: Fleet, decider: Decider, options: AgentOptions) -> None:
        self._request = self._founding = request
        self._fleet = fleet
        self._decider = decider
        self._options = options
        self._log = get_logger("kintsugi.runtime")
        self._roster = Roster(request)
        self._reachable: dict[str, Reachable] = {}
        """Those that the job starts with."""
        self._reception = Reception(fleet, self._reachable)
        self._attempts: dict[int, Attempt] = {}
        self._leases = HeldLeases(decider.tell_agreed)
        self._decisions: list[Decision] = []
        self._course: Course | None = None
        """The latest generation that a worker told of; null before the ring was founded."""
        self._moved_at = time.monotonic()
        self._renewed_at: float | None = None
        """When the latest step was told of, where no other has been done since the members connected anew for that."""
        self._cuts = Cuts(fleet, options.probe_timeout_seconds)
        self._released: set[WorkerHandle] = set()
        """Those that were told to end, for others train with their state."""
        self.phase = Phase.STARTING
        self.progress = Progress()
        self.recoveries = Recoveries()
        self._account = Account(fleet, self._roster, self.recoveries)
        self.keeper = Keeper(options.worker.run, self.progress, compares=options.worker.compares, presence=fleet.presence)
        self._foresight = Foresight(decider.ahead)
        self._hearing = Hearing(fleet, decider, self.progress, self.recoveries, self.keeper)

    @property
    def decision(self) -> Decision:
        """The decision that the workers carry out, or move to."""
        return self._course.decision if self._course is not None else self._decider.decisions[-1]

    def invite(self, worker: str, host: str | None) -> None:
        """Start a process for a worker that comes back or is new; the others agree on it once it knows its model."""
        self._fleet.invite(worker)
        self._roster.live(worker, host)
        self._reception.expect(worker, host)

    def drain(self, worker: str) -> None:
        """Have a worker leave once others have its state."""
        self._fleet.handles[worker].send(Leave())

    def conclude(self) -> None:
        """End the job early."""
        message = "workers that govern themselves train to the end: say membership='agent' to end a job early"
        raise ConflictError(message, field="membership", value="ring")

    def save(self) -> None:
        """Nothing: such workers write no checkpoints."""

    @property
    def is_saving(self) -> bool:
        """They never do."""
        return False

    @property
    def has_saved(self) -> bool:
        """So they never have."""
        return False

    def start(self) -> None:
        """Get the first decision, and start all workers."""
        self._decider.start(self._request)
        self._fleet.start([worker.id for worker in self._request.cluster.workers])

    def is_done(self) -> bool:
        """Whether everything is trained and collected."""
        return self.phase is Phase.COLLECTING and set(self.decision.plan.workers) <= self._attempt.collected.keys()

    def result(self) -> RunResult:
        """What came of the run, once it is done."""
        self.keeper.conclude()
        self.close()
        return run_result(self.progress, self._attempt.collected, self.recoveries.all, self._decisions, self.keeper)

    def close(self) -> None:
        """End every thread."""
        self._foresight.close()
        self.keeper.close()

    def poll(self) -> None:
        """Take in one batch of messages and ends, and do what follows from them."""
        news = self._fleet.listen(self._decider.wake, self._options.worker.heartbeat_seconds)
        for handle, message in news.messages:
            self._hear(message, handle)
        self._fleet.hear_running(self._options)
        for handle in dict.fromkeys([*news.ended, *self._fleet.frozen(self._options)]):
            self._bury(handle)
        self._require_life()
        self._require_agreement()
        for plans in self._foresight.made():
            for handle in self._fleet.handles.values():
                handle.send(plans)
        if self._course is None:
            self._found()
        else:
            self._follow()
            self._compare()
            self._mend_links(self._course)

    # What it hears.

    @property
    def _attempt(self) -> Attempt:
        """What was heard about the latest generation."""
        return self._attempt_at(self._course.generation + 1 if self._course is not None else 0)

    def _attempt_at(self, number: int) -> Attempt:
        return self._attempts.setdefault(number, Attempt(number))

    def _hear(self, message: FromWorker | FromGovernor, handle: WorkerHandle) -> None:
        if isinstance(message, Reached):  # an answer is no move
            self._cuts.take(handle.worker, message)
            return
        self._moved_at = time.monotonic()
        if isinstance(message, Here):
            self._note_address(handle, message.at)
        elif isinstance(message, Adopted):
            self._adopt(message)
        elif isinstance(message, Agreed):
            self._leases.hold(message.agreement)
        elif isinstance(message, Asked):
            handle.send(self._leases.answer(message))
        elif isinstance(message, Refused):
            self._reception.refuse(message)
        elif isinstance(message, Stays):
            self._log.warning("asked to leave, and stays: no plan without it", worker=handle.worker, error=message.reason)
        else:
            self._hearing.hear(message, handle, self._attempt_at(getattr(message, "attempt", 0)))

    def _note_address(self, handle: WorkerHandle, at: Reachable) -> None:
        if self._fleet.counts_on(handle):
            self._reachable[handle.worker] = at
        else:
            self._reception.arrived(handle.worker, at)

    def _adopt(self, adopted: Adopted) -> None:
        """The workers agreed on a generation; one of them tells, and perhaps none told of the one before."""
        course, before = adopted.course, self._course
        if before is not None and course.generation <= before.generation:
            return
        self._course = course
        self._decisions.append(course.decision)
        self.phase = Phase.PREPARING
        if before is None:
            self._cuts.looked_at = time.monotonic()
            return
        self._reception.begin(course)
        self._account.note(before, adopted)

    def _bury(self, handle: WorkerHandle, why: str = "") -> None:
        """A process ended, or has to; who goes on without it finds that out by itself."""
        if not self._fleet.dismiss(handle, ENDED) and self._fleet.counts_on(handle):
            if self._has_gone(handle):
                self._fleet.remove(handle)
            else:
                self._fleet.lose(handle, why)
            self._account.buried(handle, why or handle.ending)
            if self._course is None:
                self._decider.submit([self._roster.failed(handle.worker, handle.ending)])

    def _has_gone(self, handle: WorkerHandle) -> bool:
        """Whether a process that ended had been let go, and nobody has come to need it since: nothing is lost with it."""
        is_needed = self._course is not None and handle.worker in self._course.staying
        return handle in self._released and not is_needed

    def _require_life(self) -> None:
        """End a job that cannot go on.

        Raises:
            UnavailableError: a worker did not start in time.
            WorkerError: none could be started.
            ReconfigurationError: nobody is left, or nothing happens any more, even over new connections.
        """
        now, options = time.monotonic(), self._options
        still_seconds = self._seconds_since(self._moved_at)
        self._fleet.require_some_able(len(self._request.cluster.workers))
        if not self._fleet.handles:
            raise ReconfigurationError("no worker is left", field="workers", value=[])
        late = [h.worker for h in self._fleet.handles.values() if h.worker not in self._reachable]
        limit = options.start_timeout_seconds
        dismiss_unstarted(self._fleet, limit, now)
        if self._course is None and late and still_seconds > limit:
            raise UnavailableError(f"{some(late)} did not start within {limit:g} s", field="workers", value=late)
        limit = self._patience_seconds(options.prepare_timeout_seconds)
        if still_seconds > limit:
            self._try_again(f"nothing has happened for {limit:g} s")

    def _require_agreement(self) -> None:
        """End a job whose replicas differ where nobody can tell which is right.

        Raises:
            StateLostError: so it is.
        """
        for attempt in self._attempts.values():
            if attempt.differing is not None and attempt.differing.unsettled:
                raise replicas_differ(attempt.differing, self._request.profile, can_go_back=self.keeper.is_on)

    def _try_again(self, reason: str) -> None:
        """Have the members connect anew, for what they said to each other may be lost with their connections alone.

        Raises:
            ReconfigurationError: they did so already, and have done no step since.
        """
        members = [worker for worker in self._course.members if worker in self._fleet.handles] if self._course is not None else []
        if not members or self.phase is Phase.COLLECTING or self._renewed_at == self.progress.moved_at:
            raise ReconfigurationError(reason, field="generation", value=self._generation)
        self._renewed_at, self._moved_at = self.progress.moved_at, time.monotonic()
        self._log.warning("the same workers try again over new connections", generation=self._generation, reason=reason)
        self._fleet.handles[members[0]].send(Renew(self._generation, reason))

    def _patience_seconds(self, least: float) -> float:
        """For anything to happen: `least` beyond many steps, and twice the time in which state moves."""
        step = max(self.progress.longest_seconds, self.decision.estimate.iteration_seconds)
        return least + _STEPS * step + 2 * self.decision.migration.makespan_seconds

    def _seconds_since(self, moved_at: float) -> float:
        """Without those in which this very process was away, paused as a rule with all its workers."""
        return time.monotonic() - max(moved_at, self._fleet.back_at)

    @property
    def _generation(self) -> int:
        return self._course.generation if self._course is not None else -1

    # What it does.

    def _found(self) -> None:
        """Have the workers begin, once all that are left can be reached."""
        if not self._reachable.keys() >= self._fleet.handles.keys() or not self._decider.is_done():
            return
        try:
            self._decider.finish()
        except StateLostError:  # every layer starts from its seed, whoever holds it
            self._founding = self._roster.restart(self._fleet.handles)
            self._decider.start_over(self._founding)
            return
        decision = self._decider.decisions[-1]
        alive = tuple(worker.id for worker in self._founding.cluster.workers if worker.id in self._fleet.handles)
        course = first_course(self._founding, alive, decision)
        addresses = {worker: self._reachable[worker] for worker in alive}
        for handle in self._fleet.handles.values():
            handle.send(Begin(course, addresses))
        self._adopt(Adopted(course=course, noticed_at=self._moved_at, agreed_at=time.monotonic()))

    def _follow(self) -> None:
        """Note how far the workers are, and collect once they are through."""
        attempt, workers = self._attempt, set(self.decision.plan.workers)
        if self.phase is Phase.COLLECTING or not attempt.resumed.keys() >= workers - attempt.finished:
            return
        if self.phase is Phase.PREPARING:
            self.phase = Phase.TRAINING
            self._note_times(attempt)
        if attempt.finished >= workers:
            self._collect()
        elif self._course is not None:
            self._reception.ask(self._course)

    def _note_times(self, attempt: Attempt) -> None:
        self.recoveries.note(
            regrouped_at=max((ready.regrouped_at for ready in attempt.ready.values()), default=None),
            transferred_at=max((ready.transferred_at for ready in attempt.ready.values()), default=None),
            resumed_at=max(attempt.resumed.values(), default=None),
        )
        self.recoveries.end(self.decision.plan)
        tell_exposure(self.decision.plan, self._request.profile, has_checkpoints=False)
        if self._course is not None:
            self._foresight.look_ahead(self._course)
        if len(self._decisions) == 1:
            self._decider.tell_applied(self.decision.plan.generation)
        if untold := self._account.untold():
            self._decider.submit(untold)
        self.keeper.expect(attempt.number, self.decision.plan.workers)
        self._release()

    def _release(self) -> None:
        """Let those go whose state others have, now that these train with it."""
        leaving = self._course.membership.draining if self._course is not None else ()
        for worker in leaving:
            handle = self._fleet.handles.get(worker)
            if handle is None or worker in self.decision.plan.workers:
                continue
            self._account.let_go(worker)
            if handle not in self._released:
                self._log.info("a worker leaves; its state is handed over", worker=worker)
                self._released.add(handle)
            handle.send(Stop())

    def _compare(self) -> None:
        """Whoever decides knows by now what the workers did, and would have done the same: a plan follows from what happened."""
        if not self._decider.has_answer():
            return
        try:
            self._decider.finish()
        except UnavailableError as error:
            self._log.warning(f"{self._who} does not know yet what its job's workers did; it is told once more", error=str(error))
            self._decider.submit(())
            return
        except KintsugiError as error:  # told again with the next events
            self._log.warning(f"{self._who} comes to no plan yet for what its job's workers did, who go on", error=str(error))
            return
        plan = self._decider.decisions[-1].plan
        if is_same_work(plan, self.decision.plan):
            self._decider.tell_applied(plan.generation)
        else:
            reason = f"the workers agreed on another plan by themselves, of policy {self.decision.plan.policy.value}: it runs"
            self._log.info(f"the workers' own plan goes on, and not that of {self._who}", generation=plan.generation, reason=reason)
            self._decider.tell_rejected(plan.generation, reason)

    @property
    def _who(self) -> str:
        """Decides beside the workers."""
        return "the agent" if self._decider.ahead is None else "the service"

    def _mend_links(self, course: Course) -> None:
        """Where no step is done for long, see who is cut off from whom, and end those without whom all others reach each other."""
        moved_at = max(self.progress.moved_at, self._cuts.looked_at)
        if self._cuts.is_asking:
            for handle in self._cuts.cut_off(course.applied):
                self._bury(handle, "cut off from other workers")
        elif self.phase is not Phase.COLLECTING and (
            self._seconds_since(moved_at) > self._patience_seconds(self._options.stall_timeout_seconds)
        ):
            self._cuts.ask(course.members)

    def _collect(self) -> None:
        """Ask all holders for digests, and the first holder of each layer for its parameters."""
        self.phase = Phase.COLLECTING
        plan = self.decision.plan
        for worker in plan.workers:
            layers = tuple(layer for layer in plan.layers_of[worker] if plan.holders[layer][0] == worker)
            if (handle := self._fleet.handles.get(worker)) is not None:
                handle.send(Collect(self._attempt.number, layers))
