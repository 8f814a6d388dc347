"""What a job writes down of itself: where, how often, and how much of that may slow it down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from estimator.interval import daly_interval_seconds
from kintsugi.core import checks
from kintsugi.core.codec import digest
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import JobSettings
from kintsugi.core.profile import Profile, Recovery
from kintsugi.runtime.checkpoints.checkpoint import CheckpointStore
from kintsugi.runtime.disk import answer_of, disk_rates
from kintsugi.runtime.layout import CHECKPOINTS, JOURNALS
from kintsugi.runtime.models import TrainingJob, seed_for
from kintsugi.runtime.records.journal import Geometry, Journal, Pass, next_life
from kintsugi.runtime.sampler import Sampler
from kintsugi.runtime.workers.commit import CommitRecord


class Strategy(StrEnum):
    """What training waits for (ECRL, section 4.4)."""

    BLOCKING = "blocking"
    """Until the state is written."""
    OVERLAPPED = "overlapped"
    """Until it is copied; it is written beside the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """When and how checkpoints are written."""

    every_steps: int | None = None
    """Null: after the first step, and then as often as is best for what that cost (Daly)."""
    strategy: Strategy = Strategy.OVERLAPPED
    """What training waits for; its text, such as `blocking`, will do."""
    max_in_flight: int = 2
    """Copies of a worker's state that wait for the disk; the next one waits for room."""
    keep: int = 2
    """How many stay on the disk; until the state of the newest was compared, so does the newest one before whose state was."""
    disk_timeout_seconds: float = 120.0
    """For the disk to take a part of the state, a layer's, or to give any of it.

    One that takes longer counts as hung: the training goes on without that checkpoint, and with later ones once the disk answers.
    """

    def __post_init__(self) -> None:
        for name in ("max_in_flight", "keep"):
            checks.count(name, getattr(self, name))
        if self.every_steps is not None:
            checks.count("every_steps", self.every_steps)
        checks.positive("disk_timeout_seconds", self.disk_timeout_seconds)
        object.__setattr__(self, "strategy", checks.choice(Strategy, "strategy", self.strategy))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The folder of a run, and what is written there."""

    folder: Path
    geometry: Geometry
    job: str
    """Digest of what its state fits to."""
    about: Mapping[str, str] = field(default_factory=dict)
    """What that is the digest of, by what each is called."""
    life: int = 1
    """Of the agent, counted over restarts."""
    mtbf_seconds: float
    checkpoints: CheckpointOptions = field(default_factory=CheckpointOptions)

    @classmethod
    def of(cls, job: TrainingJob, folder: Path, *, mtbf_seconds: float, checkpoints: CheckpointOptions) -> "RunOptions":
        """The next life of a job in `folder`.

        Raises:
            InvalidInputError: it holds another job's journals.
            UnavailableError: its disk hangs.
        """
        return cls(
            folder=folder.absolute(),
            geometry=geometry_of(job),
            job=_digest(job),
            about=_described(job),
            life=answer_of(
                folder, partial(next_life, folder / JOURNALS, geometry_of(job)), seconds=checkpoints.disk_timeout_seconds
            ),
            mtbf_seconds=mtbf_seconds,
            checkpoints=checkpoints,
        )

    @property
    def store(self) -> CheckpointStore:
        """The run's checkpoints."""
        return CheckpointStore(self.folder / CHECKPOINTS, job=self.job, keep=self.checkpoints.keep, about=self.about)

    @property
    def sampler(self) -> Sampler:
        """Windows of the run."""
        size = self.geometry.global_batch_size
        return Sampler(num_samples=self.geometry.num_samples, microbatch_size=size, num_microbatches=1, seed=self.geometry.seed)

    def journal(self, worker: str) -> Journal:
        """A new journal of a worker."""
        return Journal(self.folder / JOURNALS, worker, self.life, self.geometry)

    def tag(self, attempt: int) -> str:
        """What tells apart who writes the same step."""
        return f"life{self.life}.attempt{attempt}"


def geometry_of(job: TrainingJob) -> Geometry:
    """What the samples of a job's steps follow from."""
    return Geometry(
        num_samples=len(job.dataset),
        global_batch_size=job.global_batch_size,
        seed=seed_for(job, 1),
        num_layers=len(job.layers),
        num_steps=job.num_steps,
    )


