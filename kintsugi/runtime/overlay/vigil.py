"""Whether a joining worker still has something to wait for, and what: looked at beside it, whatever it waits in."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from kintsugi.core.errors import KintsugiError, UnavailableError
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay, WorkerState
from kintsugi.runtime.overlay import exits
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.presence import Presence
from planner.overlay.topology import may_hold

TELL_SECONDS = 10.0
"""Between two words about what is waited for."""
_LOOK_SECONDS = 0.2


class Vigil:
    """Ends the wait of one joining worker once that is asked to leave, or nobody is left who could send it the state.

    A thread of its own, from `with` to its end: the joining thread may sit in a wait for the others that only closing ends.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        options: OverlayOptions,
        counts: Callable[[], bool],
        awaited: Callable[[], str],
        silent_seconds: Callable[[], float],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with `with`.

        Args:
            agent: of the worker that joins.
            options: how long a holder of the state may be away, and how long a leave may take.
            counts: whether the others wait for this worker in a reduction, by now or soon.
            awaited: what it waits for, in words.
            silent_seconds: since the scheduler answered last.
            wake: called once the wait is over.
            clock: seconds, monotonic.
        """
        self._agent, self._options, self._clock = agent, options, clock
        self._counts, self._awaited, self._silent_seconds, self._wake = counts, awaited, silent_seconds, wake
        self.error: KintsugiError | None = None
        """Why the wait is over; None while it is not."""
        self._alone_since: float | None = None
        self._leave_by: Deadline | None = None
        self._told_at = clock()
        self._over = threading.Event()
        self._log = get_logger("kintsugi.overlay").bind(worker=agent.identity.worker)
        self._thread = threading.Thread(target=self._run, name="overlay-waits", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Look once; `error` is set where the wait is over."""
        self.error = self._asked_to_leave() or self._nobody_left()
        if self.error is None and self._clock() - self._told_at >= TELL_SECONDS:
            self._told_at = self._clock()
            self._log.info("waits to take part", waits_for=self._awaited())

    def _run(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self.look()
            if self.error is not None:
                self._agent.give_up(str(self.error))
                self._wake()
                return

    def _asked_to_leave(self) -> KintsugiError | None:
        """Who counts already leaves in order, from the first step on; nobody waits longer for that than for any other leave."""
        if not (exits.capture_exit_event() or self._agent.state is WorkerState.DRAINING):
            return None
        if self._counts():
            self._leave_by = self._leave_by or Deadline(self._options.drain_timeout_seconds, Presence())
            if not self._leave_by.is_over:
                return None
        return left_early(self._agent.identity.worker)

    def _nobody_left(self) -> KintsugiError | None:
        """Whether nobody held the state for so long as a link may be silent, as far as the scheduler told.

        Whoever was only thought dead hears so, and joins again in that time. What a silent scheduler does not tell is not known.
        """
        overlay = self._agent.overlay
        if self._counts() or set(may_hold(overlay)) - {self._agent.identity.worker}:
            self._alone_since = None
            return None
        if self._alone_since is None:
            self._alone_since = self._clock()
            self._log.warning("nobody is left who holds the state", waits_seconds=self._options.link_timeout_seconds)
        known_seconds = self._clock() - self._alone_since - self._silent_seconds()
        return state_gone(overlay) if known_seconds >= self._options.link_timeout_seconds else None


def left_early(worker: str) -> GivenUpError:
    """The end of a worker that was asked to leave while it joined."""
    return GivenUpError("was asked to leave before it took part", field="worker", value=worker)


def state_gone(overlay: Overlay) -> UnavailableError:
    """The end of a wait for a state that nobody holds any more."""
    failed = [f"{one.id} failed: {one.detail}" for one in overlay.workers if one.state is WorkerState.FAILED]
    why = f" ({'; '.join(failed)})" if failed else ""
    return UnavailableError(
        f"no worker is left that holds its state{why}; begin it anew: restore a checkpoint in one worker and start that first, "
        "the next one to join begins with the state that its model has",
        field="job",
        value=overlay.name,
    )
