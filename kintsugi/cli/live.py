"""A running job on the terminal: the DP x PP grid, the loss, and the timeline of every recovery."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kintsugi.core.plan import Plan, Stage
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.recovery import RecoveryTimeline

_REFRESH_SECONDS = 0.1


class LiveView(AbstractContextManager["LiveView"]):
    """Draws an agent while it runs; an observer of it. On what is no terminal only the last state is printed."""

    def __init__(self, console: Console, title: str, num_steps: int) -> None:
        self._title = title
        self._num_steps = num_steps
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()
        self._live.console.print()

    def __call__(self, agent: Agent) -> None:
        """Draw, at most ten times a second and whenever the run ends."""
        now = time.monotonic()
        if now - self._drawn_at >= _REFRESH_SECONDS or agent.phase is Phase.COLLECTING:
            self._drawn_at = now
            self._live.update(self._picture(agent), refresh=True)

    def _picture(self, agent: Agent) -> Group:
        plan = agent.decision.plan
        loss = f"loss {agent.losses[max(agent.losses)]:.6f}" if agent.losses else ""
        head = Text.assemble(
            (self._title, "bold"),
            f"  step {len(agent.losses)}/{self._num_steps}  {loss}  generation {plan.generation}, {plan.policy.value}  ",
            (agent.phase.value, "green" if agent.phase is Phase.TRAINING else "yellow"),
        )
        parts: list[Text | Table] = [head, grid(plan, agent.alive)]
        if agent.recoveries:
            parts.append(timeline_table(agent.recoveries))
        return Group(*parts)


def grid(plan: Plan, alive: Sequence[str]) -> Table:
    """Pipelines as rows, stages as columns: who holds which layers, and whose micro-batches go elsewhere."""
    table = Table(box=None, padding=(0, 1), show_header=False)
    for index, pipeline in enumerate(plan.pipelines):
        cells = [_cell(plan, index, s, stage, alive) for s, stage in enumerate(pipeline.stages)]
        table.add_row(Text(f"pipeline {index} · {pipeline.num_microbatches} micro-batches", style="dim"), *cells)
    if plan.idle_workers:
        table.add_row(Text("idle", style="dim"), Text(", ".join(idle.worker for idle in plan.idle_workers), style="cyan"))
    return table


def _cell(plan: Plan, pipeline: int, index: int, stage: Stage, alive: Sequence[str]) -> Text:
    layers = f"[{stage.layer_start}:{stage.layer_stop})"
    if stage.worker is None:
        takers = sorted({route.worker for route in plan.routes if (route.pipeline, route.stage) == (pipeline, index)})
        return Text(f"✗ → {', '.join(takers)} {layers}", style="magenta")
    if stage.worker not in alive:
        return Text(f"✗ {stage.worker} {layers}", style="bold red")
    return Text(f"{stage.worker} {layers}", style="green")


def timeline_table(recoveries: Sequence[RecoveryTimeline]) -> Table:
    """Milliseconds from each failure to the end of each phase of its recovery."""
    phases = ("detected", "planned", "quiesced", "regrouped", "transferred", "resumed", "first_step")
    table = Table(
        title="recoveries, milliseconds since the failure", title_justify="left", title_style="dim", box=None, padding=(0, 1)
    )
    table.add_column("lost")
    table.add_column("policy")
    for phase in phases:
        table.add_column(phase.replace("_", " "), justify="right")
    for recovery in recoveries:
        seconds = recovery.phase_seconds()
        cells = [f"{seconds[phase] * 1e3:.0f}" if phase in seconds else "…" for phase in phases]
        table.add_row(", ".join(recovery.lost), recovery.policy, *cells)
    return table
