"""`kintsugi matrix`: what failures and checkpoints cost, on real data, under every strategy."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from kintsugi.cli import INTERRUPTED
from kintsugi.cli.deciding import native_lines_apart
from kintsugi.cli.errors import tell
from kintsugi.cli.logs import log_to_stderr
from kintsugi.cli.output import Format, print_json
from kintsugi.cli.progress import progress_of
from kintsugi.cli.terminal import styled, terminal
from kintsugi.core.codec import encode
from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix.cell import Cell
from kintsugi.matrix.execution import StoppedError
from kintsugi.matrix.manifest import CellStatus, Manifest
from kintsugi.matrix.report import Report, write_report
from kintsugi.matrix.runner import Asked, run_matrix
from kintsugi.matrix.suites import Matrix, with_seeds

MATRIX = Matrix()


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("matrix", help="Measure what failures and checkpoints cost, under every strategy.")(matrix)


def matrix(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="For records and report; what is done there stays done.")],
    *,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, show_default=str(len(MATRIX.seeds)), help="Repetitions of every suite, seeds 0 to N - 1."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PATTERN", help="Cells by name, as 'digits-*/memory-*'; may be repeated.")
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Also other checkpoint intervals and writes in flight.")] = False,
    dry_run: Annotated[bool, typer.Option("--list", help="Name the cells, and run none.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Run nothing; make the report anew from what is there.")] = False,
    form: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TABLE,
) -> int:
    """Run the matrix and write its report; exit 1 where cells failed or a quality gate is not passed.

    Ctrl-C stops it safely, with exit 130.
    """
    if dry_run and report:
        raise InvalidInputError("contradicts --list: both run nothing, give one of them", field="report", value=True)
    if report:
        _refuse_choices(seeds=seeds, only=only, sweep=sweep or None)
    asked = Asked(sweep=sweep, only=tuple(only or ()))
    chosen = MATRIX if seeds is None else with_seeds(MATRIX, seeds)
    if dry_run:
        _print_names(asked.cells(chosen), form)
        return 0
    try:
        manifest = None if report else _run(chosen, folder, asked)
        written = write_report(folder)
    except (StoppedError, KeyboardInterrupt):  # inside a cell's job, and beside it
        tell("stopped; the same command goes on")
        return INTERRUPTED
    _print(written, manifest, form)
    return 0 if written.is_accepted else 1


def _refuse_choices(**chosen: object) -> None:
    """Refuse what chooses cells beside --report."""
    for field, value in chosen.items():
        if value is not None:
            message = "contradicts --report, which tells of all cells that the folder holds; leave one of them out"
            raise InvalidInputError(message, field=field, value=value)


def _run(chosen: Matrix, folder: Path, asked: Asked) -> Manifest:
    """Run it with a bar on stderr."""
    log_to_stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = progress_of(*columns, transient=False)
    task = progress.add_task("", total=None)

    def observe(done: int, total: int, cell: Cell) -> None:
        progress.update(task, completed=done, total=total, description=cell.name)
        progress.start()  # with the first cell: before it there may be a refusal

    try:
        with native_lines_apart():
            return run_matrix(chosen, folder, asked, observe)
    finally:
        progress.stop()


def _print_names(cells: tuple[Cell, ...], form: Format) -> None:
    names = [cell.name for cell in cells]
    if form is Format.JSON:
        print_json({"cells": names})
    else:
        typer.echo("\n".join(names))


def _print(report: Report, manifest: Manifest | None, form: Format) -> None:
    if form is Format.JSON:
        print_json({"is_accepted": report.is_accepted, "report": str(report.path), "findings": encode(report.findings)})
        return
    console = terminal()
    for entry in manifest.entries if manifest is not None else ():
        if entry.status is CellStatus.FAILED:
            console.print(styled("red", f"{entry.cell.name} failed: {entry.reason}"))
    for finding in report.findings:
        console.print(f"{finding.name}: {finding.measured} (asked {finding.asked}): {finding.verdict}")
    console.print(f"the report is {report.path}")
