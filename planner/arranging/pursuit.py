"""Which numbers of pipelines are worth a search, and what it finds for them."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from estimator.goodput import effective_time_ratio, migration_seconds
from planner.arranging.arrangement import Arrangement
from planner.arranging.frontier import Frontier
from planner.arranging.interleaving import InterleavedSearch
from planner.arranging.joining import Effort, join
from planner.arranging.request import AnySearch, Request, Sided
from planner.arranging.search import EqualSearch
from planner.arranging.sided import SidedSearch, sides_of
from planner.arranging.unequal import UnequalSearch

Looked = Callable[[int, float], Iterable[Arrangement]]
"""What looks for arrangements of so many pipelines whose step may be below a limit in seconds."""

MOST_EAGER = 6
"""After so many numbers of pipelines only those are pursued that may be faster by more than the search's tolerance."""

MOST_SLACK = 2
"""After twice as many, by more than twice the tolerance; not more."""

MOST_POLISHED = 2
"""Options that are polished."""

CLOSE_ENOUGH = 4e-3
"""Share of a step by which a bound may be below it without a closer look at how reductions wait for each other."""

LEVEL = 2e-3
"""Relative difference between the first two steps that closed-form bounds are asked about."""


def pursue(request: Request, search: AnySearch) -> tuple[Frontier, float]:
    """The fastest arrangement of every number of pipelines that could win, and a lower bound on any step in seconds.

    The bound is no more than the step with which a plan is worth `Request.least_worth`: longer ones are not looked at.
    """
    frontier, limit = Frontier(request, search), _longest_step_to_win(request, request.least_worth)
    degrees, by_sides = search.could_win(search.by_promise(), limit), _by_sides(request, search)
    bounds, others, pursued = dict[int, float](), limit, 0
    while degrees and pursued < search.most_pursued:
        dp, *degrees = degrees
        bound, arrangement = search.arrange(dp, limit)
        bounds[dp] = bound
        pursued += bound < limit
        if arrangement is None:
            continue
        frontier.add(arrangement)
        most = min(limit, _longest_step_to_win(request, frontier.most_goodput) * (1 + search.optimism))
        for other in _beside(search, by_sides, dp, arrangement, most):
            frontier.add(other)
        slack = search.tolerance * min(MOST_SLACK, pursued // MOST_EAGER)
        lower = _longest_step_to_win(request, frontier.most_goodput) * (1 - slack + search.optimism)
        if lower < limit:
            limit, hopeful = lower, search.could_win(degrees, lower)
            others = limit if len(hopeful) < len(degrees) else others
            degrees = hopeful
    if math.isinf(frontier.most_goodput) and math.isinf(limit) and isinstance(search, UnequalSearch):
        for arrangement in search.by_room():
            frontier.add(arrangement)
    others = min(others, _least_step(search, degrees, limit))
    _join(request, frontier, search, bounds)
    _polish(frontier, search)
    return frontier, max(search.floor_seconds, min([others, *bounds.values()]))


def _beside(search: AnySearch, by_sides: Looked, dp: int, arrangement: Arrangement, limit_seconds: float) -> Iterator[Arrangement]:
    """Others of `dp` pipelines whose step may turn out shorter than that of the fastest."""
    leading = search.leading(dp, limit_seconds) if isinstance(search, InterleavedSearch) else []
    known = {(arrangement.shapes, arrangement.sides)}
    for other in (*leading, *_evened(search, dp, limit_seconds), *by_sides(dp, limit_seconds)):
        if (other.shapes, other.sides) not in known:
            known.add((other.shapes, other.sides))
            yield other


def _by_sides(request: Request, search: AnySearch) -> Looked:
    """What looks for arrangements that suit the sides of slow links; of interleaved pipelines it finds none."""
    if isinstance(search, InterleavedSearch) or not request.costs.cluster.links:
        return lambda *_: ()
    if request.sided is not Sided.NOT:
        return SidedSearch(request, search).arrangements
    return partial(_as_long_as_sides, search, [len(side) for side in sides_of(request)])


def _as_long_as_sides(
    search: EqualSearch | UnequalSearch, sizes: Sequence[int], dp: int, limit_seconds: float
) -> Iterator[Arrangement]:
    """As many pipelines on each side of slow links, as long as fit the largest and the smallest; none that `_evened` has.

    Lengths between are left out: with them all could be of one length, which some side is too small for.
    """
    times, rest = divmod(dp, len(sizes))
    if rest or len(sizes) == 1:
        return
    shortest, longest = min(sizes) // times, -(-max(sizes) // times)
    if 0 < shortest < longest - 1 and (found := search.of_lengths(dp, (shortest, longest), limit_seconds)) is not None:
        yield found


def _evened(search: AnySearch, dp: int, limit_seconds: float) -> Iterator[Arrangement]:
    """Pipelines that differ by one stage at most, and such that are all of one length: then some workers are left idle."""
    even = search.even(dp, limit_seconds)
    if even is not None:
        yield even
        if len({shape.num_workers for shape in even.shapes}) > 1:
            level = search.even(dp, limit_seconds, num_lengths=1)
            if level is not None:
                yield level


def _join(request: Request, frontier: Frontier, search: AnySearch, bounds: dict[int, float]) -> None:
    """Better bounds that are not close to the best option, and the options, by how reductions wait for each other.

    Goes on until the least bound is one that was looked at, or the work for all of them is done.
    """
    if not isinstance(search, EqualSearch):
        return
    raised, effort = math.inf, Effort()
    for dp in sorted(bounds, key=lambda dp: bounds[dp]):
        most = max(frontier.most_goodput, request.least_worth)
        limit = _longest_step_to_win(request, most) * (1 + min(search.optimism, LEVEL))
        if bounds[dp] >= min(raised, limit * (1 - CLOSE_ENOUGH)) or effort.is_spent:
            break
        bound, arrangements = join(search, dp, limit, effort)
        bounds[dp] = max(bounds[dp], bound)
        raised = min(raised, bounds[dp])
        for arrangement in arrangements:
            frontier.add(arrangement)


def _polish(frontier: Frontier, search: AnySearch) -> None:
    """Add the most promising options polished, where that changes them."""
    if not isinstance(search, EqualSearch):
        return
    for option in frontier.leading(MOST_POLISHED):
        changed = search.polish(option.arrangement)
        if changed is not option.arrangement:
            frontier.add(changed)


def _least_step(search: AnySearch, degrees: Sequence[int], limit: float) -> float:
    """None of these numbers of pipelines has a shorter step; in seconds, infinite for none."""
    shares = (*(1 - 2**power * LEVEL for power in range(9)), *(0.5**power for power in range(2, 12)))
    return next((share * limit for share in shares if not search.could_win(degrees, share * limit)), 0.0) if degrees else math.inf


def _longest_step_to_win(request: Request, goodput: float) -> float:
    """Step that has this goodput when nothing moves: equation 8 solved for the step; in seconds."""
    if goodput <= 0.0:
        return math.inf
    settings, profile = request.settings, request.costs.profile
    seconds = settings.num_microbatches * profile.microbatch_size / goodput
    if request.holdings.plan is None:
        return seconds
    return seconds * effective_time_ratio(migration_seconds(profile.recovery, 0.0), settings.mtbf_seconds)
