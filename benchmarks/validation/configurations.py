"""What is run to validate the estimator, as data: emulated models, runs to calibrate from, and runs to compare with.

`configurations.json` beside this file holds them; every field is described at its definition below.
"""

from functools import partial
from multiprocessing import current_process
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kintsugi.core.cluster import Cluster, Worker, host_name, worker_name
from kintsugi.core.plan import Policy, Schedule
from kintsugi.runtime.emulation import EmulatedTimes, emulated_job
from kintsugi.runtime.models import TrainingJob

FILE = Path(__file__).with_name("configurations.json")
Milliseconds = Annotated[float, Field(ge=10, le=20)]
"""Of emulated layers: long beside waking up, short enough to wait for."""


class Part(BaseModel):
    """Unknown fields are refused, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Part):
    """Layers that sleep; the backward pass takes twice as long as the forward pass."""

    forward_milliseconds: tuple[Milliseconds, ...]
    width: int = Field(default=1024, ge=1)
    """Numbers of 4 bytes that cross every boundary per micro-batch; as many parameters make a layer."""

    def times(self, speed_ratio: float = 1.0) -> tuple[EmulatedTimes, ...]:
        """Of every layer on a worker of this speed."""
        return tuple(EmulatedTimes.even(value / 1e3 / speed_ratio) for value in self.forward_milliseconds)


class Configuration(Part):
    """One run: a grid of workers under a schedule, and how it is mended where workers are lost."""

    name: str
    model: str
    dp: int = Field(ge=1)
    pp: int = Field(ge=1)
    num_microbatches: int = Field(ge=1)
    schedule: Schedule = Schedule.ONE_F_ONE_B
    speed_ratios: dict[str, float] = {}
    """Of workers that are not as fast as the others, as in a cluster file; their layers sleep longer."""
    lost: tuple[str, ...] = ()
    """Workers that are killed in one step."""
    policy: Policy | None = None
    """That mends the loss."""
    dp_after: int | None = None
    """Pipelines of the plan that mends it; null leaves that to the planner."""

    @model_validator(mode="after")
    def _is_whole(self) -> "Configuration":
        if bool(self.lost) != (self.policy is not None):
            raise ValueError("say both or neither of lost and policy")
        return self

    @property
    def cluster(self) -> Cluster:
        """All workers, each on a host of its own."""
        workers = (
            Worker(id=worker_name(n), host=host_name(n), speed_ratio=self.speed_ratios.get(worker_name(n), 1.0))
            for n in range(self.dp * self.pp)
        )
        return Cluster(name=self.name, workers=tuple(workers))

    @property
    def before(self) -> tuple[object, ...]:
        """What makes two runs the same until workers are lost."""
        speeds = tuple(sorted(self.speed_ratios.items()))
        return self.model, self.dp, self.pp, self.num_microbatches, self.schedule, speeds


class Configurations(Part):
    """Everything that is run."""

    schema_version: Literal[1]
    models: dict[str, Model]
    calibration: tuple[Configuration, ...]
    """Whose measured steps correct the profiles."""
    compared: tuple[Configuration, ...]
    """Whose measured steps are set against estimates."""

    @model_validator(mode="after")
    def _are_apart(self) -> "Configurations":
        known = {own.before for own in self.calibration}
        for own in self.compared:
            if own.before in known:
                raise ValueError(f"{own.name} is compared with and calibrated from: change one of the two")
        for own in (*self.calibration, *self.compared):
            if own.model not in self.models:
                raise ValueError(f"{own.name}: no model {own.model}; known: {', '.join(self.models)}")
        return self


def load(path: Path = FILE) -> Configurations:
    """Read the configurations.

    Raises:
        pydantic.ValidationError: with the field that is wrong.
    """
    return Configurations.model_validate_json(path.read_bytes())


def job_of(model: Model, configuration: Configuration, *, num_steps: int) -> "partial[TrainingJob]":
    """What every worker calls to know its job."""
    return partial(_own_job, model, configuration.speed_ratios, configuration.num_microbatches, num_steps)


def _own_job(model: Model, speed_ratios: dict[str, float], num_microbatches: int, num_steps: int) -> TrainingJob:
    """The job as the worker whose process this is runs it; at full speed in any other process."""
    own = speed_ratios.get(current_process().name.removeprefix("kintsugi-"), 1.0)
    return emulated_job(model.times(own), num_microbatches=num_microbatches, num_steps=num_steps, width=model.width)
