"""Where the time went: equation 7 for every suite, what failures cost, the sweep, other numbers of workers, and divergence."""

from collections.abc import Callable, Iterable
from statistics import fmean

from kintsugi.matrix.cell import Part, Variant
from kintsugi.matrix.comparisons import loss, mean_of, recovery
from kintsugi.matrix.divergence import Divergence, divergence
from kintsugi.matrix.record import CellRecord, WallTime
from kintsugi.matrix.results import Results, measured
from kintsugi.matrix.setup_tables import SUITE_COLUMNS, suite_cells
from kintsugi.matrix.sweep import settings_of
from kintsugi.reporting.intervals import Interval
from kintsugi.reporting.tables import Column, Table, Value

PARTS: dict[str, Callable[[WallTime], float]] = {
    "start": lambda wall: wall.start_seconds,
    "compute": lambda wall: wall.compute_seconds,
    "snapshot": lambda wall: wall.snapshot_seconds,
    "write": lambda wall: wall.write_seconds,
    "sync": lambda wall: wall.sync_seconds,
    "restart": lambda wall: wall.restart_seconds,
    "repeated": lambda wall: wall.repeated_seconds,
    "rest": lambda wall: wall.rest_seconds,
}
"""Of the wall time (ECRL, equation 7): recovery is restart and repeated steps, and the rest is what no part accounts for."""


def decomposition(results: Results) -> Table:
    """Equation 7: the parts of the wall time of every suite and variant, and of every variant over all suites."""
    own = {(suite, variant): [list(results.runs(suite, variant).values())] for suite in results.suites for variant in Variant}
    rows: list[tuple[Value, ...]] = [
        (*suite_cells(suite), variant.value, *_times(groups)) for (suite, variant), groups in own.items() if groups != [[]]
    ]
    everything = {variant: results.all_runs(variant) for variant in Variant}
    rows += [("all", "all", "all", variant.value, *_times(groups)) for variant, groups in everything.items() if groups]
    return Table(
        name="wall_time",
        title="Where the wall time went (equation 7 of the paper)",
        columns=(
            *SUITE_COLUMNS,
            Column(key="variant", title="variant"),
            Column(key="total_seconds", title="wall (s)", form=".3f"),
            *(Column(key=f"{name}_seconds", title=f"{name} (s)", form=".3f") for name in PARTS),
            Column(key="stall_ratio", title="stall", form=".2%"),
        ),
        rows=tuple(rows),
        note="Snapshot, write and sync are the stall, recovery is restart and repeated; start is that of the first processes, and "
        "rest the end of the last ones and whatever else no part accounts for.",
    )


def _times(groups: list[list[CellRecord]]) -> list[Value]:
    parts = (fmean(fmean(read(r.wall) for r in group) for group in groups) for read in PARTS.values())
    stall = mean_of([[r.wall.stall_seconds / r.wall.total_seconds for r in group] for group in groups])
    return [mean_of([[r.wall.total_seconds for r in group] for group in groups]), *parts, stall]


def failures(results: Results) -> Table:
    """What failures cost, in memory and under restarts: goodput lost to the reference, and time until training goes on."""
    rows: list[tuple[Value, ...]] = []
    for variant in (Variant.MEMORY, Variant.OVERLAPPED, Variant.BLOCKING):
        pairs = results.pairs(variant, Variant.REFERENCE)
        rows += [
            (*suite_cells(suite), variant.value, Interval.of([loss(*pair) for pair in both]), *_recovery([[r for r, _ in both]]))
            for suite, both in pairs.items()
        ]
        if pairs:
            groups = [[record for record, _ in both] for both in pairs.values()]
            rows.append(("all", "all", "all", variant.value, mean_of(measured(pairs, loss)), *_recovery(groups)))
    return Table(
        name="failures",
        title="What failures cost",
        columns=(
            *SUITE_COLUMNS,
            Column(key="variant", title="variant"),
            Column(key="loss_ratio", title="goodput lost against reference", form=".2%"),
            Column(key="recovery_ratio", title="of it wall time in recovery", form=".2%"),
            Column(key="seconds_per_failure", title="until training goes on (s)", form=".3f"),
            Column(key="repeated_samples_ratio", title="samples trained again", form=".2%"),
        ),
        rows=tuple(rows),
        note="Goodput lost contains the stall of checkpoints, which recovery in memory does without unless its settings say "
        "otherwise; the wall time in recovery (restart and repeated steps) does not.",
    )


def _recovery(groups: list[list[CellRecord]]) -> tuple[Interval | None, Interval | None, Interval | None]:
    struck = [own for group in groups if (own := [r for r in group if r.recovery_seconds])]
    return (
        mean_of([[recovery(r, r) for r in group] for group in groups]),
        mean_of([[fmean(r.recovery_seconds) for r in group] for group in struck]),
        mean_of([[r.trained_samples / r.useful_samples - 1 for r in group if r.useful_samples] for group in groups]),
    )


