"""A member of a ring: the thread that feeds `transition` with what its sockets tell, and does what comes of it."""

import queue
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, suppress
from types import TracebackType

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.ring.asking import Asking
from kintsugi.runtime.ring.callbacks import Callbacks
from kintsugi.runtime.ring.connection import Address
from kintsugi.runtime.ring.lease import Lease
from kintsugi.runtime.ring.links import Links
from kintsugi.runtime.ring.messages import Agreement, Hello, Joiner
from kintsugi.runtime.ring.options import RingOptions
from kintsugi.runtime.ring.signals import (
    Action,
    AskLease,
    Committed,
    Decided,
    Found,
    Install,
    Joining,
    LeaveOut,
    Lost,
    Probe,
    Record,
    Renewing,
    Send,
    Signal,
)
from kintsugi.runtime.ring.state import State, following
from kintsugi.runtime.ring.transition import transition

_CLOSE_SECONDS = 10.0
"""For the thread to end once it was told to."""


class RingNode(AbstractContextManager["RingNode"]):
    """One worker's membership of a ring, from one generation to the next. A context manager: every socket and thread ends."""

    def __init__(
        self,
        member: str,
        agreement: Agreement,
        listening: socket.socket,
        addresses: Mapping[str, Address],
        callbacks: Callbacks,
        *,
        lease: Lease | None = None,
        committed_step: int = -1,
        options: RingOptions | None = None,
    ) -> None:
        """Nothing is sent before `start`.

        Args:
            member: this worker.
            agreement: the generation to begin in; the same on all its members, in ring order.
            listening: of `links.listener`, at this worker's address; taken over.
            addresses: where each worker listens that may ever be a member.
            callbacks: what to call.
            lease: decides where no majority is left; without one, nothing is decided then.
            committed_step: the last step that is committed; -1 before the first.
            options: patience.

        Raises:
            InvalidInputError: a member has no address, or this worker is no member.
        """
        if member not in agreement.members:
            raise InvalidInputError(f"is not among the members {agreement.members}", field="member", value=member)
        if missing := [worker for worker in agreement.members if worker not in addresses]:
            raise InvalidInputError("must hold the address of every member; these are missing", field="addresses", value=missing)
        self._options = options or RingOptions()
        self._callbacks = callbacks
        self._state = State(member, agreement, committed_step)
        self._lock = threading.Lock()
        self._links = Links(
            member, listening, addresses, self._options, generation=lambda: self.agreement.generation, fence=callbacks.on_frozen
        )
        self._signals: queue.SimpleQueue[Signal] = queue.SimpleQueue()
        self._asking = Asking(lease, self.adopt, lambda: self.agreement.generation, self._options.retry_seconds)
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"ring-{member}", daemon=True)
        self._is_closing = threading.Event()
        self._inquire_at = 0.0
        """When to look round again while nothing is decided, or nobody mends a loss; on the monotonic clock."""
        self._log = get_logger("kintsugi.runtime").bind(member=member)
        self.num_sent = 0
        """Messages of the protocol that were sent, without greetings and signs of life."""

    @property
    def agreement(self) -> Agreement:
        """The generation that this worker is in, or that goes on without it."""
        return self._state.agreement

    @property
    def is_left_out(self) -> bool:
        """Whether the others go on without this worker."""
        return self._state.is_left_out

    def start(self) -> None:
        """Connect to the neighbours and begin to watch them."""
        self._thread.start()

    def commit(self, generation: int, step: int, note: str = "") -> bool:
        """Commit a step, at its commit point and before it is applied; from any thread, at once.

        Args:
            generation: in which the step was trained.
            step: its index.
            note: opaque; handed to the survivors with the step when this generation ends.

        Returns:
            Whether the step is committed. If not, this generation is being mended or over: discard the step and leave it.
        """
        with self._lock:
            if self._has_failed or self._state.is_stopped or generation != self._state.agreement.generation:
                return False
            self._state, _ = transition(self._state, Committed(step, note), self._callbacks.choose)
            return True

    def report_lost(self, worker: str, *, is_certain: bool = False) -> None:
        """Tell of a loss that the ring cannot see; from any thread. One member that tells it is enough.

        Args:
            worker: who is gone.
            is_certain: its process has ended (a parent waited for it, a site confirmed it), not just its answers.
        """
        self._put(Lost(worker, is_certain=is_certain, is_reported=True))

    def admit(self, joiner: Joiner) -> None:
        """Have a worker taken in, by a generation with it as a member; from any thread.

        Nothing comes of it if this worker is lost first, or the other one is a member already: ask again, in a later generation.
        """
        self._put(Joining(joiner))

    def renew(self, generation: int) -> None:
        """Have the members agree on a successor of a generation although nobody is lost; from any thread."""
        self._put(Renewing(generation))

    def adopt(self, agreement: Agreement) -> None:
        """Go on in a generation that was decided elsewhere: by the lease, or by a member that told it; from any thread."""
        self._put(Decided(agreement))

    def close(self) -> None:
        """Leave without a word: the others find this worker gone."""
        self._is_closing.set()
        self._links.wake()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_SECONDS)
        else:
            self._links.close()
        self._asking.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _put(self, signal: Signal) -> None:
        self._signals.put(signal)
        self._links.wake()

    def _run(self) -> None:
        with closing(self._links):
            failure = self._failure_of_living()
        if failure is not None:
            self._callbacks.on_failed(failure)

    def _failure_of_living(self) -> Exception | None:
        """What ends the membership before it is closed; nothing is committed afterwards."""
        try:
            self._live()
        except Exception as error:
            self._log.exception("a ring's member failed")
            with self._lock:
                self._has_failed = True
            return error
        return None

    def _live(self) -> None:
        self._watch_next(self._options.start_timeout_seconds)
        wait_seconds = min(self._options.heartbeat_seconds, self._options.retry_seconds)
        while not self._is_closing.is_set():
            for signal in self._links.poll(wait_seconds):
                self._take(signal)
            with suppress(queue.Empty):
                while True:
                    self._take(self._signals.get_nowait())
            self._inquire()

    def _take(self, signal: Signal) -> None:
        with self._lock:
            before = self._state
            self._state, actions = transition(before, signal, self._callbacks.choose)
        self._links.learn({joiner.worker: joiner.address for joiner in self._state.agreement.newcomers})
        if _difficulty(self._state) != _difficulty(before):
            self._inquire_at = time.monotonic() + self._options.retry_seconds
        for action in actions:
            self._act(action)
        self._tell_stopped(before)

    def _tell_stopped(self, before: State) -> None:
        """Have the step left, also that of a generation which is mended from its first moment on."""
        state = self._state
        began = state.agreement.generation > before.agreement.generation and not state.is_left_out
        if state.is_stopped and (began or not before.is_stopped):
            self._callbacks.on_stop((state if began else before).agreement.generation)

    def _act(self, action: Action) -> None:
        match action:
            case Send(worker, message):
                self.num_sent += not isinstance(message, Hello)
                self._links.send(worker, message)
            case Install(agreement):
                self._leave_others(agreement)
                self._watch_next(self._options.heartbeat_timeout_seconds)
                self._callbacks.on_agreement(agreement)
            case LeaveOut(agreement):
                self._leave_others(agreement)
                self._callbacks.on_left_out(agreement)
            case AskLease(agreement):
                self._asking.decide(agreement)
            case Record(agreement):
                self._asking.record(agreement)
            case Probe():
                self._inquire_at = time.monotonic()

    def _leave_others(self, agreement: Agreement) -> None:
        """Be connected to members alone: who is left out as well, and waits for this worker, finds it gone and asks."""
        self._links.leave([worker for worker in self._links.peers if worker not in agreement.members])

    def _watch_next(self, patience_seconds: float) -> None:
        """Be connected to the next member; the one before connects to this one."""
        state = self._state
        for worker in following(state.agreement.members, state.member, state.lost)[:1]:
            self._links.connect(worker, patience_seconds=patience_seconds)

    def _inquire(self) -> None:
        """While a loss is not mended: see who of the others has ended, lives or is further, and what the lease holds."""
        state, now = self._state, time.monotonic()
        if now < self._inquire_at or state.is_left_out or not (state.promised or state.lost):
            return
        self._inquire_at = now + self._options.retry_seconds
        if state.promised is None:  # whoever should mend this does not: it may know more, or less
            self._take(Lost(min(state.lost), is_reported=True))
            return
        for worker in sorted((state.lost | state.excluded) - state.dead):
            if worker in state.missing and self._links.hears(worker):
                self._take(Found(worker))
                return
            self._links.send(worker, Hello(state.agreement.generation))
        self._asking.look_up(state.agreement.generation + 1)


def _difficulty(state: State) -> tuple[object, ...]:
    """What a member has to wait for the others to overcome; anew each time it changes."""
    return state.agreement.generation, state.is_stopped, state.lost
