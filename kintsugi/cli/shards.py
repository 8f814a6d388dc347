"""`kintsugi shards`: how many shards of the state each neighbour sends to a newcomer."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kintsugi.cli.output import Format, print_json
from kintsugi.cli.terminal import terminal
from kintsugi.core import codec
from planner.sharding.exact import assign_shards
from planner.sharding.problem import ShardAssignment, ShardProblem


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("shards", help="The fastest way to fetch shards from several neighbours.")(shards)


def shards(
    *,
    input: Annotated[Path, typer.Option("--input", help="Shards and neighbours (JSON).")],  # noqa: A002  # the option's name
    format: Annotated[Format, typer.Option("--format", help="A table for people or one JSON document.")] = Format.TABLE,  # noqa: A002
) -> None:
    """The fastest way to fetch shards from several neighbours."""
    problem = codec.load(ShardProblem, input, named="--input")
    start = time.perf_counter()
    assignment = assign_shards(problem)
    elapsed = time.perf_counter() - start
    if format is Format.TABLE:
        _print_table(problem, assignment, elapsed)
        return
    counts = {neighbor.id: count for neighbor, count in zip(problem.neighbors, assignment.counts, strict=True)}
    print_json({"makespan_seconds": assignment.makespan_seconds, "counts": counts, "elapsed_seconds": elapsed})


def _print_table(problem: ShardProblem, assignment: ShardAssignment, elapsed_seconds: float) -> None:
    table = Table(title=f"{problem.num_shards:,} shards of {problem.shard_bytes:,} bytes", title_justify="left")
    for name in ("neighbor", "shards", "done after"):
        table.add_column(name, justify="left" if name == "neighbor" else "right")
    for neighbor, count in zip(problem.neighbors, assignment.counts, strict=True):
        finish = neighbor.arrival_seconds(count * problem.shard_bytes)
        table.add_row(neighbor.id, f"{count:,}", f"{finish:.6g} s" if count else "-")
    console = terminal()
    console.print(table)
    console.print(
        f"all shards are there after {assignment.makespan_seconds:.6g} s; decided in {elapsed_seconds * 1e3:.3f} ms",
    )
