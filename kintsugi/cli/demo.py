"""`kintsugi demo`: a real training job loses workers and goes on, on plans made by a real service."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kintsugi.cli.live import LiveView
from kintsugi.cli.terminal import terminal
from kintsugi.core.decision import Decision
from kintsugi.core.errors import UnavailableError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy
from kintsugi.core.profile import Profile
from kintsugi.runtime.faults import Fault, fail_at
from kintsugi.runtime.gpt import gpt_job
from kintsugi.runtime.measuring.profiler import profile_job
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.records.compare import Difference, difference
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.train import train

TOLERANCE = 1e-12
"""Largest relative difference to the uninterrupted run, in fp64: sums in another order, nothing else."""

NUM_MICROBATCHES = 8
SERVICE_START_SECONDS = 30.0
WIDTH_OF_FILES = 132
"""Columns where the output is no terminal."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("demo", help="Train a real job, kill its workers, and watch it go on.")(demo)


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees to start with, and what strikes the job."""

    dp: int
    pp: int
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """Short name."""
        return f"DP {self.dp} x PP {self.pp}"


def layouts(num_steps: int) -> tuple[Layout, ...]:
    """Two layouts; in each a worker is killed in the middle of a step, and later one is frozen."""
    first, second = num_steps // 3, 2 * num_steps // 3
    return (
        Layout(2, 3, (fail_at(first, "w04", "backward", microbatch=5), fail_at(second, "w00", "forward", "freeze"))),
        Layout(4, 2, (fail_at(first, "w03", "forward", microbatch=3), fail_at(second, "w06", "reduce", "freeze"))),
    )


def demo(
    steps: Annotated[int, typer.Option(help="Optimizer updates of each run.", min=6)] = 12,
    seed: Annotated[int, typer.Option(help="Of initial values, data order and dropout.")] = 0,
) -> int:
    """Train a GPT-style decoder byte by byte, strike its workers, and compare with the run that nothing struck.

    Starts a service on a temporary SQLite file and, for each of two layouts, trains three times on real worker processes:
    undisturbed, struck under the policy that the planner chooses, and struck under one that it did not. Exits with 1
    when any loss or parameter differs by more than 1e-12 (fp64), or replicas are not bitwise equal.
    """
    console = terminal(width_of_files=WIDTH_OF_FILES)
    make_job = partial(gpt_job, num_microbatches=NUM_MICROBATCHES, num_steps=steps, seed=seed)
    with tempfile.TemporaryDirectory(prefix="kintsugi-demo-") as folder, service(Path(folder)) as url:
        console.print(f"service on SQLite at {url}; watch the jobs at {url}/dashboard")
        console.print("measuring the model's layers, the links and the recovery on this machine ...")
        profile = profile_job(make_job, name="demo-gpt", num_workers=8)
        stage = _Stage(console, make_job, profile, url, steps)
        rows = [row for layout in layouts(steps) for row in stage.play(layout)]
    console.print(_verdict(rows))
    return 0 if all(row.is_equal for row in rows) else 1


@dataclass(frozen=True, slots=True)
class _Row:
    layout: Layout
    policies: tuple[str, ...]
    losses: tuple[float, float]
    """Last loss of the struck run and of the undisturbed one."""
    difference: Difference

    @property
    def is_equal(self) -> bool:
        return self.difference.is_within(TOLERANCE)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where the runs of the demo are played."""

    console: Console
    make_job: "partial[TrainingJob]"
    profile: Profile
    url: str
    num_steps: int

    def play(self, layout: Layout) -> Iterator[_Row]:
        """The undisturbed run, then two struck ones beside it."""
        self.console.rule(layout.name)
        reference = self._train(layout, "undisturbed", (), None)
        chosen = self._train(layout, "struck", layout.faults, None)
        self.console.print(f"why: {chosen.decisions[1].reason}")
        yield _row(layout, chosen, reference)
        other = _other_policy(chosen.decisions[1])
        pinned = self._train(layout, f"struck, pinned to {other.value}", layout.faults, other)
        yield _row(layout, pinned, reference)

    def _train(self, layout: Layout, title: str, faults: Sequence[Fault], policy: Policy | None) -> RunResult:
        name = f"{layout.name}, {title}".replace(" ", "-").replace(",", "")
        with LiveView(self.console, f"{layout.name}, {title}", self.num_steps) as view:
            return train(
                self.make_job,
                workers=layout.dp * layout.pp,
                dp=layout.dp,
                pp=layout.pp,
                ranges=Ranges(min_dp=2, min_pp=2),
                name=name,
                profile=self.profile,
                service=self.url,
                policy=policy,
                faults=faults,
                observer=view,
            )


def _other_policy(decision: Decision) -> Policy:
    """Of rerouting and dynamic parallelism the one that was not chosen."""
    both = (Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM)
    return both[1] if decision.policy is both[0] else both[0]


def _row(layout: Layout, struck: RunResult, reference: RunResult) -> _Row:
    policies = tuple(decision.policy.value for decision in struck.decisions[1:])
    return _Row(layout, policies, (struck.losses[-1], reference.losses[-1]), difference(struck, reference))


def _verdict(rows: Sequence[_Row]) -> Table:
    table = Table(title="beside the uninterrupted run (fp64)", title_justify="left")
    for column in ("layout", "policies", "last loss", "uninterrupted", "max loss diff", "max parameter diff", "replicas", ""):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(
            row.layout.name,
            "\n".join(row.policies),
            f"{row.losses[0]:.12f}",
            f"{row.losses[1]:.12f}",
            f"{row.difference.loss_ratio:.1e}",
            f"{row.difference.parameter_ratio:.1e}",
            "bitwise equal" if row.difference.has_equal_replicas else "differ",
            Text("equal", "green") if row.is_equal else Text("DIFFERENT", "bold red"),
        )
    return table


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """A service process on a SQLite file in `folder`; yields its URL, and ends it on every path."""
    command = [sys.executable, "-c", "from kintsugi.cli import main; main()", "serve", "--port", "0", "--log-level", "warning"]
    command += ["--database-url", f"sqlite:///{folder / 'kintsugi.sqlite3'}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603  # our own command
    timer = threading.Timer(SERVICE_START_SECONDS, process.kill)
    timer.start()
    try:
        url = _announced_url(process)
        timer.cancel()
        yield url
    finally:
        timer.cancel()
        process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _announced_url(process: "subprocess.Popen[str]") -> str:
    """The address that the service announces when it can answer."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "listening on" in line:
            threading.Thread(target=process.stderr.read, name="service-log", daemon=True).start()
            return line.rpartition(" ")[2].strip()
    raise UnavailableError("did not start:\n" + "".join(said[-10:]), field="service")
