"""A campaign as data: which jobs run, what strikes them at which moment, and what may be left of it.

The file is one JSON object, `schema_version` 1; every field is described at its definition below. Durations are seconds.
"""

import random
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Policy
from kintsugi.runtime.faults import FaultPoint

Seconds = Annotated[float, Field(gt=0, le=3600)]
IN_RECOVERY = frozenset({FaultPoint.QUIESCE, FaultPoint.REGROUP, FaultPoint.TRANSFER, FaultPoint.READY})
"""Points that a worker only passes while the job moves to another plan; all others are passed in every step."""
FEWEST_WORKERS = 3
"""So many are always left, with a slot or idle."""


class Kind(StrEnum):
    """What strikes."""

    KILL = "kill"
    """SIGKILL to one worker."""
    FREEZE = "freeze"
    """SIGSTOP to one worker, for good."""
    WAKE = "wake"
    """SIGSTOP to one worker, and SIGCONT later: before it is missed, while it is fenced, or never in time."""
    HOST = "host"
    """SIGKILL to all workers of one host, each at the point."""
    SERVICE = "service"
    """SIGKILL to the service that decides; it is started again on its database."""
    JOIN = "join"
    """No fault: a worker that is new to the job comes."""


class Part(BaseModel):
    """Common to all parts of a campaign: unknown fields are refused, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Fault(Part):
    """One thing that strikes, and where."""

    kind: Kind
    at: FaultPoint = FaultPoint.FORWARD
    """step, forward, backward, reduce, commit or applied: in the next step; quiesce, regroup, transfer or ready: in the
    next recovery. The service is struck when the first worker gets there, or at once where none is to."""


class Strike(Fault):
    """A fault on a job at rest, and what follows while it recovers."""

    after_steps: int = Field(default=2, ge=0, le=1000)
    """Steps that the job trains at rest before it is struck."""
    then: tuple[Fault, ...] = Field(default=(), max_length=4)
    """Further faults, each on another worker: at a point of the recovery, or in the first step after it."""
    repeat: int = Field(default=1, ge=1, le=100)

    @model_validator(mode="after")
    def _comes_by(self) -> "Strike":
        if self.at in IN_RECOVERY and self.kind is not Kind.JOIN:
            raise ValueError("a job at rest does not pass this point: use it in `then`, after a fault that begins a recovery")
        if FaultPoint.START in (self.at, *(fault.at for fault in self.then)):
            raise ValueError("nobody who trains passes the point start: use step")
        for fault in self.then:
            if fault.kind in (Kind.HOST, Kind.JOIN):
                raise ValueError(
                    f"`then` takes kill, freeze, wake and service, not {fault.kind.value}: make it a strike of its own"
                )
        return self

    @property
    def label(self) -> str:
        """The kinds in short, as in reports."""
        further = sorted({fault.kind.value for fault in self.then})
        return f"{self.kind.value}, then {' and '.join(further)}" if further else self.kind.value

    @property
    def num_faults(self) -> int:
        """Faults without joins, each time that it strikes."""
        return (self.kind is not Kind.JOIN) + len(self.then)

    def num_victims(self, workers_per_host: int) -> int:
        """Workers that are struck each time."""
        struck = {Kind.HOST: workers_per_host, Kind.SERVICE: 0, Kind.JOIN: 0}
        return sum(struck.get(fault.kind, 1) for fault in (self, *self.then))


class Run(Part):
    """One job under strikes; every worker that is lost comes back, so that it ends at full strength."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=60)
    dp: int = Field(ge=2, le=16)
    pp: int = Field(ge=1, le=16)
    workers_per_host: int = Field(default=1, ge=1, le=8)
    policy: Literal[Policy.DYNAMIC_PARALLELISM] | None = None
    """Pins the policy; null leaves it to the planner. No other can be pinned: it has to take workers in."""
    strikes: tuple[Strike, ...] = Field(min_length=1)
    is_shuffled: bool = True
    """Whether the strikes come in a random order, by the campaign's seed."""
    min_generations: int = Field(default=25, ge=1, le=1000)
    """Fewer count as a failure of the campaign."""

    @model_validator(mode="after")
    def _is_small(self) -> "Run":
        if self.dp * self.pp > 32:
            raise ValueError(f"dp x pp = {self.dp * self.pp} workers: at most 32 run on one machine; lower dp or pp")
        return self

    @model_validator(mode="after")
    def _spares_enough(self) -> "Run":
        most = max(strike.num_victims(self.workers_per_host) for strike in self.strikes)
        if self.dp * self.pp - most < FEWEST_WORKERS:
            raise ValueError(
                f"a strike takes {most} of {self.dp * self.pp} workers, and {FEWEST_WORKERS} are always left: it would never "
                "begin; raise dp or pp, or strike fewer at once"
            )
        return self

    def order(self, seed: int) -> tuple[Strike, ...]:
        """All strikes, one by one."""
        strikes = [strike for strike in self.strikes for _ in range(strike.repeat)]
        if self.is_shuffled:
            random.Random(f"{seed} {self.name}").shuffle(strikes)
        return tuple(strikes)

    @property
    def num_faults(self) -> int:
        """Faults without joins."""
        return sum(strike.repeat * strike.num_faults for strike in self.strikes)


class Growth(Part):
    """What a process that lives through a run may gain between the run's first third and its last."""

    memory_bytes: int = Field(default=30_000_000, ge=0)
    """Private memory: the allocator's ups and downs are some megabytes."""
    sockets: int = Field(default=0, ge=0)
    threads: int = Field(default=2, ge=0)
    """Of those that the plan does not explain, which is known to about two; an abandoned group has three and sockets besides."""
    groups: int = Field(default=0, ge=0)
    """Process groups, by their listening sockets."""


class Campaign(Part):
    """Everything about one campaign."""

    schema_version: Literal[1]
    name: str = Field(min_length=1, max_length=60)
    seed: int = Field(default=0, ge=0)
    num_steps: int = Field(ge=10, le=100_000)
    """At most so many in a run, which ends when its strikes are over; strikes that did not fit in count as a failure."""
    num_microbatches: int = Field(default=8, ge=1, le=256)
    width: int = Field(default=32, ge=4, le=1024, multiple_of=4)
    """Of the decoder that is trained."""
    tolerance_ratio: float = Field(default=1e-9, gt=0, lt=1)
    """Largest relative difference of a loss or parameter (fp64) that still counts as equal."""
    hung_after_seconds: Seconds = 60.0
    """Without a step; a job that takes longer counts as hung and is ended."""
    limit_seconds: Seconds = 600.0
    """For one run; the rest of its strikes is left out, which counts as a failure."""
    growth: Growth = Growth()
    runs: tuple[Run, ...] = Field(min_length=1, max_length=50)

    @model_validator(mode="after")
    def _has_names(self) -> "Campaign":
        names = [run.name for run in self.runs]
        if len(set(names)) < len(names):
            raise ValueError("every run needs a name of its own")
        return self


def load(path: Path) -> Campaign:
    """Read a campaign.

    Raises:
        InvalidInputError: with the first field that is wrong, its value, and the way out.
    """
    try:
        return Campaign.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", field="FILE", value=str(path)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        shown = first["input"] if isinstance(first["input"], str | int | float | bool | None) else "..."
        message = f"{first['msg'].removeprefix('Value error, ')} (got {shown!r}; the fields are described in {__name__})"
        raise InvalidInputError(message, field=place or "FILE", value=shown) from None
