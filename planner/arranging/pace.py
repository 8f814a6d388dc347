"""About how long pipelines take with more or fewer micro-batches, and the shares with which all are through together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from estimator.layers import StageTimes
from planner.batches import distribute_alike


@dataclass(frozen=True, slots=True)
class Pace:
    """What a pipeline takes about, for any number of micro-batches."""

    num_microbatches: int
    """For which it is known."""
    seconds: float
    busiest_seconds: float
    """Of one micro-batch on the busiest worker."""
    most_microbatches: int
    """That fit memory."""

    def seconds_for(self, num_microbatches: int) -> float:
        """With so many; infinite where they do not fit memory."""
        if num_microbatches > self.most_microbatches:
            return math.inf
        return self.seconds + (num_microbatches - self.num_microbatches) * self.busiest_seconds

    def microbatches_within(self, seconds: float) -> int:
        """How many are through by then."""
        return self.num_microbatches + math.floor((seconds - self.seconds) / self.busiest_seconds)


def busiest_seconds(stages: Iterable[StageTimes]) -> float:
    """What one micro-batch takes on the busiest of a pipeline's workers."""
    return max(stage.forward_seconds + stage.backward_seconds for stage in stages)


def by_speed(speeds: Sequence[float], num_microbatches: int) -> tuple[int, ...]:
    """Micro-batches about in proportion to the speeds of whole pipelines, at least one each. Shape [pipelines]."""
    whole = sum(speeds)
    return tuple(max(1, round(num_microbatches * speed / whole)) for speed in speeds)


def level_seconds(paces: Sequence[Pace], num_microbatches: int) -> float:
    """When all pipelines would be through at once if micro-batches could be divided."""
    at_once = sum(1 / pace.busiest_seconds for pace in paces)
    begun = sum(pace.seconds / pace.busiest_seconds - pace.num_microbatches for pace in paces)
    return (num_microbatches + begun) / at_once


def together(paces: Sequence[Pace], num_microbatches: int) -> tuple[int, ...]:
    """Micro-batches of pipelines so that the last is through as early as possible. Shape [pipelines]."""
    alike: dict[Pace, list[int]] = {}
    for k, pace in enumerate(paces):
        alike.setdefault(pace, []).append(k)
    at_once = sum(len(group) / pace.busiest_seconds for pace, group in alike.items())
    begun = sum(len(group) * (pace.seconds / pace.busiest_seconds - pace.num_microbatches) for pace, group in alike.items())
    level = (num_microbatches + begun) / at_once  # when all would be through if micro-batches could be divided
    least = [max(1, min(pace.most_microbatches, pace.microbatches_within(level) - 1)) for pace in alike]
    if sum(len(group) * count for group, count in zip(alike.values(), least, strict=True)) > num_microbatches:
        least = [1] * len(alike)
    known = list(alike)
    return distribute_alike(list(alike.values()), num_microbatches, lambda g, count: known[g].seconds_for(count), least)
