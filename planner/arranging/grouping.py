"""Workers to pipelines: who trains with whom, before layers and micro-batches are shared out."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import islice

from planner.pipelines.kinds import WorkerKind

Kinds = tuple[WorkerKind, ...]


@lru_cache
def roomiest_first(group: Kinds) -> Kinds:
    """The workers of a pipeline in order: its first stages hold the most activations."""
    return tuple(sorted(group, key=lambda kind: (-kind.usable_bytes, -kind.speed_ratio)))


def evenly_roomy(kinds: Sequence[WorkerKind], dp: int, lengths: range) -> list[Kinds]:
    """Workers in order, each for the pipeline that has least memory so far; none is shorter or longer than allowed."""
    groups: list[list[WorkerKind]] = [[] for _ in range(dp)]
    takers, longest, num_lacking = [(0, k) for k in range(dp)], lengths[-1], dp * lengths[0]
    for num_taken, kind in enumerate(kinds):
        if num_lacking == len(kinds) - num_taken and longest > lengths[0]:  # who is left goes to those that are too short
            longest = lengths[0]
            takers = [(room, k) for room, k in takers if len(groups[k]) < longest]
            heapify(takers)
        room, k = heappop(takers)
        num_lacking -= len(groups[k]) < lengths[0]
        groups[k].append(kind)
        if len(groups[k]) < longest:
            heappush(takers, (room + kind.usable_bytes, k))
    return [tuple(group) for group in groups]


def in_turn(kinds: Kinds, lengths: Sequence[int]) -> list[Kinds]:
    """Workers in order, one pipeline filled after the other."""
    rest = iter(kinds)
    return [tuple(islice(rest, length)) for length in lengths]


def dealt(kinds: Kinds, lengths: Sequence[int]) -> list[Kinds]:
    """Workers in order, one for each pipeline that is not full, round by round."""
    rest = iter(kinds)
    groups: list[list[WorkerKind]] = [[] for _ in lengths]
    for round_ in range(max(lengths)):
        for group, length in zip(groups, lengths, strict=True):
            if round_ < length:
                group.append(next(rest))
    return [tuple(group) for group in groups]


def just_fitting(kinds: Sequence[WorkerKind], dp: int, lengths: range, fits: Callable[[Kinds], bool]) -> Iterator[list[Kinds]]:
    """Workers in order, each of `dp` pipelines as short as fits memory; then with all others, each beside those who are slowest.

    Nothing where fewer pipelines fit.
    """
    groups: list[Kinds] = []
    rest = tuple(kinds)
    for _ in range(dp):
        ends = range(lengths[0], min(lengths[-1], len(rest)) + 1)
        group = next((rest[:end] for end in ends if fits(roomiest_first(rest[:end]))), None)
        if group is None:
            return
        groups.append(group)
        rest = rest[len(group) :]
    yield groups
    wider = list(groups)
    slowest = [(sum(own.speed_ratio for own in group), k) for k, group in enumerate(groups) if len(group) < lengths[-1]]
    heapify(slowest)
    for kind in rest:
        if not slowest:
            break
        speed, k = heappop(slowest)
        wider[k] = (*wider[k], kind)
        if len(wider[k]) < lengths[-1]:
            heappush(slowest, (speed + kind.speed_ratio, k))
    if wider != groups:
        yield wider
