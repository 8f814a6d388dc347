"""The agent's side of checkpoints: commits one once all its parts are written, finds one again, and says how often is best."""

import json
import os
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import structlog

from estimator.interval import daly_interval_seconds, young_interval_seconds
from kintsugi.runtime.audit import read_history
from kintsugi.runtime.checkpoint import Checkpoint, Manifest
from kintsugi.runtime.layout import RECORDS
from kintsugi.runtime.messages import PartFailed, PartWritten
from kintsugi.runtime.progress import Progress
from kintsugi.runtime.recording import RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """What a checkpoint cost. Seconds are those of its slowest worker."""

    step: int
    """The next to train."""
    strategy: str
    num_bytes: int
    part_bytes: int
    """Of the worker that writes most."""
    snapshot_seconds: float
    backpressure_seconds: float
    write_seconds: float
    stall_seconds: float
    """That training waited for it."""
    commit_seconds: float
    """From the last part to the pointer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalAdvice:
    """How often to write checkpoints, from what was measured."""

    cost_seconds: float
    """Median stall of a checkpoint."""
    mtbf_seconds: float
    young_seconds: float
    daly_seconds: float
    every_steps: int
    """The Daly interval in steps; never shorter than what one takes to be written."""


@dataclass(slots=True)
class _Pending:
    """A checkpoint of which parts are being written."""

    expected: frozenset[str]
    parts: dict[str, PartWritten] = field(default_factory=dict)


class Keeper:
    """Keeps the checkpoints of one job; does nothing where it has no folder. All but the commits is done by one thread."""

    def __init__(self, options: RunOptions | None, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._log = structlog.get_logger("kintsugi.runtime")
        self._writers: dict[int, frozenset[str]] = {}
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._over: set[tuple[int, int]] = set()
        """Attempt and step of checkpoints that are complete, or never will be."""
        self._thread: ThreadPoolExecutor | None = None
        self._commits: list[Future[CheckpointRecord | None]] = []
        self.records: list[CheckpointRecord] = []
        self.advice: IntervalAdvice | None = None
        self._told: int | None = None
        self._shown: int | None = None
        """The interval in the log; another one comes there once it has doubled or halved."""
        if options is not None:
            self._store = options.store
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keeper")

    @property
    def is_on(self) -> bool:
        """Whether checkpoints are written."""
        return self._options is not None

    @property
    def every_steps(self) -> int | None:
        """The interval as it is known now."""
        if self._options is None:
            return None
        return self._options.checkpoints.every_steps or (self.advice.every_steps if self.advice is not None else None)

    def begin(self) -> Checkpoint | None:
        """What an earlier life of the job left: its newest checkpoint, and the losses of the steps in it."""
        if self._options is None:
            return None
        self._store.clear()
        found = self._store.newest()
        if found is not None:
            history = read_history(self._options.folder)
            for step in range(found.step):
                self._progress.adopt(step, history.losses.get(step, float("nan")), history.microbatches.get(step, ()))
        return found

    def newest(self) -> Checkpoint | None:
        """The newest undamaged checkpoint, once those that are complete are committed."""
        self._settle()
        return self._store.newest() if self._options is not None else None

    def is_hopeful(self, writing: Mapping[str, Collection[tuple[int, int]]]) -> bool:
        """Whether survivors are about to complete a checkpoint: every part is there or being written.

        Args:
            writing: attempt and step of what survivors were writing when they were asked.
        """
        keys = {key for keys in writing.values() for key in keys} | self._pending.keys()
        return any(self._can_complete(key, writing) for key in keys)

    def _can_complete(self, key: tuple[int, int], writing: Mapping[str, Collection[tuple[int, int]]]) -> bool:
        if key in self._over or key[0] not in self._writers:
            return False
        written = self._pending[key].parts.keys() if key in self._pending else set[str]()
        return all(worker in written or key in writing.get(worker, ()) for worker in self._writers[key[0]])

    def expect(self, attempt: int, workers: Collection[str]) -> None:
        """An attempt trains: who writes its checkpoints."""
        self._writers[attempt] = frozenset(workers)

    def written(self, worker: str, message: PartWritten) -> None:
        """A part is on the disk; the last one completes its checkpoint."""
        key = (message.attempt, message.step)
        if self._thread is None or message.attempt not in self._writers or key in self._over:
            return
        pending = self._pending.setdefault(key, _Pending(self._writers[message.attempt]))
        pending.parts[worker] = message
        if pending.parts.keys() >= pending.expected:
            del self._pending[key]
            self._over.add(key)
            self._commits.append(self._thread.submit(self._commit, message, pending.parts))

    def failed(self, worker: str, message: PartFailed) -> None:
        """A part could not be written: that checkpoint will not be; the previous one stays."""
        self._log.warning(
            "a checkpoint could not be written; the previous one stays", worker=worker, step=message.step, reason=message.reason
        )
        self._discard(message.attempt, message.step)

    def lost(self, worker: str) -> None:
        """A worker's parts that are not written will never be."""
        for (attempt, step), pending in list(self._pending.items()):
            if worker in pending.expected and worker not in pending.parts:
                self._discard(attempt, step)

    def forget(self) -> None:
        """The job goes back: what is still being written is of steps that are undone."""
        for attempt, step in list(self._pending):
            self._discard(attempt, step)
        self._writers.clear()

    def look(self) -> int | None:
        """Take in commits that are done; an interval that is to be told to the workers, if there is a new one."""
        done = [commit for commit in self._commits if commit.done()]
        self._commits = [commit for commit in self._commits if not commit.done()]
        for commit in done:
            self._take(commit.result())
        if self._options is None or self._options.checkpoints.every_steps is not None or self.every_steps == self._told:
            return None
        self._told = self.every_steps
        return self._told

    def close(self) -> None:
        """Commit what is complete, and remove the rest."""
        self._settle()
        self.forget()
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _settle(self) -> None:
        for commit in self._commits:
            self._take(commit.result())
        self._commits.clear()

    def _take(self, record: CheckpointRecord | None) -> None:
        if record is None:
            return
        self.records.append(record)
        before, self.advice = self._shown, self._advice()
        if before is None or not before / 2 <= self.advice.every_steps <= before * 2:
            self._shown = self.advice.every_steps
            self._log.info("how often checkpoints are best written", **asdict(self.advice))

    def _advice(self) -> IntervalAdvice:
        assert self._options is not None
        costs = sorted(record.stall_seconds for record in self.records)
        cost, mtbf = costs[len(costs) // 2], self._options.mtbf_seconds
        interval = max(daly_interval_seconds(cost, mtbf), self.records[-1].write_seconds)
        step_seconds = max(self._progress.median_seconds, 1e-6)
        return IntervalAdvice(
            cost_seconds=cost,
            mtbf_seconds=mtbf,
            young_seconds=young_interval_seconds(cost, mtbf),
            daly_seconds=daly_interval_seconds(cost, mtbf),
            every_steps=max(1, round(interval / step_seconds)),
        )

    def _discard(self, attempt: int, step: int) -> None:
        self._over.add((attempt, step))
        self._pending.pop((attempt, step), None)
        self._store.discard(self._temporary(attempt, step))

    def _temporary(self, attempt: int, step: int) -> Path:
        assert self._options is not None
        return self._store.temporary(step, self._options.tag(attempt))

    def _commit(self, message: PartWritten, parts: dict[str, PartWritten]) -> CheckpointRecord | None:
        """In a thread of its own."""
        assert self._options is not None
        began = time.monotonic()
        state = self._options.sampler.state(message.step)
        manifest = Manifest(
            step=message.step,
            job=self._options.job,
            epoch=state.epoch,
            cursor=state.cursor,
            seed=str(state.seed),
            files={name: record for part in parts.values() for name, record in part.files.items()},
        )
        try:
            self._store.commit(self._temporary(message.attempt, message.step), manifest)
        except OSError as error:
            self._log.warning("a checkpoint could not be committed; the previous one stays", step=message.step, reason=str(error))
            self._discard(message.attempt, message.step)
            return None
        record = CheckpointRecord(
            step=message.step,
            strategy=self._options.checkpoints.strategy.value,
            num_bytes=manifest.num_bytes,
            part_bytes=max(sum(file.num_bytes for file in part.files.values()) for part in parts.values()),
            commit_seconds=time.monotonic() - began,
            **{name: max(getattr(part, name) for part in parts.values()) for name in _SLOWEST},
        )
        _append(self._options.folder / RECORDS, asdict(record))
        return record


_SLOWEST = ("snapshot_seconds", "backpressure_seconds", "write_seconds", "stall_seconds")


def _append(path: Path, record: dict[str, Any]) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, (json.dumps(record) + "\n").encode())
    finally:
        os.close(descriptor)
