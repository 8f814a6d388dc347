"""What plans are made of: stages, pipelines, slots, routes, reductions; and the names of policies and schedules."""

from dataclasses import dataclass
from enum import StrEnum

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import PYDANTIC_CONFIG


class Policy(StrEnum):
    """How a job goes on after its membership changed."""

    FAULT_FREE = "fault_free"
    DATA_REROUTING = "data_rerouting"
    DYNAMIC_PARALLELISM = "dynamic_parallelism"
    SPARE_SUBSTITUTION = "spare_substitution"
    CHECKPOINT_RESTART = "checkpoint_restart"
    DEFERRED_PARALLELISM = "deferred_parallelism"
    """Data rerouting now, dynamic parallelism at a later step, once the state has moved beside the training."""


class Schedule(StrEnum):
    """Order of forward and backward passes within one pipeline."""

    ONE_F_ONE_B = "1f1b"
    EAGER_1F1B = "eager-1f1b"
    GPIPE = "gpipe"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    INTERLEAVED = "interleaved"
    INTERLEAVED_ZB = "interleaved-zb"
    AUTO = "auto"

    @property
    def is_interleaved(self) -> bool:
        """Whether workers may hold several stages of their pipeline, which go round them."""
        return self in (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB)

    @property
    def lag(self) -> int:
        """How many more micro-batches a stage has in flight than the next one, where it passes forward and backward in turn.

        With 2 a message may be under way while the stages at its ends go on.
        """
        return 2 if self in (Schedule.EAGER_1F1B, Schedule.ZB_H2) else 1

    @property
    def is_split(self) -> bool:
        """Whether backward passes are split into an input part, which the stage before waits for, and a weight part."""
        return self in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.INTERLEAVED_ZB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A half-open range of layers on one worker; a dead slot has no worker."""

    __pydantic_config__ = PYDANTIC_CONFIG

    layer_start: int
    layer_stop: int
    worker: str | None

    def __post_init__(self) -> None:
        checks.non_negative("layer_start", self.layer_start)
        if self.layer_stop <= self.layer_start:
            raise InvalidInputError("must be above layer_start", field="layer_stop", value=self.layer_stop)
        if self.worker is not None:
            checks.name("worker", self.worker)

    @property
    def layers(self) -> range:
        """Indices of the stage's layers."""
        return range(self.layer_start, self.layer_stop)

    def holds(self, other: "Stage") -> bool:
        """Whether this stage's layers contain all of `other`'s."""
        return self.layer_start <= other.layer_start and other.layer_stop <= self.layer_stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A chain of stages that holds the whole model, and the micro-batches that enter it per step."""

    __pydantic_config__ = PYDANTIC_CONFIG

    num_microbatches: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        checks.microbatches("num_microbatches", self.num_microbatches)
        checks.not_empty("stages", self.stages)
        expected = 0
        for index, stage in enumerate(self.stages):
            if stage.layer_start != expected:
                raise InvalidInputError(
                    f"must be {expected}: stages follow each other without gap or overlap",
                    field=f"stages[{index}].layer_start",
                    value=stage.layer_start,
                )
            expected = stage.layer_stop

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return self.stages[-1].layer_stop

    @property
    def num_workers(self) -> int:
        """Workers, dead ones included, that the stages go round: stage s is on worker s mod `num_workers`.

        The distance at which a worker's name comes again. Where none does, as under every schedule but interleaved ones,
        each stage has a worker of its own.
        """
        names = [stage.worker for stage in self.stages if stage.worker is not None]
        if len(set(names)) == len(names):
            return len(self.stages)
        seen: dict[str, int] = {}
        for index, stage in enumerate(self.stages):
            if stage.worker is not None and seen.setdefault(stage.worker, index) != index:
                return index - seen[stage.worker]
        return len(self.stages)

    @property
    def stages_per_worker(self) -> int:
        """Virtual stages: how many stages of the pipeline each of its workers holds."""
        return len(self.stages) // self.num_workers


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Slot:
    """A place in the DP x PP grid."""

    __pydantic_config__ = PYDANTIC_CONFIG

    pipeline: int
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A micro-batch that a dead slot gave away: `worker` computes that stage for it."""

    __pydantic_config__ = PYDANTIC_CONFIG

    microbatch: int
    """Numbered from 0 over all pipelines in order."""
    pipeline: int
    stage: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """One gradient all-reduce: a bucket of layers with the same holders."""

    __pydantic_config__ = PYDANTIC_CONFIG

    layers: tuple[int, ...]
    workers: tuple[str, ...]
    num_bytes: int

    def __post_init__(self) -> None:
        checks.not_empty("layers", self.layers)
        checks.not_empty("workers", self.workers)
        checks.non_negative("num_bytes", self.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWorker:
    """A living worker that the plan does not use, and why."""

    __pydantic_config__ = PYDANTIC_CONFIG

    worker: str
    reason: str


Round = tuple[Reduction, ...]
