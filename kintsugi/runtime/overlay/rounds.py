"""Reductions, one after another: which policy each runs under, and what happens when one is called off."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from kintsugi.core import codec
from kintsugi.core.errors import ConflictError, UnavailableError
from kintsugi.core.overlay import Overlay, Shape, SynchronizationPolicy
from kintsugi.runtime.overlay.exchange import Exchange, LostLinkError
from kintsugi.runtime.overlay.inbox import CalledOffError, Inbox, Pass, Phase
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.reduction import Header, Reduced, TreeReduction, Vector
from kintsugi.runtime.overlay.ring import RingReduction
from kintsugi.runtime.overlay.settlement import settle
from kintsugi.runtime.overlay.tree import Position, position

_FIRST_PAUSE_SECONDS = 0.02


class Desired(Protocol):
    """What the agent knows of the overlay."""

    @property
    def overlay(self) -> Overlay:
        """The newest one."""

    def ready(self, after: int, restarts: int) -> Overlay | None:
        """The newest one of an attempt above generation `after` that this worker could go over to at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A reduction that is over: every worker holds the same mean, or will."""

    number: int
    """Of all reductions of the job."""
    vector: Vector | None
    """The mean; none where nobody added anything."""
    weights: Mapping[str, float]
    """Of the workers whose gradients are in it."""
    agreed: Mapping[str, Any] | None
    """The overlay that takes effect after it, as a document; none where it is the same as before."""


class LostTrackError(ConflictError):
    """This worker missed more than one reduction: it has to fetch the state anew."""


class GivenUpError(ConflictError):
    """The others go on without this worker; a new `Coordinator` joins again."""


class Rounds:
    """The reductions of one worker, in the thread that trains (while it joins: in the one that listens)."""

    def __init__(
        self,
        worker: str,
        links: Links,
        inbox: Inbox,
        desired: Desired,
        *,
        options: OverlayOptions,
        make: Callable[[], Vector],
        report_missing: Callable[[str, int], None],
    ) -> None:
        """Begin with the overlay as the agent knows it.

        Args:
            worker: whose reductions.
            links: to its neighbours.
            inbox: where what they send arrives.
            desired: what the agent knows.
            options: times and sizes.
            make: gives memory for one vector.
            report_missing: is told of a neighbour whose link an attempt needs and has not.
        """
        self._worker, self._links, self._inbox = worker, links, inbox
        self._desired, self._options, self._make, self._report_missing = desired, options, make, report_missing
        self._spare: list[Vector] = []
        self._num_lost = 0
        self._reuses = False  # while it listens, somebody else keeps what was heard until it is applied
        self.effective = desired.overlay
        """The overlay that the next reduction runs under."""
        self.restarts = self.effective.restarts
        self.last: Committed | None = None
        self.number = 0
        """Reductions of the job so far, as far as this worker has heard them."""
        self.synchronization_seconds: float | None = None

    @property
    def counts(self) -> bool:
        """Whether the next reduction counts on this worker."""
        return self._worker in self.effective.synchronization.order

    def reduce(self, own: Vector | None, weight: float) -> Committed:
        """Take part in the next reduction until it is committed, over as many attempts as it takes.

        Args:
            own: what this worker adds, weighted already; it must stay as it is until this returns. None adds nothing.
            weight: of it in the mean.

        Raises:
            GivenUpError: the others go on without this worker.
            UnavailableError: nothing moved for too long.
        """
        number, self._reuses = self.number + 1, True
        while True:
            try:
                self.settle()
                if self.number == number:
                    assert self.last is not None
                    return self.last
                self._require_place()
                return self._reduce(number, own, weight)
            except LostLinkError as error:
                self._await_restart(error.worker)
            except CalledOffError:
                self._require_open()

    def listen(self, timeout_seconds: float) -> Committed | None:
        """The next reduction that this worker hears; None when none began in time or it had to begin anew.

        Raises:
            LostTrackError: there was one in between that it did not hear.
        """
        before = self.number
        try:
            self.settle()
            if self.number > before:
                return self.last
            if self.counts:
                return None
            key = self._inbox.await_pass(self.restarts, timeout_seconds)
            if key is None or key.phase is not Phase.REDUCE:
                return None
            return self._hear(key)
        except LostLinkError as error:
            self._await_restart(error.worker)
        except CalledOffError:
            self._require_open()
        return None

    def begin_at(self, number: int) -> None:
        """The state that is fetched is that after this many reductions, and none was heard yet."""
        if not self.number:
            self.number = number

    def forget(self) -> None:
        """What was heard so far does not count: the state is fetched anew."""
        self.number, self.last = 0, None

    def settle(self) -> None:
        """Go over to the newest attempt, if there is one: with everybody else, and with what they have committed.

        Raises:
            CalledOffError: there is a newer one again.
            LostLinkError: a link that is needed is gone.
        """
        overlay = self._desired.overlay
        if overlay.restarts <= self.restarts:
            return
        policy = overlay.restarted or overlay.synchronization
        self.restarts = overlay.restarts
        self._links.drop(lambda message: message.fields["pass"][0] < overlay.restarts)
        if self._worker not in policy.order and self._worker not in policy.listeners:
            self.effective = replace(overlay, synchronization=policy, generation=overlay.restarted_generation)
            return
        place = position(policy, self._worker, with_listeners=True)
        settled = settle(self._exchange(Phase.SETTLE, 0), place, self._heard, codec.encode(overlay))
        self._catch_up(place, settled.newest, settled.holder)
        known = codec.decode(Overlay, settled.overlay)
        self.effective = replace(known, synchronization=policy, generation=overlay.restarted_generation)

    @property
    def _heard(self) -> int | None:
        return self.number or None

    def _catch_up(self, place: Position, newest: int | None, holder: str | None) -> None:
        """Pass the last committed gradient on to those that lack it, this worker among them."""
        newest = newest or 0
        if holder is not None:
            self._forward(place, newest, holder)
        if 0 < self.number < newest - 1:
            raise LostTrackError(f"has heard {self.number} of {newest} reductions", field="worker", value=self._worker)

    def _forward(self, place: Position, newest: int, holder: str) -> None:
        """Take part in passing on the last committed gradient, also where it is of no use here: others wait for it."""
        header = own = None
        if holder == self._worker:
            assert self.last is not None
            header = Header(weights=self.last.weights, ready=self.last.agreed, is_final=True)
            own = self.last.vector
        result = self._memory()
        exchange = self._exchange(Phase.FORWARD, newest)
        reduced = TreeReduction(exchange, place, header=header, own=own, result=result, chunk_bytes=self._options.chunk_bytes).run()
        if self.number == newest - 1:
            self._commit(newest, reduced, result)
        else:
            self._spare.append(result)

    def _reduce(self, number: int, own: Vector | None, weight: float) -> Committed:
        policy = self.effective.synchronization
        ready = self._desired.ready(self.effective.generation, self.restarts)
        header = Header(weights={} if own is None else {self._worker: weight}, ready=None if ready is None else codec.encode(ready))
        result = self._memory()
        try:
            reduced = self._pass(policy, self._exchange(Phase.REDUCE, number), header, own, result)
        except BaseException:
            self._spare.append(result)
            raise
        return self._commit(number, reduced, result)

    def _pass(
        self, policy: SynchronizationPolicy, exchange: Exchange, header: Header, own: Vector | None, result: Vector
    ) -> Reduced:
        if policy.shape is Shape.RING and len(policy.order) > 2:
            return RingReduction(
                exchange,
                self._worker,
                policy.order,
                position(policy, self._worker).listeners,
                header=header,
                own=own,
                result=result,
                chunk_bytes=self._options.chunk_bytes,
            ).run()
        place = position(policy, self._worker)
        return TreeReduction(exchange, place, header=header, own=own, result=result, chunk_bytes=self._options.chunk_bytes).run()

    def _hear(self, key: Pass) -> Committed:
        if 0 < self.number < key.round - 1:
            raise LostTrackError(f"has heard {self.number} reductions, and {key.round} is next", field="worker", value=self._worker)
        place = Position(worker=self._worker, parent="", children=(), listeners=())
        exchange = Exchange(self._links, self._inbox, key, self._options.reduction_timeout_seconds, is_patient=True)
        result = self._make()
        reduced = TreeReduction(
            exchange,
            place,
            header=None,
            own=None,
            result=result,
            chunk_bytes=self._options.chunk_bytes,
            is_listening=True,
        ).run()
        return self._commit(key.round, reduced, result)

    def _commit(self, number: int, reduced: Reduced, result: Vector) -> Committed:
        """Count a reduction; the memory of the one before is used again."""
        before, self.number, self._num_lost = self.last, number, 0
        self.last = Committed(number=number, vector=reduced.vector, weights=reduced.header.weights, agreed=reduced.header.ready)
        if self._reuses and before is not None and before.vector is not None:
            self._spare.append(before.vector)
        if reduced.vector is None:
            self._spare.append(result)
        if self.last.agreed is not None:
            self.effective = codec.decode(Overlay, self.last.agreed)
        return self.last

    def _memory(self) -> Vector:
        return self._spare.pop() if self._spare else self._make()

    def _exchange(self, phase: Phase, number: int) -> Exchange:
        key = Pass(self.restarts, phase, number)
        return Exchange(self._links, self._inbox, key, self._options.reduction_timeout_seconds)

    def _require_place(self) -> None:
        if not self.counts:
            raise GivenUpError("the others go on without this worker; join again", field="worker", value=self._worker)

    def _require_open(self) -> None:
        """A pass was called off: for a newer attempt, or because this worker was closed."""
        if self._inbox.is_closed:
            raise GivenUpError("was closed, or given up by the others", field="worker", value=self._worker)

    def _await_restart(self, lost: str) -> None:
        """Wait for the next attempt, a little longer each time that one fails in the same way."""
        self._num_lost += 1
        threading.Event().wait(min(_FIRST_PAUSE_SECONDS * 2 ** (self._num_lost - 3), 1.0) if self._num_lost > 2 else 0.0)
        self._report_missing(lost, self.restarts)
        try:
            told = self._inbox.await_restart(self.restarts, self._options.reduction_timeout_seconds)
        except CalledOffError:
            self._require_open()
            return
        if not told:
            raise UnavailableError("the scheduler did not restart the reduction", field="worker", value=lost)


def zeros(num_elements: int, dtype: Any) -> Vector:
    """Memory for one vector."""
    return np.zeros(num_elements, dtype=dtype)
