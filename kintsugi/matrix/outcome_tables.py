"""What came out: the paper's tables 5 to 8, and the quality gates of its section 5.9. Means over seeds, suites counting alike."""

from collections.abc import Callable, Iterable
from statistics import fmean

from kintsugi.matrix.cell import Suite, Variant
from kintsugi.matrix.comparisons import difference, gain, mean_of
from kintsugi.matrix.divergence import divergence
from kintsugi.matrix.gates import CHECKS, Acceptance
from kintsugi.matrix.record import CellRecord
from kintsugi.matrix.results import Pair, Results, measured
from kintsugi.matrix.setup_tables import SUITE_COLUMNS, suite_cells
from kintsugi.reporting.intervals import Interval
from kintsugi.reporting.tables import Column, Table, Value

REFERENCE, BLOCKING, OVERLAPPED, MEMORY = Variant
OUTCOMES: dict[Column, Callable[[CellRecord], float]] = {
    Column(key="pass_rate", title="pass rate", form=".4f"): lambda record: float(record.audit.has_passed),
    Column(key="goodput", title="goodput (steps/s)", form=".4f"): lambda record: record.goodput,
    Column(key="restarts", title="restarts", form=".2f"): lambda record: float(record.num_restarts),
    Column(key="wall_seconds", title="wall (s)", form=".3f"): lambda record: record.wall.total_seconds,
    Column(key="stall_seconds", title="stall (s)", form=".4f"): lambda record: record.wall.stall_seconds,
    Column(key="write_seconds", title="write, waited for (s)", form=".4f"): lambda record: record.wall.write_seconds,
    Column(key="all_write_seconds", title="write, all (s)", form=".4f"): lambda record: record.checkpoints.write_seconds,
    Column(key="snapshot_seconds", title="snapshot (s)", form=".4f"): lambda record: record.wall.snapshot_seconds,
}


def aggregate(results: Results) -> Table:
    """Table 5: every variant over all suites, and overlapped less blocking, paired."""
    rows: list[tuple[Value, ...]] = []
    for variant in Variant:
        groups = results.all_runs(variant)
        if groups:
            drop = mean_of(measured(results.pairs(variant, REFERENCE), gain))
            means = (mean_of([[read(record) for record in group] for group in groups]) for read in OUTCOMES.values())
            rows.append((variant.value, drop, *means))
    pairs = results.pairs(OVERLAPPED, BLOCKING)
    if pairs:
        apart = (mean_of(measured(pairs, _apart(read))) for read in OUTCOMES.values())
        rows.append(("overlapped - blocking", mean_of(measured(pairs, gain)), *apart))
    return Table(
        name="table5_aggregate",
        title="Outcomes over all suites (table 5 of the paper)",
        columns=(Column(key="variant", title="variant"), Column(key="change", title="goodput change", form="+.2%"), *OUTCOMES),
        rows=tuple(rows),
        note="The change is against the reference of the same seed; in the last row, of overlapped against blocking. The "
        "write that is waited for holds that of the last checkpoint, whatever the strategy: nothing is left to train beside it.",
    )


def _apart(read: Callable[[CellRecord], float]) -> Callable[[CellRecord, CellRecord], float]:
    return lambda mine, other: read(mine) - read(other)


def ranking(results: Results) -> Table:
    """Table 6: suites by what overlapped gains over blocking, best first."""
    rows = [(gains(results, suite), suite) for suite in results.suites]
    rows.sort(key=lambda row: row[0].mean if row[0] is not None else float("-inf"), reverse=True)
    against = ((BLOCKING, REFERENCE), (OVERLAPPED, REFERENCE), (MEMORY, REFERENCE))
    return Table(
        name="table6_ranking",
        title="Suites by what overlapped gains over blocking (table 6 of the paper)",
        columns=(
            *SUITE_COLUMNS,
            *_goodput_columns(Variant),
            Column(key="overlapped_gain", title="overlapped over blocking", form="+.2%"),
            *(Column(key=f"{mine.value}_change", title=f"{mine.value} against reference", form="+.2%") for mine, _ in against),
            Column(key="stall_change_seconds", title="stall change (s)", form="+.4f"),
        ),
        rows=tuple(
            (
                *suite_cells(suite),
                *(_goodput(results, suite, variant) for variant in Variant),
                gained,
                *(_paired(results, suite, mine, other, gain) for mine, other in against),
                _paired(results, suite, OVERLAPPED, BLOCKING, difference("stall_seconds")),
            )
            for gained, suite in rows
        ),
    )


def gains(results: Results, suite: Suite) -> Interval | None:
    """What overlapped gains over blocking in a suite; null where there is no pair."""
    return _paired(results, suite, OVERLAPPED, BLOCKING, gain)


