"""Training jobs that take their time, or wait, until a test opens a gate: a file that is there."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from kintsugi.runtime.models import Dataset, TrainingJob, sampler_of
from tests.runtime.jobs import odd_job, tiny_gpt

LONGEST_HOLD_SECONDS = 30.0


@dataclass
class Slow:
    """A data set that takes its time until a gate opens, so that there are steps left when something has happened."""

    inner: Dataset
    gate: Path
    pause_seconds: float

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int):
        time.sleep(0.0 if self.gate.exists() else self.pause_seconds)
        return self.inner[index]


def slow_gpt(gate: Path, num_steps: int, pause_seconds: float = 0.005) -> TrainingJob:
    """The decoder, on a data set that pauses before every sample until the gate opens."""
    job = tiny_gpt(num_steps=num_steps)
    return replace(job, dataset=Slow(job.dataset, gate, pause_seconds))


@dataclass
class Held:
    """A data set that keeps some samples to itself until a gate opens; at most for `LONGEST_HOLD_SECONDS`."""

    inner: Dataset
    gate: Path
    held: frozenset[int]

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int):
        deadline = time.monotonic() + LONGEST_HOLD_SECONDS
        while index in self.held and not self.gate.exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.inner[index]


def slow_averaging(gate: Path, num_steps: int, pause_seconds: float = 0.005) -> TrainingJob:
    """The odd job with an optimizer that counts in its groups, on a data set that pauses before samples until the gate opens."""
    job = odd_job("averaging", num_steps=num_steps)
    return replace(job, dataset=Slow(job.dataset, gate, pause_seconds))


def held_gpt(gate: Path, num_steps: int, step: int) -> TrainingJob:
    """The decoder, which does not get beyond the beginning of a step until the gate opens."""
    job = tiny_gpt(num_steps=num_steps)
    return replace(job, dataset=Held(job.dataset, gate, frozenset(sampler_of(job).window(step))))
