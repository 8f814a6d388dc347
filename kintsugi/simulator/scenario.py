"""A scenario: which job, on which workers, for how long, and what happens to it. JSON of schema version 1."""

import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kintsugi.core import checks, codec
from kintsugi.core.cluster import MOST_WORKERS, Cluster
from kintsugi.core.decoding import HIDDEN
from kintsugi.core.errors import InvalidInputError, told_as
from kintsugi.core.job import JobSettings
from kintsugi.core.profile import Device, Profile, Recovery
from kintsugi.simulator import traces
from kintsugi.simulator.faults import Faults

PROFILES = next(
    (folder for folder in (Path(__file__).parents[2] / "profiles", Path(__file__).parents[1] / "profiles") if folder.is_dir()),
    Path("profiles"),
)
"""In a checkout, else in an installed wheel."""

SHORTHANDS = {"mtbf": "mtbf_seconds", "duration": "duration_seconds", "microbatches": "settings.num_microbatches"}
"""Names that `varied` takes for longer ones."""

MTBF = "mtbf_seconds"
"""What `mtbf` stands for: no field of a scenario, but of how often all that may fail does."""

MOST_INCIDENTS = 2_000_000
"""That are drawn for one run in the mean; more are a wrong unit, and would be simulated for days."""

INTERNAL = "folder"
"""The field that no scenario's file gives and nobody varies."""
HERE = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Pipelines and stages of the plan that a job begins with."""

    dp: int
    pp: int

    def __post_init__(self) -> None:
        checks.count("dp", self.dp)
        checks.count("pp", self.pp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A job, its workers, and what happens to them."""

    schema_version: int = 1
    name: str
    profile: str
    """File of the model's profile; a path that is not absolute starts at the scenario's own folder."""
    num_workers: int
    workers_per_host: int = 1
    spares: int = 0
    """Further workers; a policy may use them at once, or keep them until a worker fails."""
    settings: JobSettings
    """The mean time between failures in it is not used: it follows from `faults` and the workers that are left."""
    first: Grid | None = None
    """The plan that policies begin with where there are workers for it; null leaves it to the policy.

    Oobleck begins with another one where this one would leave workers idle, Bamboo with deeper pipelines, and hot spares, where
    the scenario has no spares, with fewer pipelines.
    """
    duration_seconds: float
    faults: Faults = field(default_factory=Faults)
    trace: str | None = None
    """File of arrivals and preemptions, or of sampled numbers of workers; no worker is there before it comes."""
    notice_seconds: float = 0.0
    """How long before it happens a preemption of the trace is announced."""
    device_memory_bytes: int | None = None
    """Null: the profile's."""
    recovery: Recovery | None = None
    """What the steps of a recovery take; null: the profile's."""
    checkpoint_pause_seconds: float = 0.0
    """Training stands still for so long whenever a checkpoint is taken."""
    planning_seconds: float = 0.0
    """From detection to the decision, under every policy."""
    folder: str = field(default=HERE, metadata={HIDDEN: True})
    """Where relative paths start; set by `load`."""

    def __post_init__(self) -> None:
        if self.schema_version != 1:
            raise InvalidInputError("this version reads schema_version 1", field="schema_version", value=self.schema_version)
        checks.name("name", self.name)
        for name in ("num_workers", "workers_per_host"):
            checks.count(name, getattr(self, name))
        checks.positive("duration_seconds", self.duration_seconds)
        if self.num_workers + self.spares > MOST_WORKERS:
            message = f"are more than {MOST_WORKERS:,} workers with spares ({self.spares:,}), which is not credible"
            raise InvalidInputError(message, field="num_workers", value=self.num_workers)
        for name in ("spares", "notice_seconds", "checkpoint_pause_seconds", "planning_seconds"):
            checks.non_negative(name, getattr(self, name))
        if self.first is not None and self.first.dp * self.first.pp > self.num_workers:
            raise InvalidInputError(
                f"needs {self.first.dp * self.first.pp} workers; num_workers is {self.num_workers}",
                field="first",
                value=[self.first.dp, self.first.pp],
            )
        if self.first is not None and not self.settings.ranges.allow(self.first.dp, self.first.pp):
            message = "lies outside settings.ranges; give other ranges, or leave it out to begin with the best grid within them"
            raise InvalidInputError(message, field="first", value=[self.first.dp, self.first.pp])
        if self.trace is None:
            self._check_incidents()

    def _check_incidents(self) -> None:
        workers = self.num_workers + self.spares
        hosts = -(-workers // self.workers_per_host)
        expected = self.faults.expected_incidents(workers, hosts, self.duration_seconds)
        if expected > MOST_INCIDENTS:
            raise InvalidInputError(
                f"come to {expected:.3g} incidents in {self.duration_seconds:g} s, over {MOST_INCIDENTS:,}; times are in seconds: "
                "let less fail, or simulate a shorter time",
                field="faults",
                value=f"{expected:.3g}",
            )

    @property
    def cluster(self) -> Cluster:
        """All workers that are there at the beginning, spares last."""
        return Cluster.uniform(self.num_workers + self.spares, workers_per_host=self.workers_per_host, name=self.name)

    def path(self, name: str) -> Path:
        """A file that the scenario names."""
        return Path(self.folder, name)

    def check_files(self) -> None:
        """Read all that the scenario names, to find what is wrong with it before anything is simulated.

        Raises:
            InvalidInputError: profile or trace cannot be read or is none.
        """
        self.load_profile()
        if self.trace is not None:
            traces.read(self.path(self.trace))

    def is_by_chance(self) -> bool:
        """Whether runs with other seeds are other runs; a trace of events happened once.

        Raises:
            InvalidInputError: the trace cannot be read.
        """
        return self.faults.are_drawn if self.trace is None else traces.is_by_chance(self.path(self.trace))

    def load_profile(self) -> Profile:
        """The profile, with the scenario's device memory and recovery.

        Raises:
            InvalidInputError: the file cannot be read or is no profile.
        """
        with told_as({"file": "profile"}):
            profile = codec.load(Profile, self.path(self.profile), named="profile")
        if self.device_memory_bytes is not None:
            profile = replace(profile, device=self._device(profile.device, self.device_memory_bytes))
        return profile if self.recovery is None else replace(profile, recovery=self.recovery)

    @staticmethod
    def _device(device: Device, memory_bytes: int) -> Device:
        with told_as({"memory_bytes": "device_memory_bytes"}):
            checks.device_memory("memory_bytes", memory_bytes)
        if memory_bytes <= device.reserved_bytes:
            message = f"leaves no memory: the profile's device reserves {device.reserved_bytes:,} bytes"
            raise InvalidInputError(message, field="device_memory_bytes", value=memory_bytes)
        return replace(device, memory_bytes=memory_bytes)


def load(name: str) -> Scenario:
    """A scenario by the name of one that comes with Kintsugi, or by its file.

    Raises:
        InvalidInputError: there is no such scenario, or the file is none.
    """
    known = names()
    path = PROFILES / "scenarios" / f"{name}.json" if name in known else Path(name)
    if not path.is_file():
        raise InvalidInputError(f"is neither a file nor one of {', '.join(known)}", field="scenario", value=name)
    loaded = codec.load(Scenario, path)
    if loaded.folder != HERE:
        raise InvalidInputError("is no field of a file: relative paths start where it lies", field=INTERNAL, value=loaded.folder)
    return replace(loaded, folder=os.fspath(path.parent))


def names() -> tuple[str, ...]:
    """Scenarios that come with Kintsugi."""
    return tuple(sorted(path.stem for path in (PROFILES / "scenarios").glob("*.json")))


def varied(scenario: Scenario, changes: dict[str, Any]) -> Scenario:
    """The scenario with other values of some fields.

    Args:
        scenario: to change.
        changes: values by dotted path, such as `spares`, `faults.repair_seconds`, `settings.num_microbatches`, in any order;
            `mtbf` is the mean time between failures of the whole job at its beginning, in seconds: other values of `faults` say
            what kinds of failures these are.

    Raises:
        InvalidInputError: there is no such field, it is named twice, it does not take the value, or it changes nothing.
    """
    given: dict[str, str] = {}
    for name, value in changes.items():
        path = meant(name)
        if (other := given.setdefault(path, name)) != name:
            raise InvalidInputError(f"is {other}, which is varied too; leave one of them out", field="vary", value=name)
        _require_effect(scenario, name, path, value)
        if path != MTBF:
            scenario = codec.decode(Scenario, _with(codec.encode(scenario), path.split("."), value, path))
    return scenario if MTBF not in given else _failing_every(scenario, changes[given[MTBF]])


def _require_effect(scenario: Scenario, name: str, path: str, value: object) -> None:
    if scenario.trace is not None and path.partition(".")[0] in (MTBF, "faults"):
        raise InvalidInputError("changes nothing, for the trace says who fails and when", field=name, value=value)
    if scenario.trace is None and path == "notice_seconds":
        raise InvalidInputError("changes nothing without a trace, for no failure is announced", field=name, value=value)
    if path == "settings.mtbf_seconds":
        raise InvalidInputError("changes nothing, for policies know how often workers fail; vary mtbf", field=name, value=value)


def _failing_every(scenario: Scenario, mtbf_seconds: Any) -> Scenario:
    checks.positive("mtbf", mtbf_seconds)
    faults = scenario.faults.scaled(float(mtbf_seconds), scenario.num_workers, scenario.workers_per_host)
    return replace(scenario, faults=faults)


def meant(name: str) -> str:
    """The field that a name stands for."""
    return SHORTHANDS.get(name, name)


def _with(data: dict[str, Any], path: list[str], value: Any, whole: str) -> dict[str, Any]:
    first, *rest = path
    if first not in data or path == [INTERNAL]:
        known = ", ".join((*(f.name for f in fields(Scenario) if f.name != INTERNAL), *SHORTHANDS))
        raise InvalidInputError(
            f"is no field of a scenario; known: {known}, and their fields after a point (faults.repair_seconds)",
            field="vary",
            value=whole,
        )
    if not rest:
        return {**data, first: value}
    if not isinstance(data[first], dict):
        raise InvalidInputError(f"{first} has no fields of its own here", field="vary", value=whole)
    return {**data, first: _with(data[first], rest, value, whole)}
