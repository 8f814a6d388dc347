"""Brings about the links that the overlay wants: connects, probes, reports, and lets go of those that nobody wants."""

import threading
from collections.abc import Callable
from contextlib import suppress

import structlog

from kintsugi.core.errors import ForbiddenError, KintsugiError, UnavailableError
from kintsugi.core.overlay import LinkState, Overlay, OverlayLink
from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.link import Link
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.losses import Losses
from kintsugi.runtime.overlay.probe import Prober
from kintsugi.runtime.overlay.tree import needed_links

Task = tuple[str, int]
"""Neighbour and generation of the link: what was tried once for it is not tried again."""


class Reconciler:
    """Acts on every newer overlay and on every link that comes or goes, in threads of its own."""

    def __init__(self, agent: Agent, links: Links, prober: Prober, losses: Losses) -> None:
        self._agent, self._links, self._prober, self._losses = agent, links, prober, losses
        self._tried: set[Task] = set()
        self._probed: set[Task] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._log = structlog.get_logger("kintsugi.overlay").bind(worker=agent.identity.worker)

    def start(self) -> None:
        """Begin."""
        self._links.on_loss = self._lose
        self._links.on_up = lambda _: self.reconcile(self._agent.overlay)
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
            if self._is_connected(overlay, other):
                self._confirm(link, other)
            else:
                self._call(overlay, link, other)
        self._let_go(overlay, own)

    def _is_connected(self, overlay: Overlay, other: str) -> bool:
        """Whether there is a link, and not with an earlier life of the neighbour: that one may not have gone yet."""
        link = self._links.get(other)
        known = next((one.incarnation for one in overlay.workers if one.id == other), 0)
        return link is not None and link.peer.incarnation >= known

    def _call(self, overlay: Overlay, link: OverlayLink, other: str) -> None:
        """Connect a wanted link whose first end this worker is."""
        own = self._agent.identity.worker
        address = next((one.address for one in overlay.workers if one.id == other), None)
        if link.between[0] == own and address is not None and self._is_first(self._tried, (other, link.generation)):
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

    def _confirm(self, link: OverlayLink, other: str) -> None:
        """Tell that a link is connected, and probe it, where the scheduler waits for that."""
        task = other, link.generation
        if link.between[0] != self._agent.identity.worker or (link.is_measured and link.state is LinkState.UP):
            return
        if self._is_first(self._probed, task):
            self._begin(lambda: self._measure(link, other), f"probes-{other}")

    def _measure(self, link: OverlayLink, other: str) -> None:
        name = f"{'-'.join(link.between)}-{link.generation}"
        self._agent.teller.tell(OverlayEventKind.LINK_CONNECTED, f"connected-{name}", link=link.between, generation=link.generation)
        try:
            found = self._prober.measure(other)
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
                self._begin(lambda other=other: self._links.disconnect(other), f"drops-{other}")  # type: ignore[misc]

    def _kept(self, overlay: Overlay, own: str) -> set[str]:
        """Whose links stay. Who has left waits for those that have not to hang up."""
        present = {one.id for one in overlay.workers}
        if own not in present:
            return present
        return {*overlay.neighbors(own), *needed_links(self._agent.effective, own)}

    def _lose(self, link: Link, why: str) -> None:
        self._begin(lambda: self._losses.report(link, why), f"lost-{link.peer.worker}")

    def _is_first(self, done: set[Task], task: Task) -> bool:
        with self._lock:
            is_new = task not in done
            done.add(task)
            return is_new

    def _begin(self, work: Callable[[], None], name: str) -> None:
        if not self._is_closed:
            threading.Thread(target=self._run, args=(work,), name=f"overlay-{name}", daemon=True).start()

    def _run(self, work: Callable[[], None]) -> None:
        with suppress(UnavailableError, ForbiddenError):
            work()
