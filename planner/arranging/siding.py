"""Workers to pipelines where slow links lie between groups of them: each group, a rack, is dealt out by itself."""

from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from itertools import chain, groupby
from typing import NamedTuple

from planner.arranging.grouping import Kinds, dealt
from planner.pipelines.kinds import WorkerKind, fastest_first

MOST_SIDES = 8
"""Between more groups slow links are not what is looked at first."""


class Seat(NamedTuple):
    """A worker and the side of slow links that it is on."""

    side: int
    kind: WorkerKind


Seats = tuple[Seat, ...]
"""Workers of a pipeline, first stage first."""


def has_ways(sides: Sized) -> bool:
    """Whether there are several groups, and no more than are dealt out each by itself."""
    return 1 < len(sides) <= MOST_SIDES


def ways(sides: Sequence[Kinds], dp: int, lengths: range) -> Iterator[tuple[Seats, ...]]:
    """Workers of `dp` pipelines of allowed lengths: replicas of every stage, or whole pipelines, on one side of slow links.

    Args:
        sides: workers on each side of slow links.
        dp: number of pipelines.
        lengths: that are allowed.
    """
    if not has_ways(sides):
        return
    seen = set[tuple[Seats, ...]]()
    for way in (*_by_stages(sides, dp, lengths), *by_pipelines(sides, dp, lengths)):
        if way not in seen:
            seen.add(way)
            yield way


def _by_stages(sides: Sequence[Kinds], dp: int, lengths: range) -> Iterator[tuple[Seats, ...]]:
    """As many stages on each side as it has whole rounds of `dp` workers for: whoever is over stays idle."""
    for in_rounds in (_fastest_first, _of_one_kind, _proportional):
        rounds = _fastest(in_rounds(sides, dp), lengths[-1])
        if len(rounds) >= lengths[0]:
            yield tuple(zip(*rounds, strict=True))


def _fastest(rounds: Sequence[Seats], count: int) -> list[Seats]:
    """So many rounds without the slowest, in the order given."""
    speeds = [sum(seat.kind.speed_ratio for seat in own) for own in rounds]
    kept = sorted(range(len(rounds)), key=lambda place: -speeds[place])[:count]
    return [rounds[place] for place in sorted(kept)]


def _fastest_first(sides: Sequence[Kinds], size: int) -> list[Seats]:
    """Rounds of so many workers of one side each, the fastest first; who is over are the slowest."""
    return [own for side, kinds in enumerate(sides) for own in _rounds(side, fastest_first(kinds), size)]


def _of_one_kind(sides: Sequence[Kinds], size: int) -> list[Seats]:
    """Rounds of workers that are alike."""
    return [
        own
        for side, kinds in enumerate(sides)
        for _, run in groupby(fastest_first(kinds))
        for own in _rounds(side, tuple(run), size)
    ]


def _proportional(sides: Sequence[Kinds], size: int) -> list[Seats]:
    """Rounds with as many workers of each kind as there are of it among all, so that alike workers share a pipeline."""
    total = Counter(kind for kinds in sides for kind in kinds)
    order = fastest_first(total)
    shares = dict(zip(order, apportioned([total[kind] for kind in order], size), strict=True))
    crew = tuple(kind for kind in order for _ in range(shares[kind]))
    result = []
    for side, kinds in enumerate(sides):
        own = Counter(kinds)
        result += [tuple(Seat(side, kind) for kind in crew)] * min(own[kind] // share for kind, share in shares.items() if share)
    return result


def _rounds(side: int, kinds: Kinds, size: int) -> list[Seats]:
    """Whole rounds of workers in order."""
    seats = tuple(Seat(side, kind) for kind in kinds)
    return [seats[start : start + size] for start in range(0, len(seats) - size + 1, size)]


def by_pipelines(sides: Sequence[Kinds], dp: int, lengths: range) -> Iterator[tuple[Seats, ...]]:
    """As many pipelines on each side as its speed is worth, and as many on each; also without the slower sides."""
    speeds = [sum(kind.speed_ratio for kind in kinds) for kinds in sides]
    order = sorted(range(len(sides)), key=lambda side: -speeds[side])
    for num_used in range(len(sides), 0, -1):
        used = sorted(order[:num_used])
        shares = [apportioned([speeds[side] for side in used], dp)]
        if dp % num_used == 0:
            shares.append((dp // num_used,) * num_used)
        for counts in shares:
            groups = (_on_one(side, sides[side], count, lengths) for side, count in zip(used, counts, strict=True))
            pipelines = tuple(chain.from_iterable(groups))
            if len(pipelines) == dp:
                yield pipelines


def _on_one(side: int, kinds: Kinds, count: int, lengths: range) -> list[Seats]:
    """So many pipelines of the fastest workers of a side, about as long as each other; none where these are too few."""
    num_workers = min(len(kinds), count * lengths[-1])
    if not count or num_workers < count * lengths[0]:
        return []
    length, num_longer = divmod(num_workers, count)
    groups = dealt(fastest_first(kinds)[:num_workers], [length + (place < num_longer) for place in range(count)])
    return [tuple(Seat(side, kind) for kind in group) for group in groups]


def apportioned(weights: Sequence[float], total: int) -> tuple[int, ...]:
    """Shares of a number by weight: whole parts, and one more for the largest remainders."""
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    shares = [int(share) for share in exact]
    for place in sorted(range(len(weights)), key=lambda place: shares[place] - exact[place])[: total - sum(shares)]:
        shares[place] += 1
    return tuple(shares)