def sweep(results: Results) -> Table:
    """Every setting of the sweep, beside the matrix's own where their suites are the same."""
    rows = [
        (*suite_cells(setting.suite), setting.variant.value, setting.every_steps, setting.max_in_flight, len(own), *_setting(own))
        for setting, own in settings_of(results).items()
    ]
    return Table(
        name="sweep",
        title="Checkpoint interval and writes in flight",
        columns=(
            *SUITE_COLUMNS,
            Column(key="variant", title="variant"),
            Column(key="every_steps", title="every (steps)"),
            Column(key="max_in_flight", title="in flight"),
            Column(key="num_runs", title="runs"),
            Column(key="goodput", title="goodput (steps/s)", form=".4f"),
            Column(key="stall_ratio", title="stall", form=".2%"),
            Column(key="sync_seconds", title="sync (s)", form=".3f"),
            Column(key="recovery_ratio", title="recovery", form=".2%"),
        ),
        rows=tuple(rows),
        note="Shares are of the wall time.",
    )


def _setting(runs: list[CellRecord]) -> list[Interval]:
    return [
        Interval.of([r.goodput for r in runs]),
        Interval.of([r.wall.stall_seconds / r.wall.total_seconds for r in runs]),
        Interval.of([r.wall.sync_seconds for r in runs]),
        Interval.of([recovery(r, r) for r in runs]),
    ]


def elastic(results: Results) -> Table:
    """Cells that went on with another number of workers (N to M)."""
    rows: list[tuple[Value, ...]] = []
    for record in results.of_part(Part.ELASTIC):
        apart = divergence(results, record.cell)
        sizes = " to ".join(map(str, record.world_sizes))
        verdict = "passed" if record.audit.has_passed else "failed"
        figures = (record.goodput, _greatest(apart, "loss"), _greatest(apart, "parameters"), record.quality.held_out_loss)
        rows.append((*suite_cells(record.cell.suite), record.cell.variant.value, record.cell.seed, sizes, verdict, *figures))
    return Table(
        name="elastic",
        title="Other numbers of workers after a failure",
        columns=(
            *SUITE_COLUMNS,
            Column(key="variant", title="variant"),
            Column(key="seed", title="seed"),
            Column(key="world_sizes", title="workers"),
            Column(key="audit", title="audit"),
            Column(key="goodput", title="goodput (steps/s)", form=".4f"),
            Column(key="loss_difference", title="largest loss difference", form=".1e"),
            Column(key="parameter_distance", title="largest parameter distance", form=".1e"),
            Column(key="held_out_loss", title="held-out loss", form=".4f"),
        ),
        rows=tuple(rows),
    )


def _greatest(apart: Divergence | None, name: str) -> float | None:
    series = getattr(apart, name) if apart is not None else {}
    return max(series.values()) if series else None


def divergences(results: Results) -> Table:
    """Section 6.5: how far losses, parameters and what is held out end from the reference."""
    rows = [
        (*suite_cells(suite), variant.value, *_apart(results, results.runs(suite, variant).values()))
        for suite in results.suites
        for variant in Variant
        if results.runs(suite, variant)
    ]
    return Table(
        name="divergence",
        title="Distance from the reference (section 6.5 of the paper)",
        columns=(
            *SUITE_COLUMNS,
            Column(key="variant", title="variant"),
            Column(key="mean_loss_difference", title="mean loss difference", form=".1e"),
            Column(key="largest_loss_difference", title="largest", form=".1e"),
            Column(key="largest_parameter_distance", title="largest parameter distance", form=".1e"),
            Column(key="parameters_compared_ratio", title="parameters compared", form=".0%"),
            Column(key="held_out_loss", title="held-out loss", form=".4f"),
            Column(key="held_out_accuracy", title="held-out accuracy", form=".2%"),
        ),
        rows=tuple(rows),
        note="Differences of losses are absolute, means over steps and seeds; distances of parameters are shares of the "
        "reference's L2 norm, and where less than 100 % were compared, samples of them are missing. The paper has 0.0660 for "
        "blocking and 0.0669 for overlapped (equation 8).",
    )


def _apart(results: Results, records: Iterable[CellRecord]) -> tuple[Value, ...]:
    runs = tuple(records)
    known = [apart for apart in (divergence(results, record.cell) for record in runs) if apart is not None]
    accuracies = [record.quality.held_out_accuracy for record in runs if record.quality.held_out_accuracy is not None]
    distances = [max(apart.parameters.values()) for apart in known if apart.parameters]
    return (
        fmean(apart.mean_loss for apart in known) if known else None,
        max((max(apart.loss.values()) for apart in known), default=None),
        max(distances, default=None),
        _compared(results, runs),
        Interval.of([record.quality.held_out_loss for record in runs]),
        Interval.of(accuracies) if accuracies else None,
    )


def _compared(results: Results, runs: Iterable[CellRecord]) -> float | None:
    """The share of the samples of parameters that were compared with the reference's; null where none were to be."""
    wanted = compared = 0
    for record in runs:
        if record.trace_every is not None and record.cell.variant is not Variant.REFERENCE:
            steps = results.steps.get(record.cell, ())
            wanted += len(steps) // record.trace_every
            compared += sum(step.parameter_distance is not None for step in steps)
    return compared / wanted if wanted else None
