"""Reductions, one after another: which policy each runs under, and what happens when one is called off."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from kintsugi.core import codec
from kintsugi.core.errors import UnavailableError
from kintsugi.core.overlay import Overlay, Shape, SynchronizationPolicy, WorkerState
from kintsugi.core.pauses import doubled_seconds
from kintsugi.runtime.overlay.committed import Committed, GivenUpError, LostTrackError, Sum
from kintsugi.runtime.overlay.comparing import Comparison, WrongPeersError
from kintsugi.runtime.overlay.exchange import Exchange, LostLinkError
from kintsugi.runtime.overlay.inbox import CalledOffError, Inbox, Pass, Phase
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.reduction import Header, Reduced, TreeReduction, Vector
from kintsugi.runtime.overlay.ring import RingReduction
from kintsugi.runtime.overlay.settlement import Standing, settle
from kintsugi.runtime.overlay.tree import Position, position

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 1.0


class Desired(Protocol):
    """What the agent knows of the overlay."""

    @property
    def overlay(self) -> Overlay:
        """The newest one."""

    def ready(self, after: int, restarts: int) -> Overlay | None:
        """The newest one of an attempt above generation `after` that this worker could go over to at once."""

    @property
    def why_given_up(self) -> str:
        """Why the others go on without this worker; empty where nothing is known of that."""

    @property
    def why_nothing_moves(self) -> str:
        """What keeps the others from going on without one that is lost; empty where nothing does."""


class Rounds:
    """The reductions of one worker, in the thread that trains, or joins."""

    def __init__(
        self,
        worker: str,
        links: Links,
        inbox: Inbox,
        desired: Desired,
        *,
        options: OverlayOptions,
        make: Callable[[], Vector],
        comparison: Comparison,
        report_missing: Callable[[str, int, str], None],
        report_wrong: Callable[[Mapping[str, int], str], None],
    ) -> None:
        """Begin with the overlay as the agent knows it.

        Args:
            worker: whose reductions.
            links: to its neighbours.
            inbox: where what they send arrives.
            desired: what the agent knows.
            options: times and sizes.
            make: gives memory for one vector, which is its own as long as anything refers to it.
            comparison: of what the workers hold.
            report_missing: is told of a neighbour whose link an attempt needs and has not, or has to no use, and why.
            report_wrong: is told of workers, in which life, that hold something else than most, and why.
        """
        self._worker, self._links, self._inbox = worker, links, inbox
        self._desired, self._options, self._make, self._report_missing = desired, options, make, report_missing
        self._comparison, self._report_wrong = comparison, report_wrong
        self._num_lost = 0
        self.effective = desired.overlay
        """The overlay that the next reduction runs under."""
        self.restarts = self.effective.restarts
        self.at_boundary = self.effective
        """What took effect with the last reduction, on all workers: a later attempt may begin under another one."""
        self.last: Committed | None = None
        self._standing = Standing(number=0, attempt=0, before=None)
        self.members: tuple[str, ...] = ()
        """Who took part in the last one."""
        self._newest = 0  # that a settlement told of
        self.is_astray = False
        """Whether this worker has what the others have not, or have summed anew: only a state of theirs helps."""

    @property
    def number(self) -> int:
        """Reductions of the job so far, as far as this worker has them."""
        return self._standing.number

    @property
    def counts(self) -> bool:
        """Whether the next reduction counts on this worker."""
        return self._worker in self.effective.synchronization.order

    def counts_after(self, committed: Committed) -> bool:
        """Whether the reduction after this one counts on this worker: then nobody goes on without it."""
        return not self.is_void(committed) and self._worker in self._effective_after(committed).synchronization.order

    def is_void(self, committed: Committed) -> bool:
        """Whether a reduction was the dead's alone: all that are left settled without it, with this worker, and sum it anew."""
        return self.counts and committed.which.attempt < self.restarts and committed.number > self._newest

    @property
    def is_behind(self) -> bool:
        """Whether the others are known to have committed what this worker lacks."""
        return self.number < self._newest or self.is_astray

    @property
    def is_called_off(self) -> bool:
        """Whether there is a newer attempt, under which the others may not count on this worker."""
        return self._desired.overlay.restarts > self.restarts

    def reduce(self, own: Vector | None, weight: float) -> Committed:
        """Take part in the next reduction until it is committed, over as many attempts as it takes.

        Args:
            own: what this worker adds, weighted already; it must stay as it is until this returns. None adds nothing.
            weight: of it in the mean.

        Raises:
            GivenUpError: the others go on without this worker.
            WrongStateError: it holds something else than most.
            DisagreementError: workers hold different states, and nobody can tell whose is right.
            LostTrackError: it missed more than one.
            UnavailableError: nothing moved for too long.
        """
        number = self.number + 1
        while True:
            try:
                self._comparison.require_agreement()
                self.settle()
                if self.number == number:
                    assert self.last is not None
                    return self.last
                self._require_place()
                if self.is_behind:
                    raise LostTrackError(f"has {self.number} of {self._newest} reductions", field="worker", value=self._worker)
                return self._reduce(number, own, weight)
            except LostLinkError as error:
                self._await_restart(error)
            except WrongPeersError as error:
                self._await_next_attempt(error.worker)
                self._report_if_counted(error)
            except CalledOffError:
                self._require_open()
            except UnavailableError as error:
                raise self._explained(error) from None

    def keep_up(self) -> Committed | None:
        """As a worker that joins: go over to the newest attempt, if there is one; a reduction that was handed on with that.

        Raises:
            GivenUpError: the others go on without this worker.
            UnavailableError: nothing moved for too long.
        """
        before = self.number
        try:
            self.settle()
        except LostLinkError as error:
            self._await_restart(error)
        except CalledOffError:
            self._require_open()
        except UnavailableError as error:
            raise self._explained(error) from None
        return self.last if self.number > before else None

    def begin_at(self, which: Sum) -> None:
        """The state that was fetched is that after this reduction."""
        self._standing = Standing(*which, before=None)
        self.last, self.is_astray = None, False
        self._comparison.copied()

    def follow(self, committed: Committed) -> None:
        """Take over a reduction that others have made; what they agreed in it takes effect unless something later has already.

        Raises:
            LostTrackError: it is not the next one.
        """
        if committed.number != self.number + 1:
            raise LostTrackError(f"was told reduction {committed.number} after {self.number}", field="worker", value=self._worker)
        self._go_to(committed)
        agreed = self._effective_after(committed)
        if agreed is not self.effective:
            self.effective, self.restarts = agreed, max(self.restarts, agreed.restarts)
            self.at_boundary = agreed

    def _effective_after(self, committed: Committed) -> Overlay:
        """What was agreed in a reduction that others have made, unless something later has taken effect already."""
        if committed.agreed is None:
            return self.effective
        agreed = codec.decode(Overlay, committed.agreed)
        return agreed if agreed.generation > self.effective.generation else self.effective

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
        if self._worker not in policy.order:
            self.effective = replace(overlay, synchronization=policy, generation=overlay.restarted_generation)
            return
        place = position(policy, self._worker)
        settled = settle(self._exchange(Phase.SETTLE, 0), place, self._standing, codec.encode(overlay))
        self._newest = settled.newest.number
        lacks_newest = settled.lacks_newest(self._standing)
        self.is_astray = self.number >= self._newest - 1 and not lacks_newest and not settled.has_newest(self._standing)
        if settled.holder is not None:
            self._forward(place, settled.holder, is_wanted=lacks_newest)
        known = codec.decode(Overlay, settled.overlay)
        self.effective = replace(known, synchronization=policy, generation=overlay.restarted_generation)

    def _forward(self, place: Position, holder: str, *, is_wanted: bool) -> None:
        """Take part in passing on the last committed gradient, also where it is of no use here: others wait for it."""
        header = own = None
        if holder == self._worker:
            assert self.last is not None
            header = Header(weights=self.last.weights, ready=self.last.agreed, is_final=True, attempt=self.last.which.attempt)
            own = self.last.vector
        exchange = self._exchange(Phase.FORWARD, self._newest)
        reduced = self._up_and_down(exchange, place, header, own)
        if is_wanted:
            self._commit(self._newest, reduced)

    def _reduce(self, number: int, own: Vector | None, weight: float) -> Committed:
        policy = self.effective.synchronization
        ready = self._desired.ready(self.effective.generation, self.restarts)
        header = Header(
            weights={} if own is None else {self._worker: weight},
            ready=None if ready is None else codec.encode(ready),
            attempt=self.restarts,
            states=self._comparison.statement(number) if len(policy.order) > 1 else {},
        )
        reduced = self._pass(policy, self._exchange(Phase.REDUCE, number), header, own)
        self._comparison.require_alike(number, reduced.header.states)
        return self._commit(number, reduced)

    def _pass(self, policy: SynchronizationPolicy, exchange: Exchange, header: Header, own: Vector | None) -> Reduced:
        if policy.shape is Shape.RING and len(policy.order) > 2:
            return RingReduction(
                exchange,
                self._worker,
                policy.order,
                header=header,
                own=own,
                result=self._make(),
                chunk_bytes=self._options.chunk_bytes,
            ).run()
        return self._up_and_down(exchange, position(policy, self._worker), header, own)

    def _up_and_down(self, exchange: Exchange, place: Position, header: Header | None, own: Vector | None) -> Reduced:
        """One pass over a tree."""
        chunk_bytes = self._options.chunk_bytes
        return TreeReduction(exchange, place, header=header, own=own, result=self._make(), chunk_bytes=chunk_bytes).run()

    def _commit(self, number: int, reduced: Reduced) -> Committed:
        """Count a reduction."""
        header = reduced.header
        self._num_lost, self.members = 0, self.effective.synchronization.order
        committed = Committed(which=Sum(number, header.attempt), vector=reduced.vector, weights=header.weights, agreed=header.ready)
        self._go_to(committed)
        if committed.agreed is not None:
            self.effective = codec.decode(Overlay, committed.agreed)
        self.at_boundary = self.effective
        return committed

    def _go_to(self, committed: Committed) -> None:
        self._standing = Standing(*committed.which, before=self._standing.attempt)
        self.last = committed

    def _exchange(self, phase: Phase, number: int) -> Exchange:
        key = Pass(self.restarts, phase, number)
        return Exchange(self._links, self._inbox, key, self._options.reduction_timeout_seconds)

    def _require_place(self) -> None:
        if not self.counts:
            self._comparison.require_agreement()
            why = self._desired.why_given_up or "the others go on without this worker; join again"
            raise GivenUpError(why, field="worker", value=self._worker)

    def _require_open(self) -> None:
        """A pass was called off: for a newer attempt, or because this worker was closed."""
        if self._inbox.is_closed:
            self._comparison.require_agreement()
            raise GivenUpError(self._desired.why_given_up or "was closed", field="worker", value=self._worker)

    def _await_restart(self, error: LostLinkError) -> None:
        """Wait for the next attempt, a little longer each time that one fails in the same way."""
        self._num_lost += 1
        threading.Event().wait(pause_seconds(self._num_lost))
        self._report_missing(error.worker, self.restarts, error.message)
        self._await_next_attempt(error.worker)

    def _explained(self, error: UnavailableError) -> UnavailableError:
        """An error of a wait that came to nothing, with what may have been waited for."""
        if not (why := self._desired.why_nothing_moves):
            return error
        return UnavailableError(f"{error.message}; {why}", field=error.field, value=error.value)

    def _report_if_counted(self, error: WrongPeersError) -> None:
        """Tell who is wrong where the next attempt counts on them, for they were called off before they knew."""
        counted = {one.id: one.incarnation for one in self._desired.overlay.workers if one.state is not WorkerState.FAILED}
        if left := {worker: life for worker, life in error.workers.items() if counted.get(worker) == life}:
            self._report_wrong(left, error.message)

    def _await_next_attempt(self, lost: str) -> None:
        try:
            told = self._inbox.await_restart(self.restarts, self._options.reduction_timeout_seconds)
        except CalledOffError:
            self._require_open()
            return
        if not told:
            raise self._explained(UnavailableError("the scheduler did not restart the reduction", field="worker", value=lost))


def pause_seconds(num_lost: int) -> float:
    """Before the next attempt, after so many in a row that failed for want of a link; none after the first two."""
    if num_lost < 3:
        return 0.0
    return doubled_seconds(_FIRST_PAUSE_SECONDS, num_lost - 3, _LONGEST_PAUSE_SECONDS)
