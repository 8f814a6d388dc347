"""Workers as processes: what runs in them, and what they leave behind in files."""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kintsugi.runtime.forking import forkserver
from tests.runtime.overlay.crew import Line, own_loss, perceptron

EXAMPLE = Path(__file__).parents[3] / "examples" / "join_and_leave.py"
WAIT_SECONDS = 100.0
PACE_SECONDS = 0.02
"""What computing a step is made to take: who waits for seconds sees a hundred steps, not thousands."""


def run_example(output: str, arguments: Sequence[str]) -> None:
    """The example's main, its output in a file."""
    sys.stdout = sys.stderr = open(output, "w", buffering=1)  # noqa: SIM115 - until the process ends
    spec = importlib.util.spec_from_file_location("join_and_leave", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(arguments)


def train(output: str, job: str, worker: str, arguments: dict) -> None:
    """Train until asked to leave; a line for each step, and for each scheduler that goes on in another's place."""
    os.environ |= arguments.pop("environment", {})
    import torch

    from kintsugi.runtime.overlay.coordinator import Coordinator
    from kintsugi.runtime.overlay.options import OverlayOptions

    torch.set_num_threads(1)
    sys.stderr = open(output + ".err", "w", buffering=1)  # noqa: SIM115 - until the process ends
    model, optimizer = perceptron()
    with open(output, "w", buffering=1) as file:
        options = arguments.pop("options", OverlayOptions(link_timeout_seconds=60.0))
        coordinator = Coordinator(model, optimizer, job=job, worker=worker, options=options, **arguments)
        told = coordinator.overlay.scheduler
        while not coordinator.capture_exit_event():
            loss = own_loss(model, worker, coordinator.step)
            loss.backward()
            time.sleep(PACE_SECONDS)
            done = coordinator.update()
            line = (worker, done.number, coordinator.step, tuple(done.weights), coordinator.digest(), loss.item())
            file.write(json.dumps(line) + "\n")
            if told != coordinator.overlay.scheduler:
                told = coordinator.overlay.scheduler
                file.write(json.dumps({"scheduler": told}) + "\n")
        coordinator.request_node_exit()
        file.write(json.dumps("left") + "\n")


class Trainee:
    """One such process."""

    def __init__(
        self, folder: Path, service: str, job: str, worker: str, neighbors: Sequence[str] | None = None, **arguments
    ) -> None:
        self.worker, self.output = worker, folder / worker
        self._records: list = []
        self._num_read = 0
        told = {"service": service, "neighbors": neighbors, **arguments}
        self.process = forkserver().Process(target=train, args=(str(self.output), job, worker, told))
        self.process.start()

    def records(self) -> list:
        """What it has written; a line that it was writing when it was killed does not count."""
        if self.output.exists():
            with self.output.open("rb") as file:
                file.seek(self._num_read)
                whole = [line for line in file if line.endswith(b"\n")]
            self._num_read += sum(map(len, whole))
            self._records += map(json.loads, whole)
        return self._records

    @property
    def lines(self) -> list[Line]:
        return [Line(one[0], one[1], one[2], tuple(one[3]), one[4], one[5]) for one in self.records() if isinstance(one, list)]

    @property
    def scheduler(self) -> str:
        """Where the last one answers that went on in another's place; empty where none did."""
        return next((one["scheduler"] for one in reversed(self.records()) if isinstance(one, dict)), "")

    @property
    def has_left(self) -> bool:
        return "left" in self.records()

    def await_steps(self, count: int) -> None:
        """Wait until it has done so many steps itself."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.lines) < count:
            errors = Path(f"{self.output}.err")
            told = errors.read_text() if errors.exists() else ""
            assert self.process.is_alive(), told
            assert time.monotonic() < deadline, told
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def join(self) -> None:
        self.process.join(WAIT_SECONDS)
        assert not self.process.is_alive()

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
            self.process.join(WAIT_SECONDS)
