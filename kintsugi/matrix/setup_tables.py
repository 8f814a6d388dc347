"""What ran, on what, and what was written down of it: the paper's tables 1 to 4, the manifest, and every figure of every cell."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields

from kintsugi.matrix.cell import Part, Suite, Variant
from kintsugi.matrix.record import CellRecord, StepRecord, WallTime
from kintsugi.matrix.results import Results
from kintsugi.reporting.tables import Column, Table, Value

SUITE_COLUMNS = (
    Column(key="data_set", title="data set"),
    Column(key="model", title="model"),
    Column(key="schedule", title="failures"),
)
PURPOSES = {
    "global_step": "logical progress, restart boundaries",
    "epoch": "window reconstruction",
    "cursor_step": "window reconstruction",
    "world_size": "consistency across ranks",
    "ranks": "consistency across ranks",
    "sample_ids_count": "proof of the samples",
    "sample_ids_hash": "proof of the samples",
    "loss": "trajectory and divergence",
    "parameter_distance": "divergence",
    "seconds": "hidden cost of checkpoints",
}
"""Of the columns of steps.csv (ECRL, table 1)."""


def suite_cells(suite: Suite) -> tuple[str, str, str]:
    """A suite in the columns of `SUITE_COLUMNS`."""
    return suite.data_set, suite.model, suite.schedule


def log_fields(results: Results) -> Table:
    """Table 1: what is logged, what for, and how much of it there is."""
    steps = [step for own in results.steps.values() for step in own]
    records = results.records.values()
    rows: list[tuple[Value, ...]] = [(name, "steps.csv", PURPOSES[name], _known(steps, name)) for name in PURPOSES]
    parts = "wall, checkpoints: snapshot, write, back-pressure, stall"
    rows.append((parts, "record.json", "decomposition of the time", sum(r.checkpoints.num_written for r in records)))
    rows.append(("attempts", "record.json", "attempts, restarts, ends", sum(len(r.attempts) for r in records)))
    return Table(
        name="table1_log_fields",
        title="Log fields (table 1 of the paper)",
        columns=(
            Column(key="field", title="field"),
            Column(key="file", title="where"),
            Column(key="purpose", title="purpose"),
            Column(key="num_entries", title="entries", form=","),
        ),
        rows=tuple(rows),
        note="Lines per rank, with the hash of every pass, are in the journals of each cell, which the audit reads.",
    )


def _known(steps: Iterable[StepRecord], name: str) -> int:
    return sum(getattr(step, name) is not None for step in steps)


def environment(results: Results) -> Table:
    """Table 2: the machine."""
    return Table(
        name="table2_environment",
        title="Environment (table 2 of the paper)",
        columns=(Column(key="item", title="item"), Column(key="value", title="value")),
        rows=tuple(results.manifest.environment.items()),
    )


def definition(results: Results) -> Table:
    """Table 3: the axes of the matrix."""
    suites = results.suites
    axes: dict[str, tuple[Iterable[str], str]] = {
        "data set": ((suite.data_set for suite in suites), "variation of the data"),
        "model": ((suite.model for suite in suites), "variation of compute and parameters"),
        "failure schedule": ((suite.schedule for suite in suites), "sensitivity to the time of failures"),
        "variant": (_variants(results), "comparison of methods"),
        "seed": (map(str, results.seeds), "confidence intervals"),
    }
    rows: list[tuple[Value, ...]] = []
    for axis, (values, role) in axes.items():
        distinct = tuple(dict.fromkeys(values))
        rows.append((axis, "; ".join(distinct), len(distinct), role))
    rows.append(("suites", "data set x model x failure schedule", len(suites), "cells are compared within a suite"))
    parts = Counter(entry.cell.part for entry in results.manifest.entries)
    rows += [(f"cells: {part.value}", "", parts[part], "") for part in Part if parts[part]]
    return Table(
        name="table3_definition",
        title="The matrix (table 3 of the paper)",
        columns=(
            Column(key="axis", title="axis"),
            Column(key="values", title="values"),
            Column(key="count", title="count"),
            Column(key="role", title="role"),
        ),
        rows=tuple(rows),
    )


def _variants(results: Results) -> list[str]:
    known = {entry.cell.variant for entry in results.manifest.entries if entry.cell.part is Part.MATRIX}
    return [variant.value for variant in Variant if variant in known]


FACTORS: Mapping[str, Callable[[CellRecord], str]] = {
    "global batch": lambda record: str(record.global_batch_size),
    "steps": lambda record: str(record.num_steps),
    "world size at the start": lambda record: str(record.world_sizes[0]),
    "checkpoint every (steps)": lambda record: str(record.cell.every_steps),
    "writes in flight": lambda record: str(record.cell.max_in_flight),
    "state of a checkpoint (MB)": lambda record: f"{record.checkpoints.state_bytes / 1e6:.1f}",
    "emulated accelerator (s per micro-batch)": lambda record: record.settings.get("device_seconds", "none"),
    "failures": lambda record: ", ".join(f"{failure.how} at {failure.step}" for failure in record.failures) or "none",
}
"""What might differ between cells, as people read it."""


def factors(results: Results) -> Table:
    """Table 4: what was the same in all cells of the matrix, and what was varied, as recorded."""
    records = results.of_part(Part.MATRIX)
    rows: list[tuple[Value, ...]] = []
    for name, read in FACTORS.items():
        across = dict.fromkeys(read(record) for record in records)
        rows.append((name, "controlled" if len(across) == 1 else "varied", "; ".join(across)))
    return Table(
        name="table4_factors",
        title="Controlled and varied factors (table 4 of the paper)",
        columns=(Column(key="factor", title="factor"), Column(key="role", title="role"), Column(key="values", title="values")),
        rows=tuple(rows),
        note="Of the matrix itself; the sweep and the elastic cells vary what their names say.",
    )


def manifest(results: Results) -> Table:
    """Every cell, and what became of it."""
    rows = []
    for entry in results.manifest.entries:
        record = results.records.get(entry.cell)
        wall = record.wall.total_seconds if record is not None else None
        rows.append((entry.cell.name, entry.cell.part.value, entry.status.value, entry.reason, wall))
    return Table(
        name="manifest",
        title="Manifest",
        columns=(
            Column(key="cell", title="cell"),
            Column(key="part", title="part"),
            Column(key="status", title="status"),
            Column(key="reason", title="reason"),
            Column(key="wall_seconds", title="wall (s)", form=".2f"),
        ),
        rows=tuple(rows),
    )


def cells(results: Results) -> Table:
    """Every cell with all its figures."""
    own = [_cell_row(record) for record in results.records.values()]
    keys = tuple(own[0]) if own else ()
    return Table(
        name="cells",
        title="Cells",
        columns=tuple(Column(key=key, title=key) for key in keys),
        rows=tuple(tuple(row.values()) for row in own),
    )


def _cell_row(record: CellRecord) -> dict[str, Value]:
    cell, wall, totals, audit = record.cell, record.wall, record.checkpoints, record.audit
    return {
        "part": cell.part.value,
        **dict(zip(("data_set", "model", "schedule"), suite_cells(cell.suite), strict=True)),
        "variant": cell.variant.value,
        "seed": cell.seed,
        "every_steps": cell.every_steps,
        "max_in_flight": cell.max_in_flight,
        "world_sizes": " ".join(map(str, record.world_sizes)),
        "goodput_steps_per_second": record.goodput,
        "committed_steps": record.committed_steps,
        "useful_samples": record.useful_samples,
        "trained_samples": record.trained_samples,
        **{f"wall_{item.name}": getattr(wall, item.name) for item in fields(WallTime)},
        "wall_rest_seconds": wall.rest_seconds,
        "stall_seconds": wall.stall_seconds,
        "checkpoint_strategy": totals.strategy,
        "num_checkpoints": totals.num_written,
        "state_bytes": totals.state_bytes,
        "all_snapshot_seconds": totals.snapshot_seconds,
        "all_write_seconds": totals.write_seconds,
        "backpressure_seconds": totals.backpressure_seconds,
        "memory_copy_seconds": totals.memory_copy_seconds,
        "num_failures": len(record.failures),
        "num_restarts": record.num_restarts,
        "recovery_seconds": " ".join(f"{seconds:.3f}" for seconds in record.recovery_seconds),
        "audit_passed": int(audit.has_passed),
        "duplicates": audit.duplicates,
        "missing": audit.missing,
        "extra": audit.extra,
        "held_out_loss": record.quality.held_out_loss,
        "held_out_accuracy": record.quality.held_out_accuracy,
    }
