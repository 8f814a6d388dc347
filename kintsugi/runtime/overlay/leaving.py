"""How a worker goes: it takes part until the others reduce without it, hands over what it sends, and closes."""

import threading
from collections.abc import Callable

from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.comparing import WrongStateError
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.rounds import Rounds
from kintsugi.runtime.presence import LOOK_SECONDS

_CLOSE_SECONDS = 10.0
"""For the neighbours to hang up, so that nothing on its way to them is lost."""


class Leaver:
    """The leaving side of one worker, in the thread that trains."""

    def __init__(self, agent: Agent, links: Links, rounds: Rounds) -> None:
        self._agent, self._links, self._rounds = agent, links, rounds

    def run(self, take_part: Callable[[], object], deadline: Deadline) -> None:
        """Leave; nobody waits for this worker, and nothing of what it holds is lost.

        Args:
            take_part: one more reduction to which this worker adds nothing.
            deadline: when it goes in any case.

        Raises:
            WrongStateError: it holds something else than most.
        """
        own = self._agent.identity
        name = f"{own.worker}-{own.incarnation}"
        self._agent.teller.tell(OverlayEventKind.WORKER_DRAINING, f"draining-{name}", detail="asked to leave")
        log = get_logger("kintsugi.overlay")
        log.info("leaves once the others reduce without it", worker=own.worker, limit_seconds=round(deadline.left_seconds, 1))
        over = threading.Event()
        threading.Thread(target=self._give_up, args=(deadline, over), name="overlay-leaves", daemon=True).start()
        try:
            while self._rounds.counts and not deadline.is_over:
                take_part()
        except GivenUpError as error:
            if isinstance(error, WrongStateError):
                raise
        finally:
            over.set()
        if self._agent.given_up:
            return
        self._agent.await_overlay(lambda overlay: not self._sends(overlay), deadline.left_seconds)
        self._agent.teller.tell(OverlayEventKind.WORKER_LEFT, f"left-{name}")
        self._agent.await_overlay(self._is_gone, min(_CLOSE_SECONDS, deadline.left_seconds))
        self._links.await_none(min(_CLOSE_SECONDS, deadline.left_seconds))

    def _give_up(self, deadline: Deadline, over: threading.Event) -> None:
        """End what the leaving thread may sit in, once no time is left for it."""
        while not over.wait(min(deadline.left_seconds, LOOK_SECONDS)):
            if deadline.is_over:
                self._agent.give_up("did not come to leave in time")
                return

    def _sends(self, overlay: Overlay) -> bool:
        own = self._agent.identity.worker
        return any(share.source == own for one in overlay.replications for share in one.shares)

    def _is_gone(self, overlay: Overlay) -> bool:
        return all(one.id != self._agent.identity.worker for one in overlay.workers)
