"""Beside torchft: three replicas of one model, one of them killed and started again, by both systems in one run.

    python -m benchmarks.torchft [--kills 5] [--megabytes 4 200] [--cell-seconds 90] [--environment FOLDER]

torchft-nightly is installed from PyPI into a virtual environment of its own (a temporary one, or the one kept in FOLDER), on
this project's torch. Both train four square matrices with SGD and momentum (parameters and momentum together are the state),
float32, over gloo on loopback, one thread each; each kill is a SIGKILL right after a step.

- kill to first committed step: of the two that are left.
- restart to full strength: from the order to start the third again to the first step that all three committed. torchft starts
  an interpreter, which imports torch; Kintsugi forks a process that has it. The last column is without torchft's imports.

torchft waits for a dead replica until its heartbeat is overdue or, whichever is sooner, a join timeout. It is measured as
`torchft_lighthouse` comes (5 s heartbeat, 60 s join), with a heartbeat of 1 s, and with a join timeout of 0.1 s, which
recovers quickest and leaves every replica behind that is 0.1 s late for a step. Medians over all kills; the machine's load shows
in every figure. A cell begins no further kill once it has taken its seconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.rivals import kintsugi_crew
from benchmarks.rivals.environment import torchft_python, torchft_version
from benchmarks.rivals.torchft_crew import NUM_REPLICAS, LighthouseTimes, TorchftCrew
from benchmarks.running import scratch
from benchmarks.trouble.service import service_process
from kintsugi.core.errors import UnavailableError

ASKED_RATIO = 4.0
KINTSUGI = "kintsugi"
SETTINGS = {
    "torchft, as it comes": LighthouseTimes(heartbeat_timeout_ms=5000, join_timeout_ms=60_000, quorum_tick_ms=100),
    "torchft, heartbeat 1 s": LighthouseTimes(heartbeat_timeout_ms=1000, join_timeout_ms=60_000, quorum_tick_ms=100),
    "torchft, join 0.1 s": LighthouseTimes(heartbeat_timeout_ms=1000, join_timeout_ms=100, quorum_tick_ms=10),
}


@dataclass(slots=True)
class Cell:
    """One system with one size of state; all times in seconds, one per kill."""

    system: str
    megabytes: int
    kill_seconds: list[float] = field(default_factory=list)
    restart_seconds: list[float] = field(default_factory=list)
    import_seconds: list[float] = field(default_factory=list)
    problem: str = ""

    def take(self, kill: float, restart: float) -> None:
        """Add one kill."""
        self.kill_seconds.append(kill)
        self.restart_seconds.append(restart)

    def row(self, own: "Cell") -> list[str]:
        """As printed, beside Kintsugi's."""
        if self.problem or not self.restart_seconds:
            return [str(self.megabytes), self.system, self.problem or "nothing measured", "", "", "", "", ""]
        kill, restart = statistics.median(self.kill_seconds), statistics.median(self.restart_seconds)
        ratios = ["", ""]
        if own is not self and own.restart_seconds:
            ratios = [
                f"{kill / statistics.median(own.kill_seconds):.1f} x",
                f"{restart / statistics.median(own.restart_seconds):.1f} x",
            ]
        bare = restart - statistics.median(self.import_seconds) if self.import_seconds else restart
        values = [f"{kill:.3f}", ratios[0], f"{restart:.3f}", ratios[1], f"{bare:.3f}"]
        return [str(self.megabytes), self.system, str(len(self.kill_seconds)), *values]


def measure_torchft(cell: Cell, python: Path, times: LighthouseTimes, num_kills: int, seconds: float) -> None:
    """Kill each replica in turn, and start it again; no further one after `seconds`."""
    deadline = time.monotonic() + seconds
    with TorchftCrew(python, cell.megabytes * 1_000_000, times) as crew:
        at_rest = crew.until_committed(NUM_REPLICAS, 0.0)
        for index in range(num_kills):
            at_rest = crew.until_committed(NUM_REPLICAS, at_rest)
            killed_at = crew.kill(index % NUM_REPLICAS)
            kill_seconds = crew.until_committed(NUM_REPLICAS - 1, killed_at) - killed_at
            started_at = crew.start(index % NUM_REPLICAS)
            cell.import_seconds.append(crew.until_ready(started_at) - started_at)
            at_rest = crew.until_committed(NUM_REPLICAS, started_at)
            cell.take(kill_seconds, at_rest - started_at)
            if time.monotonic() > deadline:
                return


def cells_for(arguments: argparse.Namespace, megabytes: int, python: Path, service: str, say: Callable[[str], None]) -> list[Cell]:
    """Kintsugi, then torchft in every setting."""
    own = Cell(KINTSUGI, megabytes)
    kintsugi_crew.measure(megabytes * 1_000_000, arguments.kills, arguments.cell_seconds, service, own.take)
    cells = [own]
    say(" ".join(own.row(own)))
    for name, times in SETTINGS.items():
        cells.append(Cell(name, megabytes))
        try:
            measure_torchft(cells[-1], python, times, arguments.kills, arguments.cell_seconds)
        except UnavailableError as error:
            cells[-1].problem = str(error)
        say(" ".join(cells[-1].row(own)))
    return cells


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="in each cell")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[4, 200], help="of state")
    parser.add_argument("--cell-seconds", type=float, default=90.0, help="after which a cell begins no further kill")
    parser.add_argument("--environment", type=Path, help="keep torchft's virtual environment here")
    arguments = parser.parse_args()
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    table = Table(title=f"medians, seconds; asked for: torchft takes {ASKED_RATIO:g} times as long in each cell")
    for column in ("MB", "system", "kills", "kill to step", "ratio", "restart to full strength", "ratio", "without imports"):
        table.add_column(column, justify="left" if column == "system" else "right")
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        python = torchft_python(arguments.environment or folder / "environment")
        console.print(torchft_version(python))
        service = stack.enter_context(service_process(folder))
        for megabytes in arguments.megabytes:
            cells = cells_for(arguments, megabytes, python, service.url, console.print)
            for cell in cells:
                table.add_row(*cell.row(cells[0]))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
