"""Means and ratios with confidence intervals, from few runs.

The intervals are Student's: from three or five runs a bootstrap has hardly anything to draw from (ten different samples of
three), and its intervals come out too narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and half the width of its confidence interval; null from one value alone."""

    mean: float
    margin: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Student's interval of independent values."""
        return cls.stratified([values])

    @classmethod
    def stratified(cls, groups: Sequence[Sequence[float]]) -> "Interval":
        """The mean of the groups' means, each group counting alike; what groups differ by is no uncertainty.

        The margin is Student's with the degrees of freedom of Welch and Satterthwaite: groups may vary differently. It is null
        where a group has a single value.
        """
        mean = fmean(fmean(group) for group in groups)
        if any(len(group) < 2 for group in groups):
            return cls(mean=mean, margin=None)
        parts = [variance(group) / len(group) for group in groups]
        total = sum(parts)
        if total == 0.0:
            return cls(mean=mean, margin=0.0)
        freedom = 1 / sum((part / total) ** 2 / (len(group) - 1) for part, group in zip(parts, groups, strict=True))
        from scipy.special import stdtrit  # here, for it takes as long to import as everything else of this package

        quantile = float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
        return cls(mean=mean, margin=quantile * math.sqrt(total) / len(groups))

    @property
    def low(self) -> float | None:
        """The lower end; null where there is no margin."""
        return None if self.margin is None else self.mean - self.margin

    @property
    def high(self) -> float | None:
        """The upper end; null where there is no margin."""
        return None if self.margin is None else self.mean + self.margin


def ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Interval:
    """The ratio of two means over groups of pairs, each group counting alike.

    The interval is that of the linearised ratio (the delta method): the pairs' residuals `ours - ratio * theirs`, over the
    mean of theirs. Pairs may depend on each other, as runs with one seed do.

    Args:
        ours: the numerator's values. Shape [groups][pairs].
        theirs: the denominator's, in the same order; their mean must not be zero.
    """
    mean = fmean(fmean(group) for group in theirs)
    value = fmean(fmean(group) for group in ours) / mean
    residuals = [
        [(own - value * other) / mean for own, other in zip(group, others, strict=True)]
        for group, others in zip(ours, theirs, strict=True)
    ]
    return Interval(mean=value, margin=Interval.stratified(residuals).margin)
