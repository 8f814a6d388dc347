"""The cells of the matrix: one run each of one variant in one suite, before it has run."""

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from kintsugi.core import checks

CELLS = "cells"


class Variant(StrEnum):
    """How a cell keeps its state safe and goes on after a failure (ECRL, section 5.3)."""

    REFERENCE = "reference"
    """No failures. What checkpoints it writes stands in its record; the paper's stalls for them as long as blocking does."""
    BLOCKING = "blocking"
    """Restart from checkpoints that training waits for."""
    OVERLAPPED = "overlapped"
    """Restart from checkpoints that are written beside the training."""
    MEMORY = "memory"
    """Survivors go on with the state that they hold."""


class Part(StrEnum):
    """What a cell is there for."""

    MATRIX = "matrix"
    """Suites by variants by seeds."""
    SWEEP = "sweep"
    """Other checkpoint intervals and writes in flight."""
    ELASTIC = "elastic"
    """Goes on with another number of workers than it began with (N to M)."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Suite:
    """What the variants are compared on."""

    data_set: str
    model: str
    schedule: str
    """Name of the failure schedule."""

    def __post_init__(self) -> None:
        for item in fields(self):
            checks.name(item.name, getattr(self, item.name))

    @property
    def name(self) -> str:
        """As in the paper: <data set>-<model>-<failures>."""
        return f"{self.data_set}-{self.model}-{self.schedule}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One run of the matrix, before it has run."""

    part: Part = Part.MATRIX
    suite: Suite
    variant: Variant
    seed: int
    every_steps: int
    """From one checkpoint to the next."""
    max_in_flight: int
    """Copies of the state that may wait for the disk."""

    def __post_init__(self) -> None:
        checks.positive("every_steps", self.every_steps)
        checks.positive("max_in_flight", self.max_in_flight)

    @property
    def name(self) -> str:
        """Unique in its matrix; also the path of its folder below `cells`."""
        knobs = f"-every{self.every_steps}-inflight{self.max_in_flight}" if self.part is Part.SWEEP else ""
        prefix = "" if self.part is Part.MATRIX else f"{self.part.value}-"
        return f"{prefix}{self.suite.name}/{self.variant.value}{knobs}-seed{self.seed}"

    def folder(self, matrix: Path) -> Path:
        """Where its record is, below the folder of the matrix."""
        return matrix / CELLS / self.name
