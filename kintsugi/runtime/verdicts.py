"""Which of several replicas is wrong: what errs by chance does not err twice in the same way, so what most of them say is right."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

Slot = tuple[int, str]
"""A layer and one of its holders."""


@dataclass(frozen=True, slots=True)
class Vote:
    """What one holder says of a layer."""

    kind: float
    """Of its device: unlike ones round differently, so only alike ones are compared."""
    digest: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found."""

    layers: tuple[int, ...] = ()
    """Of which holders differ."""
    wrong: tuple[str, ...] = ()
    """Workers that hold something else than most; none where it is one against one."""
    unsettled: tuple[int, ...] = ()
    """Layers of which the others differ, too."""


def judged(
    votes: Mapping[int, Mapping[str, Vote]], copied: Collection[Slot] = frozenset(), *, prefers_sources: bool = False
) -> Verdict:
    """Who is wrong, by layer and holder: who holds something else than more of the others do that have a device of its kind.

    What errs by chance does not err twice in the same way. Who is wrong about one layer is no witness for another where it stands
    against one. Linear in the votes, times the rounds that this takes.

    Args:
        votes: by layer and holder.
        copied: who has a layer from others and was not compared since: no witness beside several others. A single other one, which
            may be the source, is right where most copies say so, too; it may have erred since it sent them.
        prefers_sources: whether such a single one is right against copies no two of which agree; else nobody can tell.
    """
    layers = [layer for layer, by_holder in votes.items() if not _is_agreed(by_holder.values())]
    wrong: set[str] = set()
    while found := {
        worker for layer in layers for worker in _outvoted(layer, votes[layer], copied, wrong, prefers_sources=prefers_sources)
    }:
        wrong |= found
    unsettled = [layer for layer in layers if not _is_agreed(_trusted(votes[layer], wrong).values())]
    return Verdict(tuple(sorted(layers)), tuple(sorted(wrong)), tuple(sorted(unsettled)))


def _is_agreed(votes: Iterable[Vote]) -> bool:
    found = set(votes)
    return len(found) == len({vote.kind for vote in found})


def _trusted(votes: Mapping[str, Vote], wrong: Collection[str]) -> dict[str, Vote]:
    return {holder: vote for holder, vote in votes.items() if holder not in wrong}


def _outvoted(
    layer: int, votes: Mapping[str, Vote], copied: Collection[Slot], wrong: Collection[str], *, prefers_sources: bool
) -> set[str]:
    trusted = _trusted(votes, wrong)
    outvoted: set[str] = set()
    for kind in {vote.kind for vote in trusted.values()}:
        alike = {holder: vote for holder, vote in trusted.items() if vote.kind == kind}
        witnesses = [vote for holder, vote in alike.items() if (layer, holder) not in copied]
        right = _right(Counter(alike.values()), Counter(witnesses), prefers_sources=prefers_sources)
        outvoted |= {holder for holder, vote in alike.items() if right not in (vote, None)}
    return outvoted


def _right(votes: Counter[Vote], witnesses: Counter[Vote], *, prefers_sources: bool) -> Vote | None:
    """What holders on devices of one kind say that are right; none where nobody can tell."""
    if witnesses.total() != 1:
        return _most_common(witnesses or votes)
    (lone,) = witnesses
    others = max((count for vote, count in votes.items() if vote != lone), default=0)
    return lone if votes[lone] > others or (prefers_sources and others == 1) else None


def _most_common(votes: Counter[Vote]) -> Vote | None:
    (first, most), *others = votes.most_common(2)
    return first if all(count < most for _, count in others) else None
