"""Three torchft replicas and their lighthouse as processes: one is killed and started again, and the others are watched."""

import json
import queue
import subprocess
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kintsugi.core.errors import UnavailableError

NUM_REPLICAS = 3
PATIENCE_SECONDS = 90.0
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class LighthouseTimes:
    """What a lighthouse waits for, in milliseconds."""

    heartbeat_timeout_ms: int = 1000
    join_timeout_ms: int = 100
    quorum_tick_ms: int = 10


class TorchftCrew(AbstractContextManager["TorchftCrew"]):
    """Trains from the first replica's start; every process ends on every path."""

    def __init__(self, python: Path, state_bytes: int, times: LighthouseTimes) -> None:
        self._python = python
        self._state_bytes = state_bytes
        self._said: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._replicas: dict[int, subprocess.Popen[str]] = {}
        self._all: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        values = (times.heartbeat_timeout_ms, times.join_timeout_ms, times.quorum_tick_ms)
        try:
            lighthouse = self._start("torchft_lighthouse", *map(str, values))
            assert lighthouse.stdout is not None
            self._address = lighthouse.stdout.readline().strip()
            for replica in range(NUM_REPLICAS):
                self.start(replica)
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self, module: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [str(self._python), "-m", f"benchmarks.rivals.{module}", *arguments]
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=none, text=True, cwd=ROOT)
        self._all.append(process)
        return process

    def start(self, replica: int) -> float:
        """Start a replica, or start it again; when, on the monotonic clock."""
        at = time.monotonic()
        process = self._replicas[replica] = self._start("torchft_replica", self._address, str(replica), str(self._state_bytes))
        reader = threading.Thread(target=self._read, args=(replica, process), name=f"replica-{replica}")
        self._readers.append(reader)
        reader.start()
        return at

    def _read(self, replica: int, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                self._said.put((replica, json.loads(line)))

    def kill(self, replica: int) -> float:
        """SIGKILL; when, on the monotonic clock."""
        at = time.monotonic()
        self._replicas[replica].kill()
        self._replicas[replica].wait()
        return at

    def until_committed(self, replicas: int, since: float) -> float:
        """When the first step in which so many took part was committed after `since`, on the monotonic clock.

        Raises:
            UnavailableError: none was in time.
        """
        return self._until(since, event="step", committed=True, replicas=replicas)

    def until_ready(self, since: float) -> float:
        """When a replica that was started after `since` had imported everything."""
        return self._until(since, event="ready")

    def _until(self, since: float, **wanted: object) -> float:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                _, said = self._said.get(timeout=left)
            except queue.Empty:
                break
            if said["at"] > since and wanted.items() <= said.items():
                return float(said["at"])
        raise UnavailableError(f"nothing of the kind within {PATIENCE_SECONDS:g} s: {wanted}", field="torchft")

    def close(self) -> None:
        """End all processes."""
        for process in self._all:
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self._all:
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
