"""What became of a link that was lost: its other end is gone, or only the way to it. One death is one event, whoever tells it."""

from collections.abc import Mapping

from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import OverlayWorker, WorkerState
from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.greeting import is_there
from kintsugi.runtime.overlay.link import Link
from kintsugi.runtime.overlay.tree import needed_links

_KNOCK_SECONDS = 3.0
"""How long a worker whose link broke may take to answer at its door, or to be torn down: after that it may be there."""

_LAST_WORDS_SECONDS = 5.0
"""From the end of a link to the end of the step that needed it, where all of it arrived before."""


def failure_id(worker: str, incarnation: int) -> str:
    """Of the event that a life of a worker has failed, whoever tells it."""
    return f"failed-{worker}-{incarnation}"


class Losses:
    """Tells the scheduler of lost links; blocks while it knocks."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._log = get_logger("kintsugi.overlay").bind(worker=agent.identity.worker)

    def report(self, link: Link, why: str) -> None:
        """Tell that a link broke, unless it was given up on purpose."""
        own, other, overlay = self._agent.identity, link.peer.worker, self._agent.overlay
        is_needed = other in needed_links(self._agent.effective, own.worker)
        if other not in overlay.neighbors(own.worker):  # by who is past the step that needed it
            if is_needed and self._is_still_needed(other):
                self.report_missing(other, overlay.restarts, why)
            return
        known = self._known(other)
        if known is not None and known.incarnation > link.peer.incarnation:
            return  # of a life that is over: the link with the later one is another
        if known is not None and known.state is WorkerState.DRAINING and not is_needed:
            return
        self._log.info("a link is lost", neighbor=other, why=why)
        is_same = known is not None and known.incarnation == link.peer.incarnation
        if is_same and self._tell_if_gone(other, is_needed=is_needed):
            return
        ends = sorted(((own.worker, own.incarnation), (other, link.peer.incarnation)))
        event_id = f"cut-{'-'.join(f'{worker}.{life}' for worker, life in ends)}-{link.peer.number}"
        self._agent.teller.tell(
            OverlayEventKind.LINK_DISCONNECTED,
            event_id,
            link=(ends[0][0], ends[1][0]),
            detail=why,
            interrupted=is_needed,
            generation=max(overlay.generation, link.peer.generation),
        )

    def report_missing(self, worker: str, restarts: int, why: str) -> None:
        """Tell that a reduction of attempt `restarts` needs a link that is not there, or of no use."""
        if self._tell_if_gone(worker, is_needed=True):
            return
        ends = tuple(sorted((self._agent.identity.worker, worker)))
        self._agent.teller.tell(
            OverlayEventKind.LINK_DISCONNECTED,
            f"missing-{'-'.join(ends)}-{restarts}",
            link=ends,
            interrupted=True,
            restarts=restarts,
            detail=why,
        )

    def report_wrong(self, workers: Mapping[str, int], why: str) -> None:
        """Tell that workers, in these lives, hold something else than most."""
        for worker, incarnation in workers.items():
            self._tell_failed(worker, incarnation, why, interrupted=True)

    def _is_still_needed(self, other: str) -> bool:
        """Whether what a worker sent last, before it went on, did not arrive in time either."""
        self._agent.closing.wait(_LAST_WORDS_SECONDS)
        return not self._agent.closing.is_set() and other in needed_links(self._agent.effective, self._agent.identity.worker)

    def _tell_if_gone(self, other: str, *, is_needed: bool) -> bool:
        """Whether nobody is there at the other worker's address any more; then it has failed."""
        own, known = self._agent.identity, self._known(other)
        if known is None or is_there(known.address, own, other, known.incarnation, _KNOCK_SECONDS):
            return False
        why = f"its connection to {own.worker} broke, and it does not answer at its address"
        self._tell_failed(other, known.incarnation, why, interrupted=is_needed)
        return True

    def _tell_failed(self, worker: str, incarnation: int, why: str, *, interrupted: bool) -> None:
        own = self._agent.identity
        self._agent.teller.tell(
            OverlayEventKind.WORKER_FAILED,
            failure_id(worker, incarnation),
            worker=worker,
            incarnation=incarnation,
            teller=own.worker,
            teller_incarnation=own.incarnation,
            interrupted=interrupted,
            detail=why,
        )

    def _known(self, worker: str) -> OverlayWorker | None:
        return next((one for one in self._agent.overlay.workers if one.id == worker), None)
