"""What a cell trains, and how it is struck: everything its processes have to know, and nothing else."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix.cell import Cell, Variant
from kintsugi.matrix.data import DIGITS, TEXT, DataFile, load
from kintsugi.matrix.models import AveragingAdamW, class_loss, decoder_layers, emulated, residual_layers
from kintsugi.matrix.trace import traced
from kintsugi.runtime.models import Dataset, TrainingJob
from kintsugi.runtime.tokens import token_loss

WORLD_SIZE = 4
SEQUENCE_LENGTH = 32
"""Bytes of text in a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of the matrix, and the sizes with which it is trained."""

    name: str
    data_set: str
    num_blocks: int
    width: int
    microbatch_size: int
    num_microbatches: int = 12
    """Per step: as many for each of 4, of 3 and of 2 workers."""
    device_seconds: float = 0.05
    """Emulated accelerator: every micro-batch takes so much longer, in which the processor is free; 0 for none."""
    num_steps: int = 80
    """A twentieth of the paper's 1,600."""
    every_steps: int = 4
    """From one checkpoint to the next; the paper's are a thirty-second of its run apart, these a twentieth."""
    num_kept: int
    """Copies of the weights in the optimizer's state: what a checkpoint costs follows from it."""
    pp: int = 1
    """Pipeline-parallel degree to begin with."""
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        for name in ("num_blocks", "width", "num_steps", "every_steps", "microbatch_size", "num_microbatches", "num_kept", "pp"):
            checks.positive(name, getattr(self, name))
        checks.non_negative("device_seconds", self.device_seconds)
        if self.data_set not in (DIGITS, TEXT):
            raise InvalidInputError(f"is no data set; known ones: {DIGITS}, {TEXT}", field="data_set", value=self.data_set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a cell is struck."""

    name: str
    at: tuple[float, ...]
    """Shares of the run (0..1) near which failures come."""
    comes_back: bool = True
    """Whether the job goes on with as many workers as before, or with one fewer after every failure (N to M)."""

    def strikes(self, model: Model) -> tuple[int, ...]:
        """The steps before which it strikes: half the model's interval after a checkpoint, as failures do on average."""
        every = model.every_steps
        steps = [round(share * model.num_steps / every) * every + every // 2 for share in self.at]
        if not all(0 < step < model.num_steps - 1 for step in steps) or len(set(steps)) < len(steps):
            raise InvalidInputError(f"must be inside a run of {model.num_steps} steps, and apart", field="at", value=self.at)
        return tuple(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the processes of a cell are told."""

    cell: Cell
    model: Model
    run: str
    """Folder of the cell."""
    data: DataFile
    profile: str
    """File of the model's profile."""
    strikes: tuple[int, ...] = ()
    """Steps at whose boundaries a failure comes."""
    comes_back: bool = True
    world_size: int = WORLD_SIZE
    trace_every: int = 5
    """Updates between two samples of the parameters."""

    def workers_in(self, attempt: int) -> int:
        """Workers that an attempt (from 0) of the whole job begins with."""
        return self.world_size if self.comes_back else self.world_size - min(attempt, len(self.strikes))

    def victim(self, failure: int) -> str:
        """The worker that a failure (from 0) of single workers strikes: the last one, then the one before it."""
        return f"w{self.world_size - 1 - failure % self.world_size:02d}"

    @property
    def writes_checkpoints(self) -> bool:
        """Whether others than the one at the end."""
        return self.cell.variant in (Variant.BLOCKING, Variant.OVERLAPPED)


def job_of(model: Model, data: DataFile, seed: int, trace: tuple[str, int] | None = None) -> TrainingJob:
    """The training job of a model; `trace` names a folder for samples of the parameters, and the updates between them."""
    train, _ = load(model.data_set, data, sequence_length=SEQUENCE_LENGTH)
    optimizer = partial(AveragingAdamW, learning_rate=model.learning_rate, num_kept=model.num_kept)
    is_text = model.data_set == TEXT
    blocks = model.num_blocks
    layers = decoder_layers(blocks, model.width, SEQUENCE_LENGTH) if is_text else residual_layers(blocks, model.width)
    return TrainingJob(
        layers=emulated(layers, model.device_seconds),
        optimizer=partial(traced, optimizer, Path(trace[0]), trace[1]) if trace is not None else optimizer,
        loss=token_loss if is_text else class_loss,
        dataset=train,
        microbatch_size=model.microbatch_size,
        num_microbatches=model.num_microbatches,
        num_steps=model.num_steps,
        seed=seed,
        max_grad_norm=1.0,
        dtype=torch.float64,
    )


def held_out(model: Model, data: DataFile) -> Dataset:
    """The samples that no step trains on."""
    return load(model.data_set, data, sequence_length=SEQUENCE_LENGTH)[1]


def target_of(model: Model) -> str:
    """The field of a sample that the model predicts."""
    return "targets" if model.data_set == TEXT else "label"
