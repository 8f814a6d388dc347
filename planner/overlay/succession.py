"""Who may go on in the place of a scheduler that fell silent: by the votes of a majority of those whose gradients count.

A vote is durable and given once a term: two candidates cannot both win one. Whoever has heard of a term trusts no scheduler of a
lower one from then on, so that the words of one that returns are refused. The new one goes on from the newest overlay that it or
one of its voters had seen: of any overlay that was in effect everywhere, one of a majority knows.
"""

from collections.abc import Collection
from dataclasses import dataclass

from kintsugi.core.overlay import Overlay
from kintsugi.core.profile import PYDANTIC_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """For whom a worker voted last; of term 0 before it ever did."""

    __pydantic_config__ = PYDANTIC_CONFIG

    term: int = 0
    candidate: str = ""


def granted(ballot: Ballot, known_term: int, candidate: str, term: int, *, is_silent: bool) -> Ballot | None:
    """The ballot after a vote for `candidate` in `term`; None where the vote is refused.

    Args:
        ballot: the last vote, as it lies on the disk.
        known_term: the highest scheduler's term that the voter has heard of.
        candidate: who asks.
        term: of the scheduler that it would become.
        is_silent: whether the voter itself hears nothing of the present scheduler; while it does, nobody takes over.
    """
    if term <= known_term or not is_silent:
        return None
    if term < ballot.term or (term == ballot.term and candidate != ballot.candidate):
        return None
    return Ballot(term=term, candidate=candidate)


def next_term(ballot: Ballot, known_term: int) -> int:
    """The term that a candidate asks for: above all that it has heard of and voted for."""
    return max(ballot.term, known_term) + 1


def is_elected(overlay: Overlay, voters: Collection[str]) -> bool:
    """Whether `voters` are a majority of those who count in `overlay`."""
    members = set(overlay.synchronization.order)
    return 2 * len(members.intersection(voters)) > len(members)


def is_newer(overlay: Overlay, other: Overlay) -> bool:
    """Whether an overlay was published after another one."""
    return (overlay.term, overlay.generation) > (other.term, other.generation)
