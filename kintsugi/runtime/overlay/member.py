"""A worker's place in an overlay, all parts of it put together: what hears whom, and what is due at the end of a step."""

import statistics
import time
from collections import deque

from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay, WorkerState
from kintsugi.core.overlay_messages import OverlayEventKind, OverlayHeartbeat
from kintsugi.runtime import endings
from kintsugi.runtime.overlay import following, probe, sources
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.committed import Committed, GivenUpError
from kintsugi.runtime.overlay.comparing import DISAGREE, Comparison, DisagreementError, WrongStateError
from kintsugi.runtime.overlay.control import Control
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.election import BallotBox
from kintsugi.runtime.overlay.heard import HeardScheduler
from kintsugi.runtime.overlay.inbox import Inbox
from kintsugi.runtime.overlay.joining import Joiner
from kintsugi.runtime.overlay.leaving import Leaver
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.losses import Losses, failure_id
from kintsugi.runtime.overlay.messages import Channel
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.probe import Prober
from kintsugi.runtime.overlay.reconciling import Reconciler
from kintsugi.runtime.overlay.redundancy import Redundancy
from kintsugi.runtime.overlay.rounds import Rounds
from kintsugi.runtime.overlay.sources import Sources, keys
from kintsugi.runtime.overlay.standby import StandbyOptions
from kintsugi.runtime.overlay.succeeding import Succession
from kintsugi.runtime.overlay.trained import TrainedState

_NUM_TIMES = 16
"""All-reduces whose median time is told."""

_LAST_WORD_SECONDS = 1.0
"""For the scheduler to hear why this worker ends, which the others notice in any case; as long for what it was sending."""

_JOIN_SECONDS = 5.0
"""For threads that send, once their links are closed."""


