"""How a worker comes to take part: it asks to join, fetches the state from its neighbours, and catches up with the others."""

import threading
import time
from collections.abc import Callable
from functools import partial

from kintsugi.core.errors import KintsugiError, ReconfigurationError
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay, Replication, WorkerState
from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.arrival import Arrival
from kintsugi.runtime.overlay.committed import Committed, GivenUpError, LostTrackError
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.pursuit import Pursuit
from kintsugi.runtime.overlay.ranges import Ranges
from kintsugi.runtime.overlay.rounds import Rounds
from kintsugi.runtime.overlay.sources import FETCH, RELEASE
from kintsugi.runtime.overlay.trained import TrainedState
from kintsugi.runtime.overlay.vigil import Vigil
from restorer.packing import PackedState

_LOOK_SECONDS = 1.0
_ASK_SECONDS = 1.0
"""Between two wishes for a link with one worker: that it cannot be reached is news, and would lead to the next wish at once."""
_BALANCE_SECONDS = 0.1
"""While the state arrives: sources that turn out slow are helped by others."""
_GOODBYE_SECONDS = 1.0
"""For the scheduler to hear that this worker goes; it notices by its silence, too."""


class Joiner:
    """The joining side of one worker, in the thread that constructs its coordinator."""

    def __init__(
        self,
        agent: Agent,
        links: Links,
        rounds: Rounds,
        trained: TrainedState,
        *,
        options: OverlayOptions,
        silent_seconds: Callable[[], float],
    ) -> None:
        """`silent_seconds` says for how long the scheduler has not answered."""
        self._silent_seconds = silent_seconds
        self._agent, self._links, self._rounds, self._trained, self._options = agent, links, rounds, trained, options
        self._news = threading.Event()
        self.pursuit = Pursuit(agent, links, trained.memory, options, self._news.set)
        self._arrival: Arrival | None = None
        self._loaded: Arrival | None = None
        self._given_up_generation = -1
        self._told_why = ""
        self._asked_at: dict[str, float] = {}
        self._received_bytes = 0
        self._is_over = False
        self._lock = threading.Lock()
        self._log = get_logger("kintsugi.overlay").bind(worker=agent.identity.worker)

    @property
    def received_bytes(self) -> int:
        """Of the state so far."""
        arrival = self._arrival
        return self._received_bytes if arrival is None else arrival.received_bytes

    def hear(self, worker: str, message: Message) -> None:
        """Take what a source sent; a state that is loaded stays, whatever replication was planned while it was."""
        generation = int(message.fields["replication"])
        with self._lock:
            if self._is_over:
                return
            if self._arrival is None or generation > self._arrival.generation:
                self._arrival = Arrival(generation, self._news.set)
            arrival = self._arrival
        arrival.take(worker, message)

    def run(self, deadline: Deadline) -> None:
        """Come to hold the state and to count in the next reduction.

        Raises:
            UnavailableError: it took too long, or nobody is left who holds the state.
            GivenUpError: the scheduler does not count on this worker any more, or somebody asked it to leave.
            ReconfigurationError: the others train another model or in another way, or cannot send their state.
        """
        self._agent.on_overlay(lambda _: self._news.set())
        with self._vigil() as vigil:
            try:
                self._come_to_count(deadline)
            except KintsugiError:  # of what was cut short
                if vigil.error is None:
                    raise
        if vigil.error is not None:
            self._say_goodbye()
            raise vigil.error

    def _vigil(self) -> Vigil:
        return Vigil(
            self._agent,
            options=self._options,
            counts=self._is_counted_on,
            awaited=self._awaited,
            silent_seconds=self._silent_seconds,
            wake=self._news.set,
        )

    def _come_to_count(self, deadline: Deadline) -> None:
        """Do what can be done with every piece of news, until this worker takes part."""
        while True:
            self._news.clear()
            if self._agent.given_up:
                raise GivenUpError(self._agent.given_up, field="worker", value=self._agent.identity.worker)
            deadline.require("the state did not arrive")
            self._go_on()
            if self._is_through:
                self._end()
                return
            patience = _LOOK_SECONDS if self._is_loaded or self._arrival is None else _BALANCE_SECONDS
            self._news.wait(min(patience, deadline.left_seconds))

    def _end(self) -> None:
        """Let go of the state as it came: the model holds it."""
        self.pursuit.end()
        with self._lock:
            self._received_bytes, self._is_over = self.received_bytes, True
            self._arrival = self._loaded = None

    def _is_counted_on(self) -> bool:
        """Whether the others wait for this worker in a reduction, or will from a boundary on that is decided."""
        return self._rounds.counts or self._agent.identity.worker in self._agent.overlay.synchronization.order

    def _say_goodbye(self) -> None:
        """Let the scheduler know that this worker goes before it took part: nobody is to wait for it."""
        own = self._agent.identity
        self._agent.teller.tell(OverlayEventKind.WORKER_LEFT, f"left-{own.worker}-{own.incarnation}")
        self._agent.await_overlay(lambda _: self._agent.state is WorkerState.FAILED, _GOODBYE_SECONDS)

    def _awaited(self) -> str:
        """What this worker waits for, in words."""
        overlay, own = self._agent.overlay, self._agent.identity.worker
        wanted = _replication(overlay, own)
        if self._is_loaded:
            return "a reduction that counts on it"
        if wanted is not None:
            sources = ", ".join(share.source for share in wanted.shares)
            return f"the state from {sources}: {self.received_bytes} of about {wanted.state_bytes} bytes are here"
        neighbors = ", ".join(overlay.neighbors(own)) or "an active worker"
        return f"a link with {neighbors}, connected and measured"

    @property
    def _is_loaded(self) -> bool:
        """Whether this worker holds a state that it can go on from."""
        return self._loaded is not None

    @property
    def _is_through(self) -> bool:
        """Whether this worker counts in the next reduction, and holds what goes into it."""
        rounds = self._rounds
        return self._is_loaded and rounds.counts and not rounds.is_behind and not rounds.is_called_off

    def _go_on(self) -> None:
        """Do what can be done with what has arrived."""
        handed_on = self._rounds.keep_up()
        if handed_on is not None:
            self._apply(handed_on)
        overlay = self._agent.overlay
        if self._agent.state is WorkerState.STANDBY:
            self._connect(overlay)
        try:
            if not self._is_loaded:
                self._fetch_state(overlay)
            self._pursue(overlay)
        except LostTrackError as error:
            self._ask_again(str(error))

    def _pursue(self, overlay: Overlay) -> None:
        """Go after the others.

        Raises:
            LostTrackError: nobody can tell what this worker misses.
        """
        arrival = self._loaded or self._arrival
        if arrival is None or arrival.at is None or self._is_given_up(arrival):
            return
        wanted = _replication(overlay, self._agent.identity.worker)
        if self._is_loaded:
            self._catch_up()
            if self._rounds.is_astray:
                raise LostTrackError("what it was told last was summed again by the others")
        elif wanted is None or wanted.generation != arrival.generation:  # not known yet, or planned anew
            return
        if not self._is_through and not self._rounds.is_called_off:
            self.pursuit.go_on(overlay, arrival, self._rounds.number if self._is_loaded else arrival.at.number)

    def _fetch_state(self, overlay: Overlay) -> None:
        arrival, wanted = self._arrival, _replication(overlay, self._agent.identity.worker)
        if arrival is None or wanted is None or arrival.generation != wanted.generation or self._is_given_up(arrival):
            return
        self.pursuit.remember(wanted)
        if arrival.refusal:
            raise ReconfigurationError(arrival.refusal, field="state")
        if arrival.failure:
            self._ask_again(arrival.failure)
        elif (state := arrival.finish()) is not None:
            self._load(arrival, state)
        else:
            arrival.reconcile(wanted, partial(self._ask_source, FETCH), partial(self._ask_source, RELEASE))

    def _is_given_up(self, arrival: Arrival) -> bool:
        return arrival.generation <= self._given_up_generation

    def _load(self, arrival: Arrival, state: PackedState) -> None:
        assert arrival.at is not None
        self._rounds.begin_at(arrival.at)
        self._trained.load(state)
        self._loaded = arrival
        self._catch_up()
        self._agent.teller.tell(
            OverlayEventKind.STATE_REPLICATED,
            f"replicated-{self._agent.identity.worker}-{self._agent.identity.incarnation}-{arrival.generation}",
            step=self._trained.steps,
            digest=arrival.proof(),
        )

    def _catch_up(self) -> None:
        """Apply what was heard, unless it was handed on in a settlement meanwhile, or is not what that came to."""
        while (heard := self.pursuit.pop(self._rounds.counts_after)) is not None:
            if heard.number > self._rounds.number and not self._rounds.is_void(heard):
                self._rounds.follow(heard)
                self._apply(heard)

    def _apply(self, committed: Committed) -> None:
        if committed.vector is not None:
            self._trained.apply(committed.vector)

    def _ask_again(self, why: str) -> None:
        """Give up the replication under way for one of a later step; the others may count on this worker already."""
        is_counted_on, given_up = self._is_loaded, self._loaded or self._arrival
        self._loaded = None
        self.pursuit.end()
        own = self._agent.identity
        known = _replication(self._agent.overlay, own.worker)
        generation = max(one.generation for one in (given_up, known) if one is not None)
        if generation > self._given_up_generation and why != self._told_why:  # where nobody trains, once a second
            self._log.info("asks for another replication", why=why)
            self._told_why = why
        self._given_up_generation = max(generation, self._given_up_generation)
        self._agent.teller.tell(
            OverlayEventKind.REPLICATION_REQUESTED,
            f"again-{own.worker}-{own.incarnation}-{generation}",
            detail=why,
            interrupted=is_counted_on,
            restarts=None,
        )

    def _ask_source(self, kind: str, source: str, ranges: Ranges) -> None:
        arrival = self._arrival
        if arrival is not None:
            self._links.tell(source, kind, {"replication": arrival.generation, "ranges": ranges})

    def _connect(self, overlay: Overlay) -> None:
        """Ask for links to workers that are active: this one stands by, connected to nobody."""
        own, now = self._agent.identity, time.monotonic()
        for other in active_workers(overlay, own.worker)[: self._options.max_neighbors]:
            if now - self._asked_at.get(other, -_ASK_SECONDS) < _ASK_SECONDS:
                continue
            self._asked_at[other] = now
            between = tuple(sorted((own.worker, other)))
            self._agent.teller.tell(
                OverlayEventKind.LINK_CONNECTED, f"wanted-{own.incarnation}-{'-'.join(between)}-{overlay.generation}", link=between
            )


def active_workers(overlay: Overlay, worker: str) -> list[str]:
    """Those besides `worker` that hold the state."""
    return [one.id for one in overlay.workers if one.state is WorkerState.ACTIVE and one.id != worker]


def _replication(overlay: Overlay, worker: str) -> Replication | None:
    return next((one for one in overlay.replications if one.joiner == worker), None)
