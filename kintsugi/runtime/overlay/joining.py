"""How a worker comes to take part: it asks to join, fetches the state from its neighbours, and catches up with the others."""

import threading
from collections import deque

import structlog

from kintsugi.core.overlay import Overlay, OverlayEventKind, Replication, WorkerState
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.arrival import Arrival
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.inbox import Inbox
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.ranges import Ranges
from kintsugi.runtime.overlay.rounds import Committed, GivenUpError, LostTrackError, Rounds
from kintsugi.runtime.overlay.sources import FETCH
from kintsugi.runtime.overlay.trained import TrainedState

_LISTEN_SECONDS = 1.0


class Joiner:
    """The joining side of one worker, in the thread that constructs its coordinator."""

    def __init__(
        self, agent: Agent, links: Links, inbox: Inbox, rounds: Rounds, trained: TrainedState, *, options: OverlayOptions
    ) -> None:
        self._agent, self._links, self._inbox, self._rounds = agent, links, inbox, rounds
        self._trained, self._options = trained, options
        self._waiting: deque[Committed] = deque()
        self._arrival: Arrival | None = None
        self._is_loaded = False
        self._given_up_generation = -1
        self._base = 0
        self._lock = threading.Lock()
        self._log = structlog.get_logger("kintsugi.overlay").bind(worker=agent.identity.worker)

    @property
    def received_bytes(self) -> int:
        """Of the state so far."""
        arrival = self._arrival
        return 0 if arrival is None else arrival.received_bytes

    def hear(self, worker: str, message: Message) -> None:
        """Take what a source sent."""
        generation = int(message.fields["replication"])
        with self._lock:
            if self._arrival is None or generation > self._arrival.generation:
                self._arrival, self._is_loaded = Arrival(generation, self._inbox.wake), False
            arrival = self._arrival
        arrival.take(worker, message)

    def run(self, deadline: Deadline) -> None:
        """Come to hold the state and to count in the next reduction.

        Raises:
            UnavailableError: it took too long.
            GivenUpError: the scheduler does not count on this worker any more.
        """
        self._agent.on_overlay(lambda _: self._inbox.wake())
        while not (self._rounds.counts and self._is_loaded):
            if self._agent.given_up:
                raise GivenUpError(self._agent.given_up, field="worker", value=self._agent.identity.worker)
            deadline.require("the state did not arrive")
            try:
                heard = self._rounds.listen(min(_LISTEN_SECONDS, deadline.left_seconds))
            except LostTrackError as error:
                self._ask_again(str(error))
                continue
            if heard is not None:
                self._keep(heard)
            self._go_on()

    def _keep(self, heard: Committed) -> None:
        self._waiting.append(heard)
        if len(self._waiting) > self._options.max_waiting_rounds and not self._is_loaded:
            self._ask_again(f"{len(self._waiting)} reductions went by before the state was complete")

    def _go_on(self) -> None:
        """Do what can be done with what has arrived."""
        overlay = self._agent.overlay
        if self._agent.state is WorkerState.STANDBY:
            self._connect(overlay)
        arrival, wanted = self._arrival, _replication(overlay, self._agent.identity.worker)
        if self._is_loaded:
            self._apply()
        elif arrival is None or wanted is None or arrival.generation != wanted.generation or self._is_given_up(arrival):
            return
        elif arrival.failure:
            self._ask_again(arrival.failure)
        elif arrival.is_complete:
            self._load(arrival)
        else:
            arrival.reconcile(wanted, self._fetch)

    def _is_given_up(self, arrival: Arrival) -> bool:
        return arrival.generation <= self._given_up_generation

    def _load(self, arrival: Arrival) -> None:
        assert arrival.number is not None
        first = next((one.number for one in self._waiting if one.number > arrival.number), arrival.number + 1)
        if first != arrival.number + 1:
            self._ask_again(f"the state is that after {arrival.number} reductions, and the first one heard then is {first}")
            return
        self._rounds.begin_at(arrival.number)
        self._trained.load(arrival.state)
        self._is_loaded, self._base = True, arrival.number
        self._apply()
        self._agent.teller.tell(
            OverlayEventKind.STATE_REPLICATED,
            f"replicated-{self._agent.identity.worker}-{self._agent.identity.incarnation}-{arrival.generation}",
            step=self._trained.steps,
            digest=arrival.proof(),
        )

    def _apply(self) -> None:
        """Catch up with what was heard."""
        while self._waiting:
            heard = self._waiting.popleft()
            if heard.vector is not None and heard.number > self._base:
                self._trained.apply(heard.vector)

    def _ask_again(self, why: str) -> None:
        """Give up the replication under way for one of a later step."""
        self._waiting.clear()
        self._rounds.forget()
        self._is_loaded = False
        own = self._agent.identity
        known = _replication(self._agent.overlay, own.worker)
        generation = 0 if known is None else known.generation
        if generation > self._given_up_generation:
            self._log.info("asks for another replication", why=why)
        self._given_up_generation = max(generation, self._given_up_generation)
        self._agent.teller.tell(
            OverlayEventKind.REPLICATION_REQUESTED, f"again-{own.worker}-{own.incarnation}-{generation}", detail=why
        )

    def _fetch(self, source: str, ranges: Ranges) -> None:
        arrival = self._arrival
        if arrival is not None:
            self._links.tell(source, FETCH, {"replication": arrival.generation, "ranges": ranges})

    def _connect(self, overlay: Overlay) -> None:
        """Ask for links to workers that are active: this one stands by, connected to nobody."""
        own = self._agent.identity
        for other in active_workers(overlay, own.worker)[: self._options.max_neighbors]:
            between = tuple(sorted((own.worker, other)))
            self._agent.teller.tell(
                OverlayEventKind.LINK_CONNECTED, f"wanted-{own.incarnation}-{'-'.join(between)}-{overlay.generation}", link=between
            )


def active_workers(overlay: Overlay, worker: str) -> list[str]:
    """Those besides `worker` that hold the state."""
    return [one.id for one in overlay.workers if one.state is WorkerState.ACTIVE and one.id != worker]


def _replication(overlay: Overlay, worker: str) -> Replication | None:
    return next((one for one in overlay.replications if one.joiner == worker), None)
