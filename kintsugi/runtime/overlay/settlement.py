"""After a failure: everybody says what it has committed, so that no step gets two sums and none is lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kintsugi.runtime.overlay.exchange import Exchange
from kintsugi.runtime.overlay.tree import Position

_SAY, _VERDICT = "say", "verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What everybody knows then."""

    committed: Mapping[str, int]
    """The last round of every worker."""
    overlay: Mapping[str, Any]
    """The root's newest, as a document: which replications everybody is to know of."""

    @property
    def newest(self) -> int:
        """The last round that anybody has committed."""
        return max(self.committed.values())

    @property
    def holder(self) -> str | None:
        """Who gives the last committed gradient to those that lack just that one; none where nobody does."""
        newest = self.newest
        if newest - 1 not in self.committed.values():
            return None
        return min(worker for worker, number in self.committed.items() if number == newest)


def settle(exchange: Exchange, place: Position, committed: int, overlay: Mapping[str, Any]) -> Settled:
    """One pass up, in which everybody says what it has committed, and one down with all of it.

    Raises:
        CalledOffError: the reductions restart once more.
        LostLinkError: a link that is needed is gone.
        UnavailableError: somebody said nothing for too long.
    """
    known: dict[str, int] = {place.worker: committed}
    awaited = set(place.children)
    while awaited:
        worker, message = exchange.receive()
        known |= message.fields["committed"]
        awaited.discard(worker)
    settled = Settled(committed=known, overlay=overlay)
    if place.parent is not None:
        exchange.send(place.parent, _SAY, {"committed": known})
        _, verdict = exchange.receive()
        settled = Settled(committed=verdict.fields["committed"], overlay=verdict.fields["overlay"])
    for child in place.children:
        exchange.send(child, _VERDICT, {"committed": dict(settled.committed), "overlay": settled.overlay})
    return settled
