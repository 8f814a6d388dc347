"""Links that keep the active workers connected whoever of them is lost: asked for by those that named no neighbours."""

from kintsugi.core.overlay import Overlay, OverlayWorker, WorkerState
from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay.agent import Agent


class Redundancy:
    """One worker's part of the ring of active workers, in the order in which they joined: no single loss parts a ring.

    Each asks for its link once in the life of the other end: what cannot be connected, or was given up since, is left so.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._asked: set[tuple[str, int]] = set()

    def heed(self, overlay: Overlay) -> None:
        """Ask for what is missing of the ring, as long as the loss of one worker would part the others."""
        own = self._agent.identity
        linked = overlay.neighbors(own.worker)
        missing = [
            one
            for one in ring_neighbors(overlay, own.worker)
            if one.id not in linked and (one.id, one.incarnation) not in self._asked
        ]
        if not missing or not is_parted_by_one(overlay):
            return
        for one in missing:
            self._asked.add((one.id, one.incarnation))
            self._agent.teller.tell(
                OverlayEventKind.LINK_CONNECTED,
                f"ring-{own.worker}-{own.incarnation}-{one.id}-{one.incarnation}",
                link=tuple(sorted((own.worker, one.id))),
                detail=f"asked by {own.worker}: the loss of one worker would part the others",
            )


def ring_neighbors(overlay: Overlay, worker: str) -> tuple[OverlayWorker, ...]:
    """Active workers that an active one links with: that which joined before it and, where it joined last, the first.

    The first asks nobody: it had nobody to name, whatever its user wants.
    """
    active = [one for one in overlay.workers if one.state is WorkerState.ACTIVE]
    place = next((index for index, one in enumerate(active) if one.id == worker), 0)
    if not place:
        return ()
    closing = place == len(active) - 1 and place > 1
    return (active[place - 1], active[0]) if closing else (active[place - 1],)


def is_parted_by_one(overlay: Overlay) -> bool:
    """Whether the loss of one active worker would part the others, by the links that are wanted; O(workers + links)."""
    import networkx as nx  # not with the module: it takes as long as a few steps, and few workers need it

    active = [one.id for one in overlay.workers if one.state is WorkerState.ACTIVE]
    graph = nx.Graph(link.between for link in overlay.links if set(link.between).issubset(active))
    graph.add_nodes_from(active)
    return not nx.is_biconnected(graph)
