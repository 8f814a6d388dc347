"""One variant against another, paired over seeds, suite by suite and over all suites.

Suites are the ones that were chosen, no sample of others: intervals over all of them tell how sure the mean of these
suites is, from how much the seeds of each differ (`Interval.stratified`).
"""

from collections.abc import Sequence

from kintsugi.matrix.cell import Suite, Variant
from kintsugi.matrix.record import CellRecord
from kintsugi.matrix.results import BySuite, Measure, Results, measured
from kintsugi.reporting.intervals import Interval, ratio


def mean_of(values: Sequence[Sequence[float]]) -> Interval | None:
    """Over all suites, each counting alike; null without any. Shape of the argument [suites][seeds]."""
    return Interval.stratified(values) if values else None


def gain(ours: CellRecord, theirs: CellRecord) -> float:
    """By what share more goodput (ECRL, equation 6) one run has than another."""
    return ours.goodput / theirs.goodput - 1


def gain_in_training(ours: CellRecord, theirs: CellRecord) -> float:
    """The same from the first step to the last: what processes take to start and to end varies, and no strategy changes it."""
    mine, other = (run.committed_steps / run.wall.training_seconds for run in (ours, theirs))
    return mine / other - 1


def loss(ours: CellRecord, reference: CellRecord) -> float:
    """The share of the reference's goodput that is lost: the paper's drop, with its sign turned."""
    return -gain(ours, reference)


def difference(name: str) -> Measure:
    """By how many seconds more one run has of a part of the wall time (a field or property of `WallTime`)."""

    def measure(ours: CellRecord, theirs: CellRecord) -> float:
        return float(getattr(ours.wall, name) - getattr(theirs.wall, name))

    return measure


def reduction(pairs: BySuite, name: str) -> Interval | None:
    """By what share less of a part of the wall time all of ours have than all of theirs (ECRL, section 7.1).

    One minus the ratio of the means, as the paper has it: suites in which there is much of it count for more. Null where
    theirs have none.
    """
    ours = measured(pairs, lambda mine, _: float(getattr(mine.wall, name)))
    theirs = measured(pairs, lambda _, other: float(getattr(other.wall, name)))
    if not any(map(sum, theirs)):
        return None
    quotient = ratio(ours, theirs)
    return Interval(mean=1 - quotient.mean, margin=quotient.margin)


def over_suites(results: Results, ours: Variant, theirs: Variant, measure: Measure) -> Interval | None:
    """A measure of all pairs of two variants."""
    return mean_of(measured(results.pairs(ours, theirs), measure))


def by_suite(pairs: BySuite, measure: Measure) -> dict[Suite, Interval]:
    """A measure of the pairs of every suite."""
    return {suite: Interval.of(values) for suite, values in zip(pairs, measured(pairs, measure), strict=True)}


def recovery(ours: CellRecord, _: CellRecord) -> float:
    """The share of the wall time that failures cost by themselves: restart and repeated steps, without any stall."""
    return ours.wall.recovery_seconds / ours.wall.total_seconds


def times_smaller(results: Results, restart: Variant, lost: Measure) -> float | None:
    """How many times smaller what is lost under recovery in memory is than under restarts.

    Null where recovery in memory loses nothing on average, so that there is no number for it, or where cells are missing.
    """
    in_memory = over_suites(results, Variant.MEMORY, Variant.REFERENCE, lost)
    restarting = over_suites(results, restart, Variant.REFERENCE, lost)
    if in_memory is None or restarting is None or in_memory.mean <= 0:
        return None
    return restarting.mean / in_memory.mean


def margin_over(results: Results, restart: Variant, times: float, lost: Measure) -> Interval | None:
    """What is lost under restarts less `times` what is lost in memory: above 0 where the latter is that much smaller.

    A difference, not a ratio, for the smaller loss may well be zero. Seeds of which one of the three runs is missing are
    left out.
    """
    values = []
    for suite in results.suites:
        references, ours, theirs = (results.runs(suite, v) for v in (Variant.REFERENCE, Variant.MEMORY, restart))
        seeds = sorted(references.keys() & ours.keys() & theirs.keys())
        values.append([lost(theirs[s], references[s]) - times * lost(ours[s], references[s]) for s in seeds])
    return mean_of([group for group in values if group])
