"""Where a worker stands in the shape in which gradients are reduced."""

from dataclasses import dataclass

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.overlay import Shape, SynchronizationPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A worker's place in a tree."""

    worker: str
    parent: str | None
    """None at the root."""
    children: tuple[str, ...]
    """Who sends up to this worker, in the order in which what they send is added."""
    listeners: tuple[str, ...]
    """Who only gets results from this worker."""

    @property
    def peers(self) -> tuple[str, ...]:
        """Everybody whose link this worker needs."""
        above = () if self.parent is None else (self.parent,)
        return above + self.children + self.listeners


def position(policy: SynchronizationPolicy, worker: str, *, with_listeners: bool = False) -> Position:
    """The worker's place in a policy's tree; a ring counts as the chain that begins at its first worker.

    Args:
        policy: in which the worker counts or listens.
        worker: whose place.
        with_listeners: whether listeners send up, too (they do where everybody is asked something).

    Raises:
        InvalidInputError: the worker has no place in it.
    """
    if worker not in policy.order and worker not in policy.listeners:
        raise InvalidInputError("neither counts nor listens in this policy", field="worker", value=worker)
    parents = _parents(policy)
    below = [other for other in policy.order if parents.get(other) == worker]
    hearing = [other for other in policy.listeners if parents.get(other) == worker]
    return Position(
        worker=worker,
        parent=parents.get(worker),
        children=(*below, *hearing) if with_listeners else tuple(below),
        listeners=() if with_listeners else tuple(hearing),
    )


def needed_links(policy: SynchronizationPolicy, worker: str) -> tuple[str, ...]:
    """The neighbours without whose links the worker cannot take part; none where it has no place in the policy."""
    if worker not in policy.order and worker not in policy.listeners:
        return ()
    peers = position(policy, worker).peers
    if policy.shape is Shape.TREE or worker not in policy.order:
        return peers
    after, before = ring_neighbors(policy, worker)
    return tuple(dict.fromkeys((*peers, *(one for one in (after, before) if one != worker))))


def ring_neighbors(policy: SynchronizationPolicy, worker: str) -> tuple[str, str]:
    """Who comes after the worker in a ring, and who before it."""
    order = policy.order
    index = order.index(worker)
    return order[(index + 1) % len(order)], order[index - 1]


def _parents(policy: SynchronizationPolicy) -> dict[str, str]:
    if policy.shape is Shape.TREE:
        return dict(policy.parents)
    chain = dict(zip(policy.order[1:], policy.order, strict=False))
    return {**policy.parents, **chain}
