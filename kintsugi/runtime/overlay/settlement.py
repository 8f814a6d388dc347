"""After a failure: everybody says what it has committed, so that no step gets two sums and none is lost."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from kintsugi.runtime.overlay.exchange import Exchange, UnfitMessageError
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.overlay.tree import Position

_SAY, _VERDICT = "say", "verdict"


class Standing(NamedTuple):
    """Where one worker has got to."""

    number: int
    """Of its last reduction."""
    attempt: int
    """In which that was summed."""
    before: int | None
    """In which the one before was summed; none where the last one is not at hand: this worker has begun with the state after it."""

    @property
    def can_be_handed_on(self) -> bool:
        """Whether others can get the last reduction from this worker."""
        return self.before is not None


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What everybody knows then."""

    committed: Mapping[str, Standing]
    """The last reduction of every worker."""
    overlay: Mapping[str, Any]
    """The root's newest, as a document: which replications everybody is to know of."""

    @cached_property
    def newest(self) -> Standing:
        """The last reduction that counts.

        What nobody can hand on counts only where nobody can hand on anything. Of two sums of one number the later one does: those
        that made it found nobody among them who had the first.
        """
        kept = [one for one in self.committed.values() if one.can_be_handed_on]
        return max(kept or self.committed.values(), key=lambda one: (one.number, one.attempt))

    @property
    def holder(self) -> str | None:
        """Who gives the last committed gradient to those that lack just that one; none where nobody does."""
        if not any(self.lacks_newest(one) for one in self.committed.values()):
            return None
        return min(worker for worker, standing in self.committed.items() if standing == self.newest)

    def has_newest(self, standing: Standing) -> bool:
        """Whether a worker that stands there has all that counts, and nothing else."""
        return standing[:2] == self.newest[:2]

    def lacks_newest(self, standing: Standing) -> bool:
        """Whether it has all but the last reduction, which it can get."""
        return standing[:2] == (self.newest.number - 1, self.newest.before)


def settle(exchange: Exchange, place: Position, committed: Standing, overlay: Mapping[str, Any]) -> Settled:
    """One pass up, in which everybody says what it has committed, and one down with all of it.

    Raises:
        CalledOffError: the reductions restart once more.
        LostLinkError: a link that is needed is gone.
        UnfitMessageError: somebody said what nobody can go on from.
        UnavailableError: somebody said nothing for too long.
    """
    known: dict[str, Standing] = {place.worker: committed}
    awaited = set(place.children)
    while awaited:
        worker, message = exchange.receive()
        known |= _standings(worker, message, _SAY, awaited, worker)
        awaited.discard(worker)
    settled = Settled(committed=known, overlay=overlay)
    if place.parent is not None:
        exchange.send(place.parent, _SAY, {"committed": known})
        worker, verdict = exchange.receive()
        committed_by = _standings(worker, verdict, _VERDICT, (place.parent,), place.worker)
        settled = Settled(committed=committed_by, overlay=verdict.fields.get("overlay") or {})
    for child in place.children:
        exchange.send(child, _VERDICT, {"committed": dict(settled.committed), "overlay": settled.overlay})
    return settled


def _standings(worker: str, message: Message, kind: str, awaited: Collection[str], meant: str) -> dict[str, Standing]:
    """What a neighbour that is `awaited` says in a message of a kind, of `meant` at least.

    Raises:
        UnfitMessageError: it says something else.
    """
    told = message.fields.get("committed")
    if worker not in awaited or message.kind != kind or not isinstance(told, dict) or meant not in told:
        raise UnfitMessageError(worker, f"sent something else ({message.kind}) than what all have committed")
    if not all(isinstance(one, list | tuple) and _is_standing(one) for one in told.values()):
        raise UnfitMessageError(worker, "told what nobody can have committed")
    return {other: Standing(*standing) for other, standing in told.items()}


def _is_standing(told: Sequence[Any]) -> bool:
    return len(told) == 3 and all(type(one) is int for one in told[:2]) and (told[2] is None or type(told[2]) is int)
