"""Which numbers of pipelines are worth a search, and what it finds for them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

from estimator.goodput import (
    effective_time_ratio,
    goodput_samples_per_second,
    migration_seconds,
    throughput_samples_per_second,
)
from planner.arrangement import Arrangement
from planner.placement import least_migration_seconds
from planner.request import AnySearch, Request
from planner.search import EqualSearch

MOST_EAGER = 6
"""After so many numbers of pipelines only those are pursued that may be faster by more than the search's tolerance."""

MOST_SLACK = 2
"""After twice as many, by more than twice the tolerance; not more."""

MOST_PURSUED = 48
"""Numbers of pipelines that are pursued; what is left then has a closed-form bound."""

MOST_POLISHED = 2
"""Options that are polished."""

LEVEL = 2e-3
"""Relative difference between the first two steps that closed-form bounds are asked about."""


@dataclass(frozen=True, slots=True)
class Option:
    """An arrangement and the most goodput that it can have, in samples per second."""

    arrangement: Arrangement
    most_goodput: float


def pursue(request: Request, search: AnySearch) -> tuple[list[Option], float]:
    """The fastest arrangement of every number of pipelines that could win, and a lower bound on any step in seconds."""
    options: list[Option] = []
    bounds, pursued, limit = [math.inf], 0, math.inf
    degrees = search.by_promise()
    while degrees and pursued < MOST_PURSUED:
        dp, *degrees = degrees
        bound, arrangement = search.arrange(dp, limit)
        bounds.append(bound)
        pursued += bound < limit
        if arrangement is None:
            continue
        options.append(_option(request, search, arrangement))
        even = search.even(dp, limit)
        if even is not None and even.shapes != arrangement.shapes:
            options.append(_option(request, search, even))
        slack = search.tolerance * min(MOST_SLACK, pursued // MOST_EAGER)
        lower = _longest_step_to_win(request, max(option.most_goodput for option in options)) * (1 - slack + search.optimism)
        if lower < limit:
            limit, hopeful = lower, search.could_win(degrees, lower)
            bounds += [limit] * (len(hopeful) < len(degrees))
            degrees = hopeful
    return _polished(request, search, options), min(*bounds, _least_step(search, degrees, limit))


def _polished(request: Request, search: AnySearch, options: list[Option]) -> list[Option]:
    """The options, the most promising ones polished."""
    if not isinstance(search, EqualSearch):
        return options
    first = nlargest(MOST_POLISHED, options, key=lambda option: option.most_goodput)
    changed = [search.polish(option.arrangement) for option in first]
    return options + [_option(request, search, new) for new, old in zip(changed, first, strict=True) if new is not old.arrangement]


def _least_step(search: AnySearch, degrees: Sequence[int], limit: float) -> float:
    """None of these numbers of pipelines has a shorter step; in seconds, infinite for none."""
    shares = (1 - 2**power * LEVEL for power in range(9))
    return next((share * limit for share in shares if not search.could_win(degrees, share * limit)), 0.0) if degrees else math.inf


def _option(request: Request, search: AnySearch, arrangement: Arrangement) -> Option:
    return Option(arrangement, _most_goodput(request, search.step_seconds(arrangement), arrangement))


def _most_goodput(request: Request, seconds: float, arrangement: Arrangement) -> float:
    """Goodput with this step when no more than what must be moved for the arrangement is moved."""
    settings, profile = request.settings, request.costs.profile
    throughput = throughput_samples_per_second(settings.num_microbatches, profile.microbatch_size, seconds)
    charged = request.expected_restart_seconds(len(arrangement.shapes))
    if request.holdings.plan is not None:
        moving = least_migration_seconds(arrangement, request.holdings, request.costs)
        charged += migration_seconds(profile.recovery, moving)
    return goodput_samples_per_second(throughput, charged, settings.mtbf_seconds)


def _longest_step_to_win(request: Request, goodput: float) -> float:
    """Step that has this goodput when nothing moves: equation 8 solved for the step; in seconds."""
    if goodput == 0.0:
        return math.inf
    settings, profile = request.settings, request.costs.profile
    seconds = settings.num_microbatches * profile.microbatch_size / goodput
    if request.holdings.plan is None:
        return seconds
    return seconds * effective_time_ratio(migration_seconds(profile.recovery, 0.0), settings.mtbf_seconds)
