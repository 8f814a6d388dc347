"""What the planning commands print: one JSON document, or tables."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table

from kintsugi.cli.terminal import styled, terminal
from kintsugi.core.codec import encode
from kintsugi.core.decision import Decision, Estimate, FollowUp, Migration, Search
from kintsugi.core.plan import IdleWorker, Pipeline, Plan

GIGABYTE = 1e9
MOST_IDLE = 8
"""Idle workers of one reason that have a line of their own."""


class Format(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document and nothing else."""
    print(json_text(document))


def json_text(document: dict[str, Any]) -> str:
    """The text of one JSON document."""
    return json.dumps(encode(document), indent=2, allow_nan=False)


def to_the_second(moment: str) -> str:
    """An RFC 3339 moment for people, in UTC; it may be broken between day and time."""
    return moment[:19].replace("T", " ")


def plan_document(decision: Decision) -> dict[str, Any]:
    """What `plan` prints."""
    return {"plan": decision.plan, "estimate": decision.estimate, "search": decision.search}


def print_decision(decision: Decision) -> None:
    """Print a decision as tables: the reason, the grid, the price, and the alternatives where there was a choice."""
    console = terminal()
    console.print(styled("bold", decision.policy.value, f": {decision.reason}"))
    console.print(_grid(decision.plan, decision.estimate))
    console.print(_price(decision.estimate, decision.search))
    if len(decision.alternatives) > 1:
        _print_alternatives(console, decision)
    _print_migration(console, decision.migration)
    if decision.follow_up is not None:
        _print_follow_up(console, decision.follow_up)
    _print_idle(console, decision.plan.idle_workers)


def _print_idle(console: Console, idle_workers: Sequence[IdleWorker]) -> None:
    """A line for each of the first idle workers of a reason, and one for all others of it."""
    by_reason: dict[str, list[str]] = {}
    for idle in idle_workers:
        by_reason.setdefault(idle.reason, []).append(idle.worker)
    for reason, workers in by_reason.items():
        for worker in workers[:MOST_IDLE]:
            console.print(f"{worker} is idle: {reason}")
        if (left := len(workers) - MOST_IDLE) > 0:
            console.print(f"{left:,} more are idle: {reason}")


def _print_migration(console: Console, migration: Migration) -> None:
    """What moves, and what only the last checkpoint still has."""
    if migration.transfers:
        console.print(
            f"{migration.total_bytes / GIGABYTE:.4g} GB move in {len(migration.transfers)} transfers; all state is there after "
            f"{migration.makespan_seconds:.4g} s (lower bound {migration.lower_bound_seconds:.4g} s)",
        )
    if migration.from_checkpoint:
        layers = ", ".join(str(layer) for layer in sorted({read.layer for read in migration.from_checkpoint}))
        num_bytes = sum(read.num_bytes for read in migration.from_checkpoint)
        console.print(
            f"{num_bytes / GIGABYTE:.4g} GB of optimizer state of layers {layers} come from the last checkpoint: "
            "no survivor holds them",
        )


def _print_follow_up(console: Console, follow_up: FollowUp) -> None:
    price = follow_up.estimate
    console.print(
        f"after {follow_up.after_steps} steps: {price.reconfiguration_seconds:.6g} s of reconfiguration, "
        f"then {price.iteration_seconds:.6g} s a step",
    )
    console.print(_grid(follow_up.plan, price))


def _grid(plan: Plan, estimate: Estimate) -> Table:
    """One row per pipeline: its micro-batches and, worker by worker, the layers of its stages and peak memory."""
    peak = {stage.worker: stage.peak_memory_bytes / GIGABYTE for stage in estimate.stages}
    table = Table(title=f"generation {plan.generation}, {plan.schedule.value}", title_justify="left")
    table.add_column("pipeline", justify="right")
    table.add_column("micro-batches", justify="right")
    table.add_column("stages: worker, layers, peak memory")
    for index, pipeline in enumerate(plan.pipelines):
        cells = [
            f"{worker or 'dead'} {_layers(pipeline, place)}" + (f" {peak[worker]:.3g} GB" if worker else "")
            for place, worker in enumerate(stage.worker for stage in pipeline.stages[: pipeline.num_workers])
        ]
        table.add_row(str(index), str(pipeline.num_microbatches), " | ".join(cells))
    return table


def _layers(pipeline: Pipeline, place: int) -> str:
    """First and last layer of every stage of a worker."""
    stages = pipeline.stages[place :: pipeline.num_workers]
    return ", ".join(f"{stage.layer_start}-{stage.layer_stop - 1}" for stage in stages)


def _price(estimate: Estimate, search: Search) -> Table:
    table = Table(show_header=False)
    rows = {
        "step": f"{estimate.iteration_seconds:.6g} s",
        "pipelines": f"{estimate.pipeline_seconds:.6g} s",
        "exposed reductions": f"{estimate.reduce_seconds:.6g} s",
        "bubbles": f"{estimate.bubble_ratio:.1%}",
        "reconfiguration": f"{estimate.reconfiguration_seconds:.6g} s",
        "throughput": f"{estimate.throughput_samples_per_second:.6g} samples/s",
        "goodput": f"{estimate.goodput_samples_per_second:.6g} samples/s",
        "lower bound of the step": f"{search.lower_bound_seconds:.6g} s (gap {search.gap_ratio:.2%})",
        "search": f"{search.elapsed_seconds * 1e3:.1f} ms",
    }
    if estimate.splits_backward:
        rows["backward passes"] = "in two parts, for input and weights"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _print_alternatives(console: Console, decision: Decision) -> None:
    """The price of every policy in 80 columns, and below what each of the others would do, or why it cannot."""
    console.print(_alternatives(decision))
    for item in decision.alternatives:
        if item.policy is not decision.policy:
            console.print(styled("bold", item.policy.value, f": {item.reason}"))


def _alternatives(decision: Decision) -> Table:
    table = Table(title="alternatives", title_justify="left")
    for name in ("policy", "step", "reconfiguration", "goodput", "with\nexpected\nrestart"):
        table.add_column(name, no_wrap=True)
    for item in decision.alternatives:
        price, charged = item.estimate, item.charged_goodput_samples_per_second
        numbers = (
            ("-", "-", "-", "-")
            if price is None
            else (
                f"{price.iteration_seconds:.6g} s",
                f"{price.reconfiguration_seconds:.6g} s",
                f"{price.goodput_samples_per_second:.6g}",
                "-" if charged is None else f"{charged:.6g}",
            )
        )
        table.add_row(item.policy.value, *numbers)
    return table
