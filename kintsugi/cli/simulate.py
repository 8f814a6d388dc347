"""`kintsugi simulate`: what would have happened to a job, under every policy."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from kintsugi.cli.deciding import native_lines_apart
from kintsugi.cli.output import Format, print_json
from kintsugi.cli.progress import progress_of
from kintsugi.cli.terminal import terminal
from kintsugi.core.errors import InvalidInputError, cause_of
from kintsugi.runtime.disk import make_folder
from kintsugi.simulator import figures, report
from kintsugi.simulator.policies import ALL, chosen
from kintsugi.simulator.rows import Row
from kintsugi.simulator.scenario import Scenario, load, names
from kintsugi.simulator.summary import summarised
from kintsugi.simulator.sweep import MOST_RUNS, Result, Task, executor_for, in_order, run_all, tasks_of
from kintsugi.simulator.variations import parsed

HELP = """What would have happened to a job, under every policy.

Begin with: kintsugi simulate --scenario chameleon-32. A scenario of your own is a JSON file like examples/scenario.json;
docs/simulator.md says what policies do and what is assumed.
"""

WIDTH_OF_FILES = 160
"""Columns where the output is no terminal."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("simulate", help=HELP)(simulate)


def simulate(
    *,
    scenario: Annotated[str, typer.Option("--scenario", help=f"A file, or one of: {', '.join(names())}.")],
    trace: Annotated[Path | None, typer.Option("--trace", help="Arrivals and preemptions in the place of the scenario's.")] = None,
    vary: Annotated[list[str] | None, typer.Option("--vary", help="Such as spares=0..8 or mtbf=3600,7200; repeatable.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of every combination and policy.", min=1, max=MOST_RUNS)] = 1,
    policies: Annotated[
        list[str] | None, typer.Option("--policies", help=f"Of {', '.join(ALL)}, published, pinned, all (the default).")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for CSV files and figures.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Processes to share runs out to; all cores by default.", min=1)] = None,
    dask: Annotated[str | None, typer.Option("--dask", help="Address of a Dask scheduler to run on.")] = None,
    format: Annotated[Format, typer.Option("--format", help="A table for people or one JSON document.")] = Format.TABLE,  # noqa: A002
) -> None:
    """What would have happened to a job, under every policy."""
    case = load(scenario)
    if trace is not None:
        case = replace(case, trace=str(trace.resolve()))
    wanted = chosen([name for text in policies or ["all"] for name in text.split(",")])
    num_processes = jobs or os.cpu_count() or 1
    tasks = tasks_of(case, parsed(vary or []), wanted, range(seeds), num_processes=num_processes)
    _check(tasks, out)
    with native_lines_apart():
        results = _run(tasks, num_processes, dask)
    rows = summarised(results)
    if out is not None:
        _write(out, case, results, rows)
    if format is Format.JSON:
        print_json(report.document(case.name, rows))
    else:
        title = _title(case.name, [task.scenario for task in tasks], seeds, rows)
        terminal(width_of_files=WIDTH_OF_FILES).print(report.table_of(rows, title))


def _check(tasks: Sequence[Task], out: Path | None) -> None:
    """Find what is wrong with files before anything is simulated."""
    if out is not None:
        make_folder(out, "out")
    for case in {(task.scenario.profile, task.scenario.trace): task.scenario for task in tasks}.values():
        case.check_files()


def _run(tasks: Sequence[Task], num_processes: int, dask: str | None) -> tuple[Result, ...]:
    """All results; progress goes to stderr."""
    results: list[Result] = []
    with (
        executor_for(1 if len(tasks) == 1 and dask is None else num_processes, dask) as executor,
        progress_on(terminal(stderr=True)) as progress,
    ):
        bar = progress.add_task("simulating", total=sum(len(task.seeds) for task in tasks))
        for part in run_all(tasks, executor):
            results += part
            progress.advance(bar, len(part))
    return in_order(results, tasks)


def progress_on(console: Console) -> Progress:
    """How many runs are done, and how long that has taken: a single one of many workers may take minutes."""
    return progress_of(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)


def _title(name: str, cases: Sequence[Scenario], seeds: int, rows: Sequence[Row]) -> str:
    """What all rows have in common; what is varied stands in each of them."""
    runs = _runs(seeds, {row.num_runs for row in rows})
    workers, hours = {_workers(case) for case in cases}, {f"{case.duration_seconds / 3600:g} h" for case in cases}
    common = [word for words in (workers, hours) if len(words) == 1 for word in words]
    return f"{name}: {', '.join((*common, runs))}; shares of the time"


def _runs(seeds: int, numbers: Collection[int]) -> str:
    """How many runs rows tell of, and why they are fewer than was asked for."""
    if seeds == 1:
        return "one run"
    if seeds not in numbers:
        return "one run, for nothing is left to chance"
    alone = ", of one where nothing is left to chance" if 1 in numbers else ""
    return f"means of {seeds} runs with 95 % confidence{alone}"


def _workers(case: Scenario) -> str:
    return f"{case.num_workers} workers" if case.trace is None else f"workers of {Path(case.trace).name}"


def _write(folder: Path, case: Scenario, results: Sequence[Result], rows: Sequence[Row]) -> None:
    try:
        report.write_runs(results, folder / "runs.csv")
        report.write_summary(rows, folder / "summary.csv")
        runs = [r.outcome for r in results if r.outcome.seed == 0 and dict(r.values) == dict(results[0].values)]
        figures.draw(folder, runs, rows, case.load_profile().microbatch_size)
    except OSError as error:
        raise InvalidInputError(
            f"cannot be written: {cause_of(error)}", field="out", value=str(error.filename or folder)
        ) from error
