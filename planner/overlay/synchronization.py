"""Over which links an overlay reduces its gradients, computed anew whenever something changed."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Protocol

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.overlay import Overlay, OverlayLink, Shape, SynchronizationPolicy, WorkerState
from planner.overlay.pricing import SynchronizationProblem, alpha, beta
from planner.overlay.rings import fastest_ring
from planner.overlay.topology import components, find_worker, in_state, links_of, may_hold, up_links
from planner.overlay.trees import fastest_tree


class SynchronizationPlanner(Protocol):
    """Chooses the links for a reduction; whoever has a better way puts a function of his own in its place.

    It must be deterministic: the overlay's log is played back with it.
    """

    def __call__(self, problem: SynchronizationProblem) -> SynchronizationPolicy:
        """A tree or ring over `problem.links` that spans exactly `problem.workers`; listeners are added to it."""
        ...


def fastest(problem: SynchronizationProblem) -> SynchronizationPolicy:
    """The tree or ring of least predicted seconds."""
    tree = fastest_tree(problem)
    ring = fastest_ring(problem, below_seconds=tree.seconds)
    seconds = tree.seconds if ring is None else ring.seconds
    predicted = seconds if all(link.is_measured for link in problem.links) else None
    if ring is None:
        reason = f"tree of root {tree.order[0]}: no ring is predicted faster"
        return SynchronizationPolicy(
            shape=Shape.TREE, order=tree.order, parents=tree.parents, predicted_seconds=predicted, reason=reason
        )
    reason = f"ring: predicted {ring.seconds:.3g} s, the fastest tree {tree.seconds:.3g} s"
    return SynchronizationPolicy(shape=Shape.RING, order=ring.order, predicted_seconds=predicted, reason=reason)


def synchronized(overlay: Overlay, planner: SynchronizationPlanner = fastest) -> Overlay:
    """The overlay with the policy for those whose gradients count now; joining workers that fetch the state listen.

    Raises:
        InvalidInputError: the planner chose what is no policy for these workers and links.
    """
    workers = counting(overlay)
    if not workers:
        reason = "nobody is active"
        return replace(overlay, synchronization=SynchronizationPolicy(shape=Shape.TREE, order=(), reason=reason))
    problem = SynchronizationProblem(
        workers=workers, links=up_links(overlay, workers), message_bytes=_message_bytes(overlay, workers)
    )
    policy = planner(problem)
    check_policy(problem, policy)
    return replace(overlay, synchronization=_with_listeners(overlay, policy))


def counting(overlay: Overlay) -> tuple[str, ...]:
    """Whose gradients count: the active workers, and of the draining ones those that cannot be spared yet.

    A draining worker is kept while the active ones are connected through it alone, and while nobody else holds the state that
    a joining one is to fetch. One that was spared before is not called back: it may have gone from the reductions since.
    """
    spared = set(in_state(overlay, WorkerState.DRAINING)).difference(overlay.synchronization.order)
    active = in_state(overlay, WorkerState.ACTIVE)
    draining = tuple(one for one in in_state(overlay, WorkerState.DRAINING) if one not in spared)
    if not active:
        return draining if in_state(overlay, WorkerState.JOINING) else ()
    kept = tuple(one for one in may_hold(overlay) if one not in spared)
    num_parts = _num_parts(overlay, kept, active)
    for worker in draining:
        fewer = tuple(one for one in kept if one != worker)
        if _num_parts(overlay, fewer, active) == num_parts:
            kept = fewer
    return kept


def check_policy(problem: SynchronizationProblem, policy: SynchronizationPolicy) -> None:
    """Require that a policy spans the workers over the links.

    Raises:
        InvalidInputError: it does not.
    """
    if sorted(policy.order) != sorted(problem.workers) or policy.listeners:
        message = f"must name exactly the workers that count ({', '.join(problem.workers)}), and no listeners"
        raise InvalidInputError(message, field="synchronization.order", value=list(policy.order))
    used = _ring_links(policy.order) if policy.shape is Shape.RING else _tree_links(policy)
    known = {frozenset(link.between) for link in problem.links}
    for ends in used:
        if frozenset(ends) not in known:
            raise InvalidInputError("is no connected link", field=f"synchronization.{policy.shape.value}", value=sorted(ends))


def load_planner(name: str, field: str = "synchronization") -> SynchronizationPlanner:
    """The planner that `module:function` names, which `field` says.

    Raises:
        InvalidInputError: there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"names no function ({error}); give it as module:function, the module where Python finds it"
        raise InvalidInputError(message, field=field, value=name) from error
    if not callable(found):
        raise InvalidInputError("is not callable", field=field, value=name)
    planner: SynchronizationPlanner = found
    return planner


def _num_parts(overlay: Overlay, workers: Sequence[str], active: Sequence[str]) -> int:
    """Into how many parts that hold active ones `workers` fall."""
    parts = components(workers, up_links(overlay, workers))
    return sum(1 for part in parts if not set(part).isdisjoint(active))


def _message_bytes(overlay: Overlay, workers: Sequence[str]) -> int:
    told = (find_worker(overlay, worker) for worker in workers)
    return max((one.gradient_bytes or one.state_bytes or 0 for one in told if one is not None), default=0)


def _with_listeners(overlay: Overlay, policy: SynchronizationPolicy) -> SynchronizationPolicy:
    """Every worker that fetches the state listens to its fastest neighbour that counts."""
    parents, listeners = dict(policy.parents), []
    for joiner in in_state(overlay, WorkerState.JOINING):
        neighbors = listening_links(overlay, joiner, policy.order)
        if neighbors and any(one.joiner == joiner for one in overlay.replications):
            listeners.append(joiner)
            parents[joiner] = min(neighbors, key=lambda one: (beta(one[1]), alpha(one[1]), one[0]))[0]
    return replace(policy, parents=parents, listeners=tuple(listeners))


def listening_links(overlay: Overlay, joiner: str, order: Sequence[str]) -> list[tuple[str, OverlayLink]]:
    """Connected links of a joining worker to those that count."""
    up = {link.between for link in up_links(overlay, (joiner, *order))}
    return [(other, link) for other, link in links_of(overlay, joiner) if link.between in up]


def _ring_links(order: Sequence[str]) -> list[tuple[str, str]]:
    return [(order[index - 1], worker) for index, worker in enumerate(order)]


def _tree_links(policy: SynchronizationPolicy) -> list[tuple[str, str]]:
    """Child and parent of every link.

    Raises:
        InvalidInputError: a worker stands before its parent, or has none.
    """
    links = []
    for index, worker in enumerate(policy.order):
        parent = policy.parents.get(worker)
        if index and parent not in policy.order[:index]:
            raise InvalidInputError("must stand behind its parent", field=f"synchronization.order[{index}]", value=worker)
        if index and parent is not None:
            links.append((worker, parent))
    if policy.order[0] in policy.parents:
        raise InvalidInputError("is the root and has no parent", field="synchronization.order[0]", value=policy.order[0])
    return links
