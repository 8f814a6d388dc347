"""What workers measure of their actions, written to files of bounded size, and how that is read back.

Recording takes one look at the clock per action. Lines are written once per step, after it is committed; a worker that dies
in a step takes that step's times with it. An action's time begins where the one before ended, so that nothing is left out but
the wait for reductions and for the commit point. A reduction runs beside the passes, from its turn (it may wait for other
workers then) to its end.

Times are on the host's CLOCK_MONOTONIC, the same for all workers of a host. On accelerators they are those of the calls on
the host, which may return before the device is done.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from estimator.program import Action, ActionKind
from kintsugi.core import checks, codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.logs import get_logger
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from kintsugi.runtime.clerk import Clerk, HungError
from kintsugi.runtime.disk import answer_of, make_folder
from kintsugi.runtime.layout import TRACE_LOCK
from kintsugi.runtime.run_lock import RunLock

TRACES = "trace"
"""Folder, within that of a run, of the files of its workers."""
JOB = "job.json"
"""Within it: what the plans were made from."""
SUFFIX = ".jsonl"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LINE_SECONDS = 5.0
"""For a line to be written, after which no more are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Where measured actions go, and how many."""

    folder: Path
    max_steps: int = 20
    """That each process of a worker records, from its first on."""

    def __post_init__(self) -> None:
        checks.positive("max_steps", self.max_steps)

    def lock(self) -> RunLock:
        """Of the one run whose actions are recorded there: a folder without any yet may be another's already.

        Raises:
            InvalidInputError: the folder cannot be made.
            UnavailableError: its disk hangs.
        """
        answer_of(self.folder, partial(make_folder, self.folder / TRACES, "trace"), field="trace")
        return RunLock(self.folder / TRACES, TRACE_LOCK, field="trace")

    def describe(self, profile: Profile, cluster: Cluster) -> None:
        """Write down what the plans are made from, to compare with; under the lock.

        Raises:
            InvalidInputError: the folder cannot be written to, or holds another run's actions.
            UnavailableError: its disk hangs.
        """
        answer_of(self.folder, partial(self._describe, profile, cluster), field="trace")

    def _describe(self, profile: Profile, cluster: Cluster) -> None:
        folder = self.folder / TRACES
        if any(folder.glob(f"*{SUFFIX}")):
            raise InvalidInputError("holds the actions of another run; take a new folder", field="trace", value=str(self.folder))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / JOB).write_text(codec.dumps({"profile": profile, "cluster": cluster}) + "\n")
        except OSError as error:
            raise InvalidInputError(f"cannot be written to: {error.strerror}", field="trace", value=str(self.folder)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A host's monotonic clock, and what the wall clock said beside it."""

    host: str
    """Changes where the host is started anew: then so does the clock."""
    monotonic_seconds: float
    unix_seconds: float

    @classmethod
    def now(cls) -> "Clock":
        """The clocks of this host."""
        boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
        return cls(host=f"{socket.gethostname()}/{boot}", monotonic_seconds=time.monotonic(), unix_seconds=time.time())


class ActionTrace:
    """Records the actions of one worker's steps; without options, nothing."""

    def __init__(self, worker: str, options: TraceOptions | None) -> None:
        self._worker = worker
        self._options = options
        self._num_left = options.max_steps if options is not None else 0
        self._path: Path | None = None
        self._clerk = Clerk(f"trace-{worker}")
        self._generation = -1
        self._is_on = False
        self._rows: list[tuple[str, float, float]] = []
        self._last = 0.0

    def follow(self, plan: Plan) -> None:
        """From here on steps are of `plan`; the first of its workers writes it down."""
        if self._num_left and plan.generation != self._generation:
            self._generation = plan.generation
            self._write({"kind": "plan", "plan": codec.encode(plan)} if plan.workers[0] == self._worker else None)

    def begin(self) -> None:
        """A step begins."""
        self._is_on = self._num_left > 0
        if self._is_on:
            self._rows = []
            self._last = time.monotonic()

    def did(self, action: Action) -> None:
        """An action ended, which began where the one before ended; a reduction runs on beside what follows."""
        if self._is_on:
            began, self._last = self._last, time.monotonic()
            if action.kind is not ActionKind.REDUCE:
                self._rows.append((str(action), began, self._last))

    def settled(self, action: Action, span: tuple[float, float]) -> None:
        """A reduction's sum was taken; it was carried out from `span`'s begin to its end."""
        if self._is_on:
            self._last = time.monotonic()
            self._rows.append((str(action), *span))

    def waited(self) -> None:
        """All workers have reached the commit point: only now does the update begin."""
        if self._is_on:
            self._last = time.monotonic()

    def committed(self, step: int) -> None:
        """The step that was recorded last is committed: write it down."""
        if self._is_on:
            self._num_left -= 1
            self._write({"kind": "step", "generation": self._generation, "step": step, "actions": self._rows})

    def _write(self, line: Mapping[str, Any] | None) -> None:
        """Append a line. A disk that is full, or hangs, ends the recording, not the training."""
        if line is None or self._options is None:
            return
        try:
            self._clerk.asked(partial(self._append, line, self._options.folder / TRACES), _LINE_SECONDS)
        except HungError as error:
            self._end(f"{self._options.folder} {error}")
        except OSError as error:
            self._end(str(error))

    def _end(self, why: str) -> None:
        self._num_left = 0
        get_logger("kintsugi.runtime").warning("actions are not recorded any more", error=why)

    def _append(self, line: Mapping[str, Any], folder: Path) -> None:
        if self._path is None:
            self._path = self._create(folder)
        with self._path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _create(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._worker}-{time.time_ns()}-{os.getpid()}{SUFFIX}"
        with path.open("x") as file:
            file.write(json.dumps({"kind": "begin", "worker": self._worker, "clock": asdict(Clock.now())}) + "\n")
        return path