def require_steps_left(trained: int, num_steps: int, folder: Path) -> None:
    """Require a run to be as long as what was trained of it: nobody can be given an earlier state than its checkpoint's.

    Raises:
        InvalidInputError: more steps are trained already.
    """
    if trained > num_steps:
        message = (
            f"is fewer than the {trained} that are trained in {folder} already; ask for at least as many, or take a new folder"
        )
        raise InvalidInputError(message, field="num_steps", value=num_steps)


def _digest(job: TrainingJob) -> str:
    """Of layers, order of samples and arithmetic; a job may go on for more steps, or with other micro-batches."""
    layers = [[layer.name, sorted(layer.tied.items())] for layer in job.layers]
    geometry = replace(geometry_of(job), num_steps=0, seed=0)
    return digest([layers, geometry, str(job.seed), str(job.dtype)])


def _described(job: TrainingJob) -> dict[str, str]:
    """What `_digest` is of, for people."""
    layers = {
        f"layer {index}": ", ".join([layer.name, *(f"{own} tied to {to}" for own, to in sorted(layer.tied.items()))])
        for index, layer in enumerate(job.layers)
    }
    return {**layers, **geometry_of(job).described, "seed": str(job.seed), "dtype": str(job.dtype)}


def expected_recovery(profile: Profile, settings: JobSettings, options: RunOptions | None, num_workers: int) -> Recovery:
    """What plans reckon with before a checkpoint was written: the interval, and the rate at which one is read.

    A checkpoint is taken to cost what one copy of the state takes to the disk; without a folder there are none.

    Raises:
        UnavailableError: the disk hangs.
    """
    if options is None:
        return replace(profile.recovery, checkpoint_interval_seconds=None)
    folder = options.folder
    rates = answer_of(folder, partial(disk_rates, folder), seconds=options.checkpoints.disk_timeout_seconds)
    every = options.checkpoints.every_steps
    if every is not None:
        passes = sum(layer.forward_seconds + layer.backward_seconds for layer in profile.layers)
        interval = every * passes * settings.num_microbatches / num_workers
    else:
        state_bytes = sum(layer.parameter_bytes + layer.optimizer_bytes for layer in profile.layers)
        interval = daly_interval_seconds(state_bytes / rates.write_bytes_per_second, settings.mtbf_seconds)
    return replace(
        profile.recovery,
        checkpoint_interval_seconds=max(interval, 1e-6),
        checkpoint_read_bytes_per_second=rates.read_bytes_per_second,
    )


class Cadence:
    """After which steps a worker asks for a checkpoint; all take one where any asks."""

    def __init__(self) -> None:
        self.is_on = False
        self.every: int | None = None
        """Null until it is known what one costs: then only after the first step of an attempt."""

    def asks(self, step: int, *, is_first: bool, is_last: bool) -> bool:
        """Whether the state after `step` is to be written."""
        if not self.is_on:
            return False
        return is_last or (is_first if self.every is None else (step + 1) % self.every == 0)


class Recorder:
    """One attempt of one worker: what its executor did goes to the journal, and the cadence asks for checkpoints."""

    def __init__(self, journal: Journal | None, cadence: Cadence, sampler: Sampler, attempt: int, steps: range) -> None:
        """`steps` are those that the attempt is to train."""
        self._journal = journal
        self._cadence = cadence
        self._sampler = sampler
        self._attempt = attempt
        self._steps = steps
        self._passes: list[Pass] = []

    def begin(self) -> None:
        """A step begins."""
        self._passes.clear()

    def passed(self, offset: int, samples: Sequence[int], layer_start: int, layer_stop: int) -> None:
        """Samples went forward through layers of this worker."""
        if self._journal is not None:
            self._passes.append(Pass.of(offset, samples, layer_start, layer_stop))

    def before_commit(self, step: int) -> None:
        """All passes are done; the commit point is ahead."""
        if self._journal is not None:
            state = self._sampler.state(step)
            self._journal.passed(self._attempt, step, self._passes, epoch=state.epoch, cursor=state.cursor)

    def committed(self, record: CommitRecord) -> None:
        """A step was applied here."""
        if self._journal is not None:
            self._journal.committed(self._attempt, record.step, record.loss, record.microbatches)

    def asks_for_checkpoint(self, step: int) -> bool:
        """Whether the state after `step` is to be written."""
        return self._cadence.asks(step, is_first=step == self._steps.start, is_last=step == self._steps.stop - 1)
