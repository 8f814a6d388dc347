"""Brings about the links that the overlay wants: connects, probes, reports, and lets go of those that nobody wants."""

import threading
from collections.abc import Callable
from contextlib import suppress

from kintsugi.core.errors import ForbiddenError, KintsugiError, UnavailableError
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import LinkState, Overlay, OverlayLink
from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.link import Link
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.losses import Losses
from kintsugi.runtime.overlay.probe import OvertakenError, Prober, Turn
from kintsugi.runtime.overlay.tree import needed_links

Task = tuple[str, int]
"""Neighbour and generation of the link: it is called once for it."""


class Reconciler:
    """Acts on every newer overlay and on every link that comes or goes, in threads of its own."""

    def __init__(self, agent: Agent, links: Links, prober: Prober, losses: Losses) -> None:
        self._agent, self._links, self._prober, self._losses = agent, links, prober, losses
        self._tried: set[Task] = set()
        self._probed: dict[str, tuple[int, Turn]] = {}
        """By neighbour, for the link of which generation it was probed last, over which connection."""
        self._lock = threading.Lock()
        self._is_closed = False
        self._log = get_logger("kintsugi.overlay").bind(worker=agent.identity.worker)

    def start(self) -> None:
        """Begin."""
        self._links.on_loss = self._lose
        self._links.on_up = lambda _: self._look()
        self._agent.on_overlay(self.reconcile)
        self.reconcile(self._agent.overlay)

    def close(self) -> None:
        """Do nothing more."""
        self._is_closed = True

    def reconcile(self, overlay: Overlay) -> None:
        """Compare the overlay with what is, and begin what is missing."""
        if self._is_closed:
            return
        own = self._agent.identity.worker
        for link in overlay.links:
            if own not in link.between:
                continue
            other = link.between[link.between[0] == own]
            connected = self._connected(overlay, other)
            if connected is not None:
                self._confirm(link, connected)
            else:
                self._call(overlay, link, other)
        self._let_go(overlay, own)

    def _look(self) -> None:
        """Links have come or gone."""
        self._prober.heed_links()
        self.reconcile(self._agent.overlay)

    def _connected(self, overlay: Overlay, other: str) -> Link | None:
        """The link with a neighbour, unless it is with an earlier life of it: that one may not have gone yet."""
        link = self._links.get(other)
        known = next((one.incarnation for one in overlay.workers if one.id == other), 0)
        return link if link is not None and link.peer.incarnation >= known else None

    def _call(self, overlay: Overlay, link: OverlayLink, other: str) -> None:
        """Connect a wanted link whose first end this worker is."""
        own = self._agent.identity.worker
        address = next((one.address for one in overlay.workers if one.id == other), None)
        if link.between[0] == own and address is not None and self._is_first((other, link.generation)):
            self._begin(lambda: self._connect(link, other, address), f"connects-{other}")

    def _connect(self, link: OverlayLink, other: str, address: str) -> None:
        try:
            self._links.connect(other, address)
        except KintsugiError as error:
            self._log.info("a link cannot be connected", neighbor=other, why=str(error))
            event_id = f"unreachable-{'-'.join(link.between)}-{link.generation}"
            interrupted = other in needed_links(self._agent.effective, self._agent.identity.worker)
            self._agent.teller.tell(
                OverlayEventKind.LINK_DISCONNECTED,
                event_id,
                link=link.between,
                detail=str(error),
                interrupted=interrupted,
                generation=link.generation,
            )

    def _confirm(self, link: OverlayLink, connected: Link) -> None:
        """Tell that a link is connected, and probe it, where the scheduler waits for that."""
        if link.between[0] != self._agent.identity.worker or (link.is_measured and link.state is LinkState.UP):
            return
        turn = self._turn(link, connected)
        if turn is not None:
            self._begin(lambda: self._measure(link, turn), f"probes-{connected.peer.worker}")

    def _turn(self, link: OverlayLink, connected: Link) -> Turn | None:
        """The turn of a link to be probed over a connection; None where that, or a later one, had it."""
        with self._lock:
            known = self._probed.get(connected.peer.worker)
            if known is not None:
                generation, turn = known
                if generation > link.generation or (generation == link.generation and turn.link is connected):
                    return None
            turn = self._prober.turn(connected)
            self._probed[connected.peer.worker] = link.generation, turn
            return turn

    def _measure(self, link: OverlayLink, turn: Turn) -> None:
        """Probe a link, and tell what was found. Of one that is lost meanwhile whoever notices tells."""
        name = f"{'-'.join(link.between)}-{link.generation}"
        self._agent.teller.tell(OverlayEventKind.LINK_CONNECTED, f"connected-{name}", link=link.between, generation=link.generation)
        try:
            found = self._prober.measure(turn)
        except OvertakenError:
            return
        except KintsugiError as error:
            self._agent.teller.tell(
                OverlayEventKind.LINK_DISCONNECTED,
                f"silent-{name}",
                link=link.between,
                detail=f"a probe failed: {error}",
                generation=link.generation,
            )
            return
        self._agent.teller.tell(
            OverlayEventKind.LINK_MEASURED,
            f"measured-{name}",
            link=link.between,
            generation=link.generation,
            alpha_seconds=found.alpha_seconds,
            beta_seconds_per_byte=found.beta_seconds_per_byte,
        )

    def _let_go(self, overlay: Overlay, own: str) -> None:
        """End links that neither the overlay wants nor the next reduction needs."""
        kept = self._kept(overlay, own)
        for other in self._links.up:
            link = self._links.get(other)
            if other not in kept and link is not None and link.peer.generation <= overlay.generation:
                self._begin(lambda link=link: self._drop(link), f"drops-{other}")  # type: ignore[misc]

    def _drop(self, link: Link) -> None:
        """End a link, unless it is wanted again by now; what comes to be wanted meanwhile is connected anew."""
        if link.peer.worker not in self._kept(self._agent.overlay, self._agent.identity.worker):
            self._links.disconnect(link)
            self._look()

    def _kept(self, overlay: Overlay, own: str) -> set[str]:
        """Whose links stay. Who has left waits for those that have not to hang up."""
        present = {one.id for one in overlay.workers}
        if own not in present:
            return present
        return {*overlay.neighbors(own), *needed_links(self._agent.effective, own)}

    def _lose(self, link: Link, why: str) -> None:
        self._prober.heed_links()
        self._begin(lambda: self._losses.report(link, why), f"lost-{link.peer.worker}")

    def _is_first(self, task: Task) -> bool:
        with self._lock:
            is_new = task not in self._tried
            self._tried.add(task)
            return is_new

    def _begin(self, work: Callable[[], None], name: str) -> None:
        if not self._is_closed:
            threading.Thread(target=self._run, args=(work,), name=f"overlay-{name}", daemon=True).start()

    def _run(self, work: Callable[[], None]) -> None:
        with suppress(UnavailableError, ForbiddenError):
            work()
