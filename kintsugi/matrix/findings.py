"""What was asked of the matrix, what was published, and what came out."""

from dataclasses import dataclass
from statistics import median

from kintsugi.matrix.cell import Variant
from kintsugi.matrix.comparisons import (
    by_suite,
    gain,
    gain_in_training,
    loss,
    margin_over,
    mean_of,
    over_suites,
    recovery,
    reduction,
    times_smaller,
)
from kintsugi.matrix.record import CellRecord
from kintsugi.matrix.results import Measure, Results
from kintsugi.reporting.intervals import Interval
from kintsugi.reporting.tables import UNKNOWN, Column, Table, shown

STALL_REDUCTION = 0.565
"""Of overlapped against blocking; published 56.5110 % (ECRL, section 7.1)."""
WRITE_REDUCTION = 0.923
"""Of the write time on the critical path; published 92.2858 % (ECRL, section 7.1)."""
TIMES_SMALLER = 5.0
"""The loss of goodput under failures, in memory against restarts."""
STALL_SHARES = (0.08, 0.15)
"""Of blocking's wall time: states are sized so that it is within, as published (10.0 % on average, table 5)."""
PUBLISHED_LOSSES = {Variant.OVERLAPPED: "11.5 % lost by restarts", Variant.BLOCKING: "13.2 % lost by restarts"}
"""Against a reference that writes checkpoints, too (ECRL, table 5)."""
COPIES = 1.5
"""A snapshot's stall, in memory copies of as many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One figure that was to be reached."""

    name: str
    asked: str
    published: str
    measured: str
    is_reached: bool | None
    """Null where cells are missing for an answer."""
    is_certain: bool = False
    """Whether the whole confidence interval says the same."""

    @property
    def verdict(self) -> str:
        """For people."""
        if self.is_reached is None:
            return "not measured"
        doubt = "" if self.is_certain else ", within what runs differ by"
        return ("reached" if self.is_reached else "missed") + doubt


def findings(results: Results) -> tuple[Finding, ...]:
    """All of them, in the order in which the paper has them."""
    blocking = results.pairs(Variant.OVERLAPPED, Variant.BLOCKING)
    return (
        _audit(results),
        *(_every_suite(results, measure) for measure in GAINS),
        *(_mean_gain(results, measure) for measure in GAINS),
        _at_least("stall saved, overlapped against blocking", reduction(blocking, "stall_seconds"), STALL_REDUCTION, "56.5 %"),
        _at_least("write time on the critical path saved", reduction(blocking, "write_seconds"), WRITE_REDUCTION, "92.3 %"),
        *(_in_memory(results, restart, loss) for restart in (Variant.OVERLAPPED, Variant.BLOCKING)),
        *(_in_memory(results, restart, recovery) for restart in (Variant.OVERLAPPED, Variant.BLOCKING)),
        _stall_share(results),
        _snapshot(results),
    )


def table_of(found: tuple[Finding, ...]) -> Table:
    """The findings as a table."""
    names = ("figure", "asked", "published", "measured", "verdict")
    return Table(
        name="findings",
        title="What was asked, and what came out",
        columns=tuple(Column(key=name, title=name) for name in names),
        rows=tuple((each.name, each.asked, each.published, each.measured, each.verdict) for each in found),
        note="Measured values are means over suites with 95 % confidence intervals, paired over seeds.",
    )


def _audit(results: Results) -> Finding:
    num_cells = len(results.manifest.entries)
    passed = sum(record.audit.has_passed for record in results.records.values())
    return Finding(
        name="audit pass rate",
        asked="1.0 in every cell",
        published="1.0",
        measured=f"{passed} of {num_cells} cells",
        is_reached=passed == num_cells,
        is_certain=True,
    )


GAINS: dict[Measure, tuple[str, str]] = {
    gain: ("goodput", "+1.99 %"),
    gain_in_training: ("goodput from the first step to the last", UNKNOWN),
}
"""What overlapped is to gain over blocking, and what was published of its mean."""


