"""Which workers are cut off from each other, and who has to go so that all that stay can talk.

A link that is cut in silence looks like a slow peer from both of its ends: nobody is dead and nobody is wrong. So the
workers are asked whom they can reach, which disturbs no training; only what they find leads to a loss.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kintsugi.core.plan import Plan
from kintsugi.runtime.messages import Probe, Reached
from kintsugi.runtime.processes import WorkerHandle


@dataclass(slots=True)
class LinkProbe:
    """One question to all members, and their answers."""

    number: int
    """Of all questions of a run; answers to earlier ones do not count."""
    handles: tuple[WorkerHandle, ...]
    timeout_seconds: float
    asked_at: float = field(default_factory=time.monotonic)
    unreachable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By worker that answered."""

    def ask(self) -> None:
        """Send the question."""
        addresses = {handle.worker: handle.address for handle in self.handles if handle.address is not None}
        for handle in self.handles:
            others = {worker: address for worker, address in addresses.items() if worker != handle.worker}
            handle.send(Probe(self.number, others, self.timeout_seconds))

    def take(self, worker: str, answer: Reached) -> None:
        """Take an answer in; one to an earlier question does not count."""
        if answer.number == self.number:
            self.unreachable[worker] = answer.unreachable

    def is_over(self) -> bool:
        """Whether all have answered, or could have."""
        return len(self.unreachable) == len(self.handles) or time.monotonic() - self.asked_at > 2 * self.timeout_seconds

    def cut_off(self, plan: Plan | None, is_here: Callable[[WorkerHandle], bool]) -> tuple[WorkerHandle, ...]:
        """Workers that must go, of those that are here still; `plan` says who holds which layers."""
        here = {handle.worker: handle for handle in self.handles if is_here(handle)}
        return tuple(here[worker] for worker in cut_off(self.unreachable, here, plan))


def cut_off(unreachable: Mapping[str, Iterable[str]], workers: Iterable[str], plan: Plan | None) -> tuple[str, ...]:
    """Workers without which all others reach each other: always the one with the most broken links goes next.

    Of equals goes one whose layers are held by others too, then the last. A greedy vertex cover, O(workers^2 links).

    Args:
        unreachable: whom each worker could not reach; one end's word is enough.
        workers: in the order of the ranks.
        plan: where the state lies; null where there is none.
    """
    left = list(workers)
    links = {frozenset((worker, other)) for worker, others in unreachable.items() for other in others}
    gone = []
    while links := {link for link in links if link <= set(left)}:
        order = {worker: rank for rank, worker in enumerate(left)}
        chosen = max(left, key=lambda w: (sum(w in link for link in links), not _holds_alone(plan, w, left), order[w]))
        left.remove(chosen)
        gone.append(chosen)
    return tuple(gone)


def _holds_alone(plan: Plan | None, worker: str, workers: Iterable[str]) -> bool:
    others = set(workers) - {worker}
    return plan is not None and any(worker in holders and not others & set(holders) for holders in plan.holders)
