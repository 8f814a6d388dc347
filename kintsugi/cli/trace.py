"""`kintsugi trace`: a plan's schedule, a run's measured actions, or both side by side, as a Chrome trace."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from estimator.trace import TracedStep, TraceGroup, dumps, predicted_group, trace_document
from estimator.trace_comparison import KindComparison, begin_seconds, compared, span_seconds, whole_steps
from kintsugi.cli.files import write_text
from kintsugi.cli.output import Format, print_json
from kintsugi.cli.plan import ClusterFile, OutputFormat, WorkersPerHost, load_cluster, load_profile, refuse_beside_cluster
from kintsugi.cli.replan import cluster_around, load_plan
from kintsugi.cli.terminal import terminal
from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.records.tracing_files import MeasuredRun, read_run
from planner.adoption import fitting


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("trace", help="A plan's schedule, or a run's measured actions, as a trace for Perfetto.")(trace)


def trace(
    *,
    profile: Annotated[Path | None, typer.Option("--profile", help="Profile of the model, for a plan's schedule.")] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="The plan, or what `plan` or `replan` printed (JSON).")] = None,
    cluster: ClusterFile = None,
    workers_per_host: WorkersPerHost = 1,
    run: Annotated[Path | None, typer.Option("--run", help="Folder that a run recorded its actions in.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Lay the prediction beside what the run measured.")] = False,
    generation: Annotated[int | None, typer.Option("--generation", help="Of the plan to compare; the run's last.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="File for the trace; standard output by default.")] = None,
    format: OutputFormat = Format.TABLE,  # noqa: A002  # the option's name
) -> None:
    """A plan's schedule, or a run's measured actions, as a trace for Perfetto (ui.perfetto.dev)."""
    if run is None:
        if compare:
            raise InvalidInputError("needs --run FOLDER: what is to be compared", field="compare", value=True)
        if generation is not None:
            raise InvalidInputError("needs --run FOLDER and --compare: a plan has its own", field="generation", value=generation)
        groups = [_predicted(profile, plan, cluster, workers_per_host)]
        _write(groups, output, kind="predicted")
        return
    if profile is not None or plan is not None or cluster is not None or workers_per_host != 1:
        message = "has its own profile, plans, cluster and hosts; leave those options out"
        raise InvalidInputError(message, field="run", value=str(run))
    if generation is not None and not compare:
        raise InvalidInputError("needs --compare; a trace shows all generations of a run", field="generation", value=generation)
    measured = read_run(run)
    if compare:
        _compare(measured, generation, output, format)
    else:
        _write(measured.groups(), output, kind="measured", clocks=_clocks(measured))


def _predicted(profile: Path | None, plan: Path | None, cluster: Path | None, workers_per_host: int) -> TraceGroup:
    for field, value in (("profile", profile), ("plan", plan)):
        if value is None:
            raise InvalidInputError("is needed: give --profile and --plan, or --run", field=field)
    assert profile is not None
    assert plan is not None
    refuse_beside_cluster(workers_per_host, cluster)
    running = load_plan(plan)
    workers = load_cluster(cluster) if cluster else cluster_around(running.workers, workers_per_host)
    model = load_profile(profile)
    return predicted_group(fitting(running, model, workers), model, workers)


def _compare(run: MeasuredRun, generation: int | None, output: Path | None, form: Format) -> None:
    """Print the comparison, and write both as one trace where a file is named."""
    chosen = max(run.steps) if generation is None and run.steps else generation
    if chosen is None or chosen not in run.steps:
        known = ", ".join(map(str, sorted(run.steps))) or "none"
        raise InvalidInputError(f"was not recorded; recorded generations: {known}", field="generation", value=generation)
    plan, steps = run.plans[chosen], run.steps[chosen]
    whole = whole_steps(steps, plan.workers)
    rows = compared(predicted_group(plan, run.profile, run.cluster).steps[0], whole)
    if output is not None:
        begin = begin_seconds(_typical(whole))
        predicted = predicted_group(plan, run.profile, run.cluster, begin_seconds=begin)
        measured = TraceGroup(title=f"measured, generation {chosen}", plan=plan, steps=steps)
        _write([predicted, measured], output, kind="compared", clocks=_clocks(run))
    _print(rows, len(whole), form)


def _typical(steps: tuple[TracedStep, ...]) -> TracedStep:
    """The step of median length: the prediction is laid beside it."""
    return sorted(steps, key=span_seconds)[len(steps) // 2]


def _print(rows: tuple[KindComparison, ...], num_steps: int, form: Format) -> None:
    if form is Format.JSON:
        kinds = [{**codec.encode(row), "difference_ratio": row.difference_ratio} for row in rows]
        print_json({"num_steps": num_steps, "kinds": kinds})
        return
    table = Table(title=f"seconds per step over all workers; median of {num_steps} measured steps", title_justify="left")
    for name in ("kind", "actions", "predicted", "measured", "difference"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for row in rows:
        ratio = "-" if row.difference_ratio is None else f"{row.difference_ratio:+.1%}"
        table.add_row(row.kind, str(row.num_actions), f"{row.predicted_seconds:.6g}", f"{row.measured_seconds:.6g}", ratio)
    terminal().print(table)


def _clocks(run: MeasuredRun) -> str:
    """How the hosts' clocks were laid together."""
    return ", ".join(f"{host}: {source}" for host, source in run.alignment.items())


def _write(groups: list[TraceGroup] | tuple[TraceGroup, ...], output: Path | None, **metadata: str) -> None:
    text = dumps(trace_document(groups, **metadata))
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
