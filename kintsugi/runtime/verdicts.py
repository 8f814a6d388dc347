"""Which of several replicas is wrong: what errs by chance does not err twice in the same way, so what most of them say is right."""

from collections import Counter, defaultdict
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


def judged(votes: Mapping[int, Mapping[str, Vote]], copied: Collection[Slot] = frozenset()) -> Verdict:
    """Who is wrong, by layer and holder: who holds something else than more of the others do that have a device of its kind.

    What errs by chance does not err twice in the same way. Who is wrong about one layer is no witness for another where it stands
    against one. Linear in the votes, times the rounds that this takes.
    """
    layers = [layer for layer, by_holder in votes.items() if not _is_agreed(by_holder.values())]
    wrong: set[str] = set()
    while found := {worker for layer in layers for worker in _outvoted(layer, votes[layer], copied, wrong)}:
        wrong |= found
    return Verdict(tuple(sorted(layers)), tuple(sorted(wrong)))


def _is_agreed(votes: Iterable[Vote]) -> bool:
    found = set(votes)
    return len(found) == len({vote.kind for vote in found})


def _outvoted(layer: int, votes: Mapping[str, Vote], copied: Collection[Slot], wrong: Collection[str]) -> set[str]:
    trusted = {holder: vote for holder, vote in votes.items() if holder not in wrong}
    witnesses = [vote for holder, vote in trusted.items() if (layer, holder) not in copied] or list(trusted.values())
    right = _most_common(witnesses)
    return {holder for holder, vote in trusted.items() if right.get(vote.kind, vote) != vote}


def _most_common(witnesses: Iterable[Vote]) -> dict[float, Vote]:
    """By kind of device, what more of them say than anything else; nothing of a kind of which two are said as often."""
    counts: dict[float, Counter[Vote]] = defaultdict(Counter)
    for vote in witnesses:
        counts[vote.kind][vote] += 1
    right = {}
    for kind, found in counts.items():
        (first, most), *others = found.most_common(2)
        if all(count < most for _, count in others):
            right[kind] = first
    return right
