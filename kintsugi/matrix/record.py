"""What is known of a cell of the matrix once it has run.

Made by who runs the cells, read by who analyses them; neither needs the other, and the analysis needs no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix.cell import Cell
from kintsugi.runtime.supervising.supervision import SupervisedAttempt

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """Where the wall-clock time of a cell went (ECRL, equation 7). Seconds; no moment is in two parts.

    The clock runs from the first start of the job's processes to the end of the last; rank 0's view counts, or that of the
    slowest rank, where ranks differ.
    """

    total_seconds: float
    compute_seconds: float
    """Steps that hold: passes, reductions, update."""
    snapshot_seconds: float
    """Training stood still while its state was copied."""
    write_seconds: float
    """Training stood still while its state was written: the write time on the critical path."""
    sync_seconds: float
    """The rest of the stall: waiting for room in flight and, at the boundaries of a checkpoint, for other ranks."""
    restart_seconds: float
    """No step was trained, from a failure to the first step after it begins."""
    repeated_seconds: float
    """Steps, or parts of them, that were lost and trained again."""
    start_seconds: float = 0.0
    """From the start of the first process to the first step; 0 where it was not measured, so that it is in the rest."""

    def __post_init__(self) -> None:
        for item in fields(self):
            checks.non_negative(item.name, getattr(self, item.name))
        checks.positive("total_seconds", self.total_seconds)

    @property
    def stall_seconds(self) -> float:
        """That training stood still for checkpoints."""
        return self.snapshot_seconds + self.write_seconds + self.sync_seconds

    @property
    def recovery_seconds(self) -> float:
        """That failures cost."""
        return self.restart_seconds + self.repeated_seconds

    @property
    def training_seconds(self) -> float:
        """From the first step to the last, restarts included: without the start and the end of the processes."""
        return self.compute_seconds + self.stall_seconds + self.recovery_seconds

    @property
    def rest_seconds(self) -> float:
        """What is in no part: the end of the processes, for one. Negative where parts were measured too long."""
        return self.total_seconds - self.training_seconds - self.start_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTotals:
    """What the checkpoints of a cell came to, over all its attempts, on the critical path or beside it."""

    strategy: str
    """Blocking, overlapped or none: how this cell wrote them."""
    num_written: int
    state_bytes: int
    """Of one checkpoint."""
    snapshot_seconds: float
    write_seconds: float
    """All of it, also what passed beside the training."""
    backpressure_seconds: float
    """Copies waited for room in flight."""
    memory_copy_seconds: float | None = None
    """One memory copy of as many bytes as one snapshot copies, measured in the same run; null where it was not."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name != "strategy" and getattr(self, item.name) is not None:
                checks.non_negative(item.name, getattr(self, item.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the audit of a cell's journals says (ECRL, equations 2 and 5)."""

    is_complete: bool
    """Whether every step is committed."""
    duplicates: int
    missing: int
    extra: int
    problems: tuple[str, ...] = ()

    @property
    def has_passed(self) -> bool:
        """Whether all steps are there and every sample counted once."""
        return self.is_complete and not (self.duplicates or self.missing or self.extra or self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A strike that the cell's schedule asked for."""

    step: int
    worker: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What the trained parameters are worth, on samples that were not trained on."""

    held_out_loss: float
    held_out_accuracy: float | None = None
    """Share of the predictions that are right (0..1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """What one cell came to."""

    schema_version: int = SCHEMA_VERSION
    cell: Cell
    world_sizes: tuple[int, ...]
    """Workers that trained, in order: at the beginning and after every change."""
    global_batch_size: int
    num_steps: int
    """That were to be trained."""
    committed_steps: int
    trained_samples: int
    """Also those of steps that were trained again."""
    wall: WallTime
    checkpoints: CheckpointTotals
    failures: tuple[Failure, ...] = ()
    """That struck."""
    planned_failures: int = 0
    """That the schedule asked for."""
    attempts: tuple[SupervisedAttempt, ...] = ()
    """Starts of the job (supervisor.json)."""
    recovery_seconds: tuple[float, ...] = ()
    """From every failure to the first step after it begins."""
    audit: Verdict
    quality: Quality
    trace_every: int | None = None
    """Updates between two samples of the parameters; null in records that are older than this field."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Whatever else the cell was run with, for people to read."""

    def __post_init__(self) -> None:
        checks.not_empty("world_sizes", self.world_sizes)
        for name in ("global_batch_size", "num_steps"):
            checks.positive(name, getattr(self, name))
        for name in ("committed_steps", "trained_samples", "planned_failures"):
            checks.non_negative(name, getattr(self, name))
        if self.trace_every is not None:
            checks.positive("trace_every", self.trace_every)
        if self.useful_samples > self.trained_samples:
            raise InvalidInputError(
                f"must be at least {self.useful_samples}, the samples of the committed steps",
                field="trained_samples",
                value=self.trained_samples,
            )

    @property
    def useful_samples(self) -> int:
        """Of the steps that hold."""
        return self.committed_steps * self.global_batch_size

    @property
    def goodput(self) -> float:
        """Committed steps per second of wall time (ECRL, equation 6)."""
        return self.committed_steps / self.wall.total_seconds

    @property
    def num_restarts(self) -> int:
        """Starts of the whole job after the first."""
        return max(len(self.attempts) - 1, 0)

    @property
    def num_bytes_written(self) -> int:
        """Of all checkpoints."""
        return self.checkpoints.num_written * self.checkpoints.state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A committed step as the journals tell of it (ECRL, table 1): one line of steps.csv."""

    global_step: int
    epoch: int
    cursor_step: int
    world_size: int
    ranks: int
    """Whose journals say that the step was committed."""
    sample_ids_count: int
    sample_ids_hash: str
    """Over the hashes that the ranks wrote, in the order of the window."""
    loss: float
    parameter_distance: float | None = None
    """L2 distance of the parameters after this step from the reference's of the same suite and seed, as a share of the
    latter's L2 norm; null where it was not measured."""
    seconds: float | None = None
    """From the end of the step before, stalls included; null where training began or stopped in it."""