class Member:
    """Takes part in the reductions of a job that this worker was admitted to."""

    def __init__(
        self,
        links: Links,
        trained: TrainedState,
        scheduler: HeardScheduler,
        overlay: Overlay,
        *,
        box: BallotBox,
        standby: StandbyOptions | None,
        options: OverlayOptions,
        asks_for_links: bool,
    ) -> None:
        """Put the parts together.

        Args:
            links: to its neighbours.
            trained: its replica.
            scheduler: of the job.
            overlay: the one that this worker was admitted with.
            box: its last vote for a scheduler.
            standby: how it stands by for the scheduler, if it does.
            options: times and sizes.
            asks_for_links: whether it may ask for links by itself: its user named no neighbours.
        """
        self._links, self._trained, self._options = links, trained, options
        self._times: deque[float] = deque(maxlen=_NUM_TIMES)
        worker = links.identity.worker
        self._log = get_logger("kintsugi.overlay").bind(worker=worker)
        self._inbox = Inbox(links.acknowledge)
        self.agent = Agent(links.identity, links, self._inbox, scheduler, overlay, options=options)
        losses = Losses(self.agent)
        self._comparison = Comparison(links.identity, trained.vote, options.compare_every_steps)
        self.rounds = Rounds(
            worker,
            links,
            self._inbox,
            self.agent,
            options=options,
            make=trained.memory,
            comparison=self._comparison,
            report_missing=losses.report_missing,
            report_wrong=losses.report_wrong,
        )
        self._joiner = Joiner(
            self.agent, links, self.rounds, trained, options=options, silent_seconds=lambda: scheduler.silent_seconds
        )
        self.sources = Sources(worker, links, options)
        self._prober = Prober(links, options.link_timeout_seconds)
        self._reconciler = Reconciler(self.agent, links, self._prober, losses)
        control = Control()
        self.succession = Succession(self.agent, links, control, scheduler, box=box, standby=standby)
        if asks_for_links:
            self.agent.on_overlay(Redundancy(self.agent).heed)
        self._attach(control)
        endings.before_exit(self.close)

    def begin(self, deadline: Deadline) -> None:
        """Come to hold the state, and to count in the next reduction.

        Raises:
            UnavailableError: it took too long, or nobody is left who holds the state.
            GivenUpError: the others go on without this worker, or somebody asked it to leave.
        """
        needs_state = self.agent.state is not WorkerState.ACTIVE
        self.agent.on_overlay(self.sources.heed)
        self.agent.start(self._beat, lambda: self.rounds.effective.synchronization)
        self._reconciler.start()
        self._links.start()
        if needs_state:
            self._joiner.run(deadline)
            if self.rounds.last is not None:
                self._begin_replications(self.rounds.last)

    def update(self, weight: float) -> Committed:
        """Reduce the gradients, step with their mean, and do what is due at the end of the step.

        Where that fails the others have a step that this worker lacks: it takes part no more.
        """
        try:
            self._require_counted()
            own = self._trained.gathered(weight) if weight else None
            began = time.monotonic()
            committed = self.rounds.reduce(own, weight)
        except (WrongStateError, DisagreementError) as error:
            self._end(error)
            raise
        self._times.append(time.monotonic() - began)
        try:
            self._commit(committed)
        except BaseException as error:
            why = type(error).__name__
            self.agent.give_up(f"step {self._trained.steps} failed here ({why}), which the others have; join again")
            self.close()
            raise
        return committed

    def _require_counted(self) -> None:
        """Require that the others count on this worker.

        Raises:
            DisagreementError: it holds something else than others do, and nobody can tell who is right.
            GivenUpError: they go on without it for another reason.
        """
        self._comparison.require_agreement()
        if self.agent.given_up:
            raise GivenUpError(self.agent.given_up, field="worker", value=self.agent.identity.worker)

    def _end(self, error: WrongStateError | DisagreementError) -> None:
        """Tell why this worker is lost, and with whom, and take part no more."""
        if self.agent.closing.is_set():
            return
        own, lives = self.agent.identity, {}
        if isinstance(error, DisagreementError) and error.lives:
            lives = error.lives
            for neighbor in self._links.up:
                self._links.tell(neighbor, DISAGREE, {"number": error.number, "workers": lives})
        self._links.await_sent(_LAST_WORD_SECONDS)  # the others are to hear what this one has heard
        self._log.error("holds what it must not go on from, and ends", error=str(error))
        others = {worker: incarnation for worker, incarnation in lives.items() if worker != own.worker}
        name = failure_id(own.worker, own.incarnation)
        kind = OverlayEventKind.WORKER_FAILED
        self.agent.teller.tell(kind, name, interrupted=True, detail=error.message, disagreeing=others)
        self.agent.await_overlay(lambda _: self.agent.state is WorkerState.FAILED, _LAST_WORD_SECONDS)
        self.agent.give_up(error.message)
        self.close()

    def leave(self, deadline: Deadline) -> None:
        """Go once the others reduce without this worker.

        Raises:
            WrongStateError: it holds something else than most.
            DisagreementError: workers hold different states, and nobody can tell whose is right.
        """
        Leaver(self.agent, self._links, self.rounds).run(lambda: self.update(0.0), deadline)
        self._comparison.require_agreement()

    def close(self) -> None:
        """End everything at once, links included."""
        self._inbox.close()
        for part in (self.succession, self._reconciler, self.sources, self._links, self.agent):
            part.close()
        self.sources.await_end(_JOIN_SECONDS)
        endings.is_over(self.close)

    def _attach(self, control: Control) -> None:
        """Have everybody hear what is meant for him."""
        control.on(sources.FETCH, lambda worker, message: self.sources.fetch(worker, message.fields))
        control.on(sources.RELEASE, lambda worker, message: self.sources.release(worker, message.fields))
        control.on(sources.GONE, self._joiner.hear)
        control.on(following.FOLLOW, lambda worker, message: self.sources.follow(worker, message.fields))
        control.on(following.ELSEWHERE, lambda worker, message: self.sources.spare(worker, message.fields))
        control.on(following.FORGOTTEN, self._joiner.pursuit.hear_forgotten)
        control.on(DISAGREE, self._comparison.hear)
        self.agent.on_overlay(self._comparison.heed)
        for kind in probe.KINDS:
            control.on(kind, self._prober.hear)
        self._links.hear(Channel.CONTROL, control.hear)
        self._links.hear(Channel.SHARDS, self._joiner.hear)
        self._links.hear(Channel.ROUNDS, self._joiner.pursuit.hear)
        self._links.hear(Channel.REDUCTION, self._inbox.put)

    def _commit(self, committed: Committed) -> None:
        """Apply a reduction; keep it for those that join, and copy the state for those that begin to."""
        self.sources.finish_copies()
        if committed.vector is not None:
            self._trained.apply(committed.vector)
        else:
            self._trained.skip()
        self.sources.keep(committed, self.rounds.members)
        self._begin_replications(committed)
        if committed.agreed is not None:
            self._reconciler.reconcile(self.agent.overlay)

    def _begin_replications(self, committed: Committed) -> None:
        """Those that took effect with a reduction: all sources copy the state after the same one."""
        self.sources.begin(self.rounds.at_boundary, keys(self.agent.overlay), committed.which, self._trained.packed)

    def _beat(self) -> OverlayHeartbeat:
        known, own = self.agent.overlay, self._links.identity
        return OverlayHeartbeat(
            worker=own.worker,
            incarnation=own.incarnation,
            generation=known.generation,
            term=known.term,
            step=self._trained.steps,
            synchronization_seconds=statistics.median(self._times) if self._times else None,
            received_bytes=self._joiner.received_bytes or None,
        )