def _paired(
    results: Results, suite: Suite, mine: Variant, other: Variant, measure: Callable[[CellRecord, CellRecord], float]
) -> Interval | None:
    pairs = results.pairs(mine, other).get(suite)
    return Interval.of([measure(*pair) for pair in pairs]) if pairs else None


def _goodput_columns(variants: Iterable[Variant]) -> tuple[Column, ...]:
    return tuple(Column(key=f"{each.value}_goodput", title=f"{each.value} (steps/s)", form=".4f") for each in variants)


def _goodput(results: Results, suite: Suite, variant: Variant) -> float | None:
    runs = results.runs(suite, variant)
    return fmean(record.goodput for record in runs.values()) if runs else None


SLICES: dict[str, Callable[[Suite], str]] = {
    "data set": lambda suite: suite.data_set,
    "model": lambda suite: suite.model,
    "failures": lambda suite: suite.schedule,
}


def slices(results: Results) -> Table:
    """Table 7: overlapped against blocking in every slice of the matrix."""
    pairs = results.pairs(OVERLAPPED, BLOCKING)
    rows: list[tuple[Value, ...]] = []
    for name, group_of in SLICES.items():
        for group in dict.fromkeys(map(group_of, pairs)):
            own = {suite: both for suite, both in pairs.items() if group_of(suite) == group}
            changes = (mean_of(measured(own, measure)) for measure in (gain, difference("stall_seconds")))
            rows.append((name, group, *changes, _loss_change(results, own.values())))
    return Table(
        name="table7_slices",
        title="Overlapped against blocking, sliced (table 7 of the paper)",
        columns=(
            Column(key="slice", title="slice"),
            Column(key="group", title="group"),
            Column(key="overlapped_gain", title="goodput", form="+.2%"),
            Column(key="stall_change_seconds", title="stall change (s)", form="+.4f"),
            Column(key="loss_difference_change", title="change of the loss difference", form="+.1e"),
        ),
        rows=tuple(rows),
        note="The loss difference is the mean absolute one to the reference; its change is overlapped less blocking.",
    )


def _loss_change(results: Results, groups: Iterable[list[Pair]]) -> Interval | None:
    """By how much more overlapped's losses differ from the reference's than blocking's."""
    found = []
    for pairs in groups:
        both = [[divergence(results, record.cell) for record in pair] for pair in pairs]
        values = [mine.mean_loss - other.mean_loss for mine, other in both if mine is not None and other is not None]
        found += [values] if values else []
    return mean_of(found)


def full(results: Results) -> Table:
    """Table 8: every suite, overlapped beside blocking."""
    rows: list[tuple[Value, ...]] = []
    for suite in results.suites:
        stalls = (_stall(results, suite, variant) for variant in (BLOCKING, OVERLAPPED))
        wall = _paired(results, suite, OVERLAPPED, BLOCKING, difference("total_seconds"))
        rows.append(
            (
                *suite_cells(suite),
                *(_goodput(results, suite, variant) for variant in (REFERENCE, BLOCKING, OVERLAPPED)),
                gains(results, suite),
                *stalls,
                wall,
            )
        )
    return Table(
        name="table8_suites",
        title="All suites (table 8 of the paper)",
        columns=(
            *SUITE_COLUMNS,
            *(
                Column(key=f"{v.value}_goodput", title=f"{v.value} (steps/s)", form=".4f")
                for v in (REFERENCE, BLOCKING, OVERLAPPED)
            ),
            Column(key="overlapped_gain", title="overlapped over blocking", form="+.2%"),
            Column(key="blocking_stall_seconds", title="blocking stall (s)", form=".4f"),
            Column(key="overlapped_stall_seconds", title="overlapped stall (s)", form=".4f"),
            Column(key="wall_change_seconds", title="overlapped - blocking wall (s)", form="+.4f"),
        ),
        rows=tuple(rows),
    )


def _stall(results: Results, suite: Suite, variant: Variant) -> Interval | None:
    runs = results.runs(suite, variant)
    return Interval.of([record.wall.stall_seconds for record in runs.values()]) if runs else None


def gates(found: tuple[Acceptance, ...]) -> Table:
    """Section 5.9: how many faults every gate found."""
    return Table(
        name="gates",
        title="Quality gates (section 5.9 of the paper)",
        columns=(
            Column(key="subject", title="suite or part"),
            Column(key="num_cells", title="cells"),
            *(Column(key=name.replace(" ", "_"), title=name) for name in CHECKS),
            Column(key="verdict", title="verdict"),
        ),
        rows=tuple(
            (
                each.subject,
                each.num_cells,
                *("passed" if gate.is_passed else f"{len(gate.faults)} against it" for gate in each.gates),
                "accepted" if each.is_accepted else "not accepted",
            )
            for each in found
        ),
    )
