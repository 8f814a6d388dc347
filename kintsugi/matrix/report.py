"""The report of a matrix: tables as Markdown, CSV and JSON, figures, and one text that ties all together.

FOLDER/report/report.md        for people
              matrix.json      findings, gates and all tables, for programs
              manifest.csv     what became of every cell
              cells.csv        every figure of every cell
              tables/*.csv     the tables of the report
              figures/*.png    and *.svg
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kintsugi.core.codec import encode
from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix import cost_tables, excess, figures, outcome_tables, setup_tables
from kintsugi.matrix import findings as findings_module
from kintsugi.matrix.findings import Finding
from kintsugi.matrix.gates import Acceptance, acceptances
from kintsugi.matrix.manifest import CellStatus
from kintsugi.matrix.results import Results
from kintsugi.matrix.store import unwritten
from kintsugi.reporting.files import write_whole
from kintsugi.reporting.tables import Table

REPORT = "report"
TABLES: tuple[Callable[[Results], Table], ...] = (
    outcome_tables.aggregate,
    outcome_tables.ranking,
    outcome_tables.slices,
    cost_tables.decomposition,
    excess.excess,
    cost_tables.failures,
    cost_tables.divergences,
    cost_tables.elastic,
    cost_tables.sweep,
    outcome_tables.full,
    setup_tables.definition,
    setup_tables.factors,
    setup_tables.environment,
    setup_tables.log_fields,
)
"""In the order of the report."""
STATISTICS = """Cells are compared with the cell of the same suite and seed: both saw the same samples and began with the same
parameters. Intervals are Student's, 95 %; from three seeds a bootstrap has ten different samples to draw, too few for one.
Over all suites the mean counts every suite alike, and its margin comes from how much seeds differ within suites (Welch and
Satterthwaite's degrees of freedom): it says how sure the mean of these suites is, not what another suite would show.
Reductions are one minus the ratio of the means, as in the paper, with the interval of the linearised ratio.
"""
MOST_FAULTS = 30
"""In the text; matrix.json has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was made of a matrix."""

    path: Path
    """The text."""
    written: tuple[Path, ...]
    """All files."""
    findings: tuple[Finding, ...]
    acceptances: tuple[Acceptance, ...]
    without_figures: str = ""
    """Why there are no figures; empty where there are."""

    @property
    def is_accepted(self) -> bool:
        """Whether every suite passed all quality gates."""
        return bool(self.acceptances) and all(each.is_accepted for each in self.acceptances)


def write_report(folder: Path) -> Report:
    """Make everything that the records in a matrix's folder allow; what an earlier call wrote is replaced.

    Figures are left out where matplotlib is not installed. Pure arithmetic and files: seconds for a hundred cells.

    Raises:
        InvalidInputError: a manifest, a record or a file of steps is missing or wrong, or a file of the report cannot be
            written, which then stays as it was; it is named.
    """
    results = Results.load(folder)
    try:
        return _written(results, folder / REPORT)
    except OSError as error:
        raise unwritten(error, Path(error.filename or folder / REPORT)) from error


def _written(results: Results, target: Path) -> Report:
    (target / "tables").mkdir(parents=True, exist_ok=True)
    found, accepted = findings_module.findings(results), acceptances(results)
    tables = (findings_module.table_of(found), outcome_tables.gates(accepted), *(make(results) for make in TABLES))
    tables = tuple(table for table in tables if table.rows)
    written = [table.write_csv(target / "tables") for table in tables]
    written += [table.write_csv(target) for table in (setup_tables.manifest(results), setup_tables.cells(results))]
    drawn, without = _drawn(results, target / "figures")
    written += [path for paths in drawn.values() for path in paths]
    written.append(_write(target / "matrix.json", json.dumps(_document(results, found, accepted, tables), indent=2)))
    text = _text(results, accepted, tables, drawn, without)
    written.append(_write(target / "report.md", text))
    return Report(path=written[-1], written=tuple(written), findings=found, acceptances=accepted, without_figures=without)


def _drawn(results: Results, folder: Path) -> tuple[dict[str, tuple[Path, ...]], str]:
    try:
        return figures.draw(results, folder), ""
    except InvalidInputError as error:
        return {}, error.message


def _document(
    results: Results, found: tuple[Finding, ...], accepted: tuple[Acceptance, ...], tables: tuple[Table, ...]
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": results.manifest.name,
        "started_at": results.manifest.started_at,
        "statuses": _statuses(results),
        "findings": [{**encode(each), "verdict": each.verdict} for each in found],
        "gates": [{**encode(each), "is_accepted": each.is_accepted} for each in accepted],
        "tables": {table.name: table.document() for table in tables},
    }


def _statuses(results: Results) -> dict[str, int]:
    counts = Counter(entry.status for entry in results.manifest.entries)
    return {status.value: counts[status] for status in CellStatus if counts[status]}


def _text(
    results: Results,
    accepted: tuple[Acceptance, ...],
    tables: tuple[Table, ...],
    drawn: dict[str, tuple[Path, ...]],
    without: str,
) -> str:
    first, gates, *others = (table.markdown() for table in tables)
    faults = [fault for each in accepted for gate in each.gates for fault in gate.faults]
    if len(faults) > MOST_FAULTS:
        faults = [*faults[:MOST_FAULTS], f"and {len(faults) - MOST_FAULTS} more, all in matrix.json"]
    parts = [f"# Matrix {results.manifest.name}\n", _summary(results), first, gates]
    if faults:
        parts.append("\n".join(["Against it:", "", *(f"- {fault}" for fault in faults), ""]))
    parts.append("## Figures\n")
    if without:
        parts.append(f"There are none: {without}; then make the report again.\n")
    parts += [f"![{name}](figures/{paths[0].name})\n\n{figures.CAPTIONS[name]}\n" for name, paths in drawn.items()]
    return "\n".join([*parts, "## Tables\n", *others, "## How to read it\n", STATISTICS])


def _summary(results: Results) -> str:
    statuses = ", ".join(f"{count} {name}" for name, count in _statuses(results).items())
    hours = sum(record.wall.total_seconds for record in results.records.values()) / 3600
    return (
        f"Begun {results.manifest.started_at}. {len(results.manifest.entries)} cells ({statuses}); those on record took "
        f"{hours:.2f} h of wall time. Whiskers and ± are 95 % confidence intervals.\n"
    )


def _write(path: Path, text: str) -> Path:
    write_whole(path, text)
    return path
