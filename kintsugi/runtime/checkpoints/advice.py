"""What checkpoints cost, written down, and how often they are best written for that."""

import json
import os
import statistics
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from estimator.interval import daly_interval_seconds, young_interval_seconds
from kintsugi.core.logs import get_logger
from kintsugi.runtime.disk import append_whole
from kintsugi.runtime.layout import RECORDS
from kintsugi.runtime.messages import PartWritten

_SLOWEST = ("snapshot_seconds", "backpressure_seconds", "write_seconds", "stall_seconds")
_LONGEST_LINE = 4096
"""More bytes than a record has."""


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


class CheckpointCosts:
    """Of one life; says in the log how often checkpoints are best written, at first and when that has doubled or halved."""

    def __init__(self) -> None:
        self.records: list[CheckpointRecord] = []
        self.advice: IntervalAdvice | None = None
        self._shown: int | None = None

    @property
    def every_steps(self) -> int | None:
        """The interval that is best; null before the first checkpoint."""
        return self.advice.every_steps if self.advice is not None else None

    def take(self, record: CheckpointRecord, *, step_seconds: float, mtbf_seconds: float) -> None:
        """A checkpoint is whole.

        Args:
            record: what it cost.
            step_seconds: median of the steps so far.
            mtbf_seconds: mean time between failures of the whole job.
        """
        self.records.append(record)
        self.advice = advice = self._advice(step_seconds, mtbf_seconds)
        if self._shown is None or not self._shown / 2 <= advice.every_steps <= self._shown * 2:
            self._shown = advice.every_steps
            get_logger("kintsugi.runtime").info("how often checkpoints are best written", **asdict(advice))

    def _advice(self, step_seconds: float, mtbf_seconds: float) -> IntervalAdvice:
        cost = statistics.median_high(record.stall_seconds for record in self.records)
        daly = daly_interval_seconds(cost, mtbf_seconds)
        interval = max(daly, self.records[-1].write_seconds)
        return IntervalAdvice(
            cost_seconds=cost,
            mtbf_seconds=mtbf_seconds,
            young_seconds=young_interval_seconds(cost, mtbf_seconds),
            daly_seconds=daly,
            every_steps=max(1, round(interval / max(step_seconds, 1e-6))),
        )


def checkpoint_record(parts: Collection[PartWritten], *, strategy: str, commit_seconds: float) -> CheckpointRecord:
    """What a checkpoint of these parts cost."""
    part_bytes = [sum(file.num_bytes for file in part.files.values()) for part in parts]
    return CheckpointRecord(
        step=next(iter(parts)).step,
        strategy=strategy,
        num_bytes=sum(part_bytes),
        part_bytes=max(part_bytes),
        commit_seconds=commit_seconds,
        **{name: max(getattr(part, name) for part in parts) for name in _SLOWEST},
    )


def append_record(run: Path, record: CheckpointRecord) -> None:
    """Add a line to the run's record of what its checkpoints cost; a full disk costs that line, with a warning."""
    try:
        _append(run / RECORDS, (json.dumps(asdict(record)) + "\n").encode())
    except OSError as error:
        get_logger("kintsugi.runtime").warning(
            "what a checkpoint cost could not be written down; the checkpoint is whole", step=record.step, reason=str(error)
        )


def _append(path: Path, line: bytes) -> None:
    """Append the whole line, or nothing of it.

    Raises:
        OSError: the disk is full or broken.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    try:
        append_whole(descriptor, line, _end_of_lines(path, descriptor))
    finally:
        os.close(descriptor)


def _end_of_lines(path: Path, descriptor: int) -> int:
    """Where the last whole line ends; half a line behind it, which a crash or a broken disk left, is cut off."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    start = max(0, size - _LONGEST_LINE)
    with path.open("rb", buffering=0) as file:
        end = start + os.pread(file.fileno(), size - start, start).rfind(b"\n") + 1
    if end < size:
        os.ftruncate(descriptor, end)
    return end
