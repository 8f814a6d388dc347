"""Asks the lease in a thread of its own, so that the ring never waits for it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from kintsugi.core.errors import KintsugiError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.clerk import Clerk
from kintsugi.runtime.ring.lease import Lease
from kintsugi.runtime.ring.messages import Agreement

_FAILURES = (KintsugiError, OSError)


class Asking:
    """One member's questions to the lease, one after the other; the answers are decided agreements."""

    def __init__(
        self, lease: Lease | None, decided: Callable[[Agreement], None], generation: Callable[[], int], retry_seconds: float
    ) -> None:
        """`generation` tells in which one the member is; `decided` is called in the thread that asks."""
        self._lease, self._decided, self._generation = lease, decided, generation
        self._retry_seconds = retry_seconds
        self._is_closing = threading.Event()
        self._looking: Future[None] | None = None
        self._clerk = Clerk("ring-lease")
        self._log = get_logger("kintsugi.runtime")

    def decide(self, agreement: Agreement) -> None:
        """Have the lease decide; ask until it answers, or the generation is decided otherwise."""
        if self._lease is None:
            self._log.warning("no majority is left, and there is no lease to ask", generation=agreement.generation)
        else:
            self._clerk.do(partial(self._decide, self._lease, agreement))

    def record(self, agreement: Agreement) -> None:
        """Have it keep what was decided without it; once, for nobody who decided needs that."""
        if self._lease is not None:
            self._clerk.do(partial(self._record, self._lease, agreement))

    def look_up(self, generation: int) -> None:
        """See whether it holds a decision, unless the answer to that is still awaited."""
        if self._lease is not None and (self._looking is None or self._looking.done()):
            self._looking = self._clerk.do(partial(self._look_up, self._lease, generation))

    def close(self) -> None:
        """Ask nothing any more; an answer that is under way is not waited for."""
        self._is_closing.set()
        self._clerk.close(0.0)

    def _decide(self, lease: Lease, agreement: Agreement) -> None:
        while self._generation() < agreement.generation and not self._is_closing.is_set():
            try:
                self._decided(lease.decide(agreement))
                return
            except _FAILURES as error:
                self._log.warning("the lease does not answer", error=str(error), generation=agreement.generation)
            self._is_closing.wait(self._retry_seconds)

    def _record(self, lease: Lease, agreement: Agreement) -> None:
        if self._is_closing.is_set():
            return
        try:
            lease.decide(agreement)
        except _FAILURES as error:
            self._log.info("the lease does not know of a decision", error=str(error), generation=agreement.generation)

    def _look_up(self, lease: Lease, generation: int) -> None:
        if self._is_closing.is_set():
            return
        try:
            held = lease.held(generation)
        except _FAILURES as error:
            self._log.info("the lease does not answer", error=str(error), generation=generation)
            return
        if held is not None:
            self._decided(held)
