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

    @property
    def peers(self) -> tuple[str, ...]:
        """Everybody whose link this worker needs."""
        above = () if self.parent is None else (self.parent,)
        return above + self.children


def position(policy: SynchronizationPolicy, worker: str) -> Position:
    """The worker's place in a policy's tree; a ring counts as the chain that begins at its first worker.

    Raises:
        InvalidInputError: the worker does not count in it.
    """
    if worker not in policy.order:
        raise InvalidInputError("does not count in this policy", field="worker", value=worker)
    parents = _parents(policy)
    children = tuple(other for other in policy.order if parents.get(other) == worker)
    return Position(worker=worker, parent=parents.get(worker), children=children)


def needed_links(policy: SynchronizationPolicy, worker: str) -> tuple[str, ...]:
    """The neighbours without whose links the worker cannot take part; none where it does not count in the policy."""
    if worker not in policy.order:
        return ()
    if policy.shape is Shape.TREE:
        return position(policy, worker).peers
    after, before = ring_neighbors(policy, worker)
    return tuple(dict.fromkeys((*position(policy, worker).peers, *(one for one in (after, before) if one != worker))))


def ring_neighbors(policy: SynchronizationPolicy, worker: str) -> tuple[str, str]:
    """Who comes after the worker in a ring, and who before it."""
    order = policy.order
    index = order.index(worker)
    return order[(index + 1) % len(order)], order[index - 1]


def _parents(policy: SynchronizationPolicy) -> dict[str, str]:
    if policy.shape is Shape.TREE:
        return dict(policy.parents)
    return dict(zip(policy.order[1:], policy.order, strict=False))