def _every_suite(results: Results, measure: Measure) -> Finding:
    gains = by_suite(results.pairs(Variant.OVERLAPPED, Variant.BLOCKING), measure).values()
    higher = sum(each.mean > 0 for each in gains)
    sure = sum(each.low is not None and each.low > 0 for each in gains)
    return Finding(
        name=f"suites in which overlapped has more {GAINS[measure][0]} than blocking",
        asked="every one",
        published="8 of 8" if measure is gain else UNKNOWN,
        measured=f"{higher} of {len(gains)}, {sure} of them beyond doubt",
        is_reached=higher == len(gains) if gains else None,
        is_certain=sure == len(gains) if higher == len(gains) else any(each.high is not None and each.high < 0 for each in gains),
    )


def _mean_gain(results: Results, measure: Measure) -> Finding:
    name, published = GAINS[measure]
    return _at_least(
        f"{name} gained, overlapped over blocking",
        over_suites(results, Variant.OVERLAPPED, Variant.BLOCKING, measure),
        0.0,
        published,
    )


def _at_least(name: str, value: Interval | None, asked: float, published: str) -> Finding:
    reached = None if value is None else value.mean >= asked
    return Finding(
        name=name,
        asked=f"at least {asked:.1%}" if asked else "more than 0",
        published=published,
        measured=UNKNOWN if value is None else shown(value, "+.2%"),
        is_reached=reached,
        is_certain=value is not None and _is_certain(value, asked),
    )


LOSSES: dict[Measure, str] = {loss: "goodput lost against the reference", recovery: "wall time in recovery alone, no stalls"}
"""What failures cost: as the paper has it, and without what checkpoints cost, which the reference may not write."""


def _in_memory(results: Results, restart: Variant, lost: Measure) -> Finding:
    """Judged by the difference of the losses, which has an interval even where the smaller loss is none at all."""
    beyond = margin_over(results, restart, TIMES_SMALLER, lost)
    means = {v: over_suites(results, v, Variant.REFERENCE, lost) for v in (Variant.MEMORY, restart)}
    times = times_smaller(results, restart, lost)
    told = ", ".join(f"{v.value} {shown(value, '.2%')}" for v, value in means.items() if value is not None)
    told += f": {times:.1f} times" if times is not None else ": nothing lost in memory"
    return Finding(
        name=f"{LOSSES[lost]}: in memory against {restart.value}",
        asked=f"at least {TIMES_SMALLER:g} times smaller",
        published=PUBLISHED_LOSSES[restart] if lost is loss else UNKNOWN,
        measured=UNKNOWN if beyond is None else told,
        is_reached=None if beyond is None else beyond.mean >= 0,
        is_certain=beyond is not None and _is_certain(beyond, 0.0),
    )


def _stall_share(results: Results) -> Finding:
    shares = mean_of([[r.wall.stall_seconds / r.wall.total_seconds for r in group] for group in results.all_runs(Variant.BLOCKING)])
    low, high = STALL_SHARES
    return Finding(
        name="share of wall time that blocking stalls",
        asked=f"{low:.0%} to {high:.0%}",
        published="10.0 %",
        measured=UNKNOWN if shares is None else shown(shares, ".2%"),
        is_reached=None if shares is None else low <= shares.mean <= high,
        is_certain=shares is not None and _is_certain(shares, low) and _is_certain(shares, high),
    )


def copies_of(record: CellRecord) -> float | None:
    """How many memory copies of as many bytes one snapshot of a cell took on average; null where none was measured.

    Null, too, for cells that write their last state alone: that one copy goes into memory that was never touched.
    """
    totals = record.checkpoints
    if totals.num_written < 2 or not totals.memory_copy_seconds:
        return None
    return totals.snapshot_seconds / totals.num_written / totals.memory_copy_seconds


def _snapshot(results: Results) -> Finding:
    known = [copies for copies in map(copies_of, results.records.values()) if copies is not None]
    return Finding(
        name="stall of a snapshot, in memory copies of as many bytes",
        asked=f"at most {COPIES:g}",
        published=UNKNOWN,
        measured=f"{median(known):.2f} (median of {len(known)} cells, largest {max(known):.2f})" if known else UNKNOWN,
        is_reached=median(known) <= COPIES if known else None,
        is_certain=bool(known) and (max(known) <= COPIES or median(known) > COPIES),
    )


def _is_certain(value: Interval, border: float) -> bool:
    """Whether a border is outside of an interval."""
    return value.low is not None and value.high is not None and not value.low < border < value.high
