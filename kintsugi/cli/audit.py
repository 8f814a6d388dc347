"""`kintsugi audit`: prove from a run's journals what it trained on."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kintsugi.cli.output import Format, print_json
from kintsugi.cli.terminal import styled, terminal
from kintsugi.core.codec import encode
from kintsugi.runtime.records.audit import AuditReport
from kintsugi.runtime.records.audit import audit as prove


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("audit", help="Prove from a run's journals that it trained on every sample once.")(audit)


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that the job was given as its run.")],
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Accept a run whose last steps are not committed yet.")] = False,
    form: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TABLE,
) -> int:
    """Merge the journals of a run; exit 1 where they do not prove it."""
    report = prove(run)
    is_proven = report.is_exact and (report.is_complete or unfinished)
    if form is Format.JSON:
        print_json({"is_proven": is_proven, "is_exact": report.is_exact, "is_complete": report.is_complete, **encode(report)})
    else:
        _print(report, is_proven)
    return 0 if is_proven else 1


def _print(report: AuditReport, is_proven: bool) -> None:
    console = terminal()
    table = Table(
        title=f"{report.committed_steps} of {report.num_steps} steps, {report.num_journals} journals", title_justify="left"
    )
    for name in ("epoch", "steps", "samples", "duplicates", "missing", "extra"):
        table.add_column(name, justify="right")
    for epoch in report.epochs:
        row = (epoch.epoch, epoch.num_steps, epoch.num_samples, epoch.duplicates, epoch.missing, epoch.extra)
        table.add_row(*map(str, row))
    console.print(table)
    for undone in report.undone:
        console.print(f"steps {undone.first} to {undone.last} were undone ({undone.source.value}) and trained again")
    for problem in report.problems:
        console.print(styled("red", problem))
    if report.num_problems > len(report.problems):
        console.print(f"{report.num_problems} problems in all, each step and layer for itself")
    if report.is_exact and not is_proven:
        left = report.num_steps - report.committed_steps
        console.print(f"{left} steps are not committed yet; --unfinished proves the others")
    console.print(styled("green", "proven") if is_proven else styled("red", "not proven"))
