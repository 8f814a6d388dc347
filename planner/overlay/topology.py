"""Who is connected with whom in an overlay, and the small changes that larger ones consist of."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from kintsugi.core.overlay import LinkState, Overlay, OverlayLink, OverlayWorker, Shape, SynchronizationPolicy, WorkerState

FIRST_TERM = 1
PRESENT = frozenset({WorkerState.ACTIVE, WorkerState.DRAINING, WorkerState.JOINING})
"""Who takes part in some way; the others have no links."""
MOST_FAILED_KEPT = 32
"""Failed workers that are remembered, so that a word of their last life is known as such."""


def empty_overlay(name: str) -> Overlay:
    """The overlay before the first worker joined."""
    policy = SynchronizationPolicy(shape=Shape.TREE, order=())
    return Overlay(name=name, generation=0, term=FIRST_TERM, workers=(), links=(), synchronization=policy)


def find_worker(overlay: Overlay, worker: str | None) -> OverlayWorker | None:
    """The worker of that id, if there is one."""
    return next((one for one in overlay.workers if one.id == worker), None)


def find_link(overlay: Overlay, between: tuple[str, str]) -> OverlayLink | None:
    """The link between two workers, given in ascending order, if there is one."""
    return next((link for link in overlay.links if link.between == between), None)


def in_state(overlay: Overlay, *states: WorkerState) -> tuple[str, ...]:
    """Ids of the workers in one of `states`, in the order in which they joined."""
    return tuple(worker.id for worker in overlay.workers if worker.state in states)


def may_hold(overlay: Overlay) -> tuple[str, ...]:
    """Who may have the state: also whoever is about to leave, which sends it until it has left."""
    return in_state(overlay, WorkerState.ACTIVE, WorkerState.DRAINING)


def holders(overlay: Overlay) -> tuple[str, ...]:
    """Who holds the state for the others: whose gradients count, and only where nobody's do, whoever is about to leave.

    Among those who leave are some that never had it, and some that were spared and are not called back.
    """
    return overlay.synchronization.order or in_state(overlay, WorkerState.DRAINING)


def put_worker(overlay: Overlay, worker: OverlayWorker) -> Overlay:
    """With `worker` in the place of the one of its id, or behind all others."""
    if find_worker(overlay, worker.id) is None:
        return replace(overlay, workers=(*overlay.workers, worker))
    return replace(overlay, workers=tuple(worker if one.id == worker.id else one for one in overlay.workers))


def take_worker(overlay: Overlay, worker: str) -> Overlay:
    """Without the worker and its links."""
    workers = tuple(one for one in overlay.workers if one.id != worker)
    return cut_off(replace(overlay, workers=workers), worker)


def cut_off(overlay: Overlay, worker: str) -> Overlay:
    """Without the links of a worker."""
    return replace(overlay, links=tuple(link for link in overlay.links if worker not in link.between))


def put_link(overlay: Overlay, link: OverlayLink) -> Overlay:
    """With `link` in the place of the one between the same workers, in ascending order of the ends."""
    others = (one for one in overlay.links if one.between != link.between)
    return replace(overlay, links=tuple(sorted((*others, link), key=lambda one: one.between)))


def take_link(overlay: Overlay, between: tuple[str, str]) -> Overlay:
    """Without the link between two workers."""
    return replace(overlay, links=tuple(link for link in overlay.links if link.between != between))


def fail_workers(overlay: Overlay, workers: Collection[str], detail: str) -> Overlay:
    """With `workers` failed and without links; of those that failed long ago only the latest are remembered."""
    if not workers:
        return overlay
    failed = tuple(replace(one, state=WorkerState.FAILED, detail=detail) for one in overlay.workers if one.id in set(workers))
    for one in failed:
        overlay = cut_off(overlay, one.id)
    others = tuple(one for one in overlay.workers if one.id not in set(workers))
    known = [one.id for one in (*others, *failed) if one.state is WorkerState.FAILED]
    forgotten = set(known[: max(0, len(known) - MOST_FAILED_KEPT)])
    return replace(overlay, workers=tuple(one for one in (*others, *failed) if one.id not in forgotten))


def up_links(overlay: Overlay, workers: Collection[str]) -> tuple[OverlayLink, ...]:
    """Connected links with both ends among `workers`."""
    among = set(workers)
    return tuple(link for link in overlay.links if link.state is LinkState.UP and among.issuperset(link.between))


def links_of(overlay: Overlay, worker: str) -> tuple[tuple[str, OverlayLink], ...]:
    """Every link of a worker, with whom it leads to."""
    return tuple((other_end(link, worker), link) for link in overlay.links if worker in link.between)


def other_end(link: OverlayLink, worker: str) -> str:
    """Whom a link leads to from `worker`."""
    first, second = link.between
    return second if first == worker else first


def ascending(first: str, second: str) -> tuple[str, str]:
    """Two workers as links name them."""
    return (first, second) if first < second else (second, first)


def adjacency(workers: Iterable[str], links: Iterable[OverlayLink]) -> dict[str, list[tuple[str, OverlayLink]]]:
    """The neighbours of every worker, in the order of `links`, with the link to each."""
    neighbors: dict[str, list[tuple[str, OverlayLink]]] = {worker: [] for worker in workers}
    for link in links:
        first, second = link.between
        neighbors[first].append((second, link))
        neighbors[second].append((first, link))
    return neighbors


def components(workers: Sequence[str], links: Iterable[OverlayLink]) -> list[tuple[str, ...]]:
    """Parts of `workers` that `links` connect, each in the order of `workers`, as is the list by its first ones.

    Complexity: O(workers + links).
    """
    neighbors, seen, parts = adjacency(workers, links), set[str](), []
    for start in workers:
        if start in seen:
            continue
        part, waiting = {start}, deque([start])
        while waiting:
            for other, _ in neighbors[waiting.popleft()]:
                if other not in part:
                    part.add(other)
                    waiting.append(other)
        seen |= part
        parts.append(tuple(worker for worker in workers if worker in part))
    return parts
