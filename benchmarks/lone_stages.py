"""The memory and time models against stages that run alone on a device, with as many micro-batches in flight as among others.

    python -m benchmarks.lone_stages [--output DIR] [--check]
    python -m benchmarks.lone_stages --schedule zb-h2
    python -m benchmarks.lone_stages --job benchmarks.lone_stages:small_llama_job --distinct --recompute
    python -m benchmarks.lone_stages --device cuda --precision bf16 --job kintsugi.runtime.llama:llama2_7b_job --distinct

Every stage of a pipeline is trained alone by the executor, and in turn with its steps the layers are measured as `kintsugi profile`
does: machines that others use change their speed within minutes, and within seconds. Compared are:

- **Memory**: the most that the allocator held in a step against equation 14 of Chameleon, and against the estimator's model.
- **Time**: what a pipeline takes whose passes take as long as they took in its stages, one by one, against the recurrence
  (equation 11) from the sums of the layers' times; with one stage that is a step on this device as it is.
"""

import argparse
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.arguments import at_least, folder
from estimator.estimate import estimate
from estimator.layers import LayerSums
from estimator.memory import stage_peak_bytes
from estimator.moments import stage_moments
from estimator.program import Action, ActionKind
from estimator.schedule import scheduled_in_flight
from kintsugi.cli.profile_measure import load_job
from kintsugi.core.cluster import Cluster, worker_name
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Pipeline as PlannedPipeline
from kintsugi.core.plan import Plan, Schedule, Stage
from kintsugi.core.profile import LayerProfile, LinkCost, Network, Profile, Provenance, ProvenanceKind, Recovery
from kintsugi.reporting.tables import Column, Table, Value
from kintsugi.runtime.devices import job_on, precision_of, require_device
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.llama import LlamaShape, llama_job
from kintsugi.runtime.machine import description, device_of
from kintsugi.runtime.measuring.allocator import Section
from kintsugi.runtime.measuring.lone_stage import ActionTimes, LoneStage, Place
from kintsugi.runtime.measuring.profiler import LayerMeter
from kintsugi.runtime.models import TrainingJob

SCHEDULES = tuple(schedule for schedule in Schedule if not schedule.is_interleaved)
"""Under which every worker has one stage."""
DEPTHS = {1: (1, 4), 2: (1, 4), 4: (2, 8), 8: (8,)}
"""Micro-batches by the number of stages."""
LEAST_CASES = 12
"""Of memory that are asked for."""
MOST_PERCENT, MOST_UNDER_PERCENT = 5.0, 2.0
"""Largest error that is asked for, and by how much memory may be underestimated."""


def small_job() -> TrainingJob:
    """Large enough on a processor's core that a pass takes milliseconds."""
    shape = GptShape(num_blocks=14, width=256, num_heads=4, sequence_length=128, dropout=0.0)
    return gpt_job(num_microbatches=8, num_steps=1, shape=shape, microbatch_size=4, dtype=torch.float32)


def small_llama_job() -> TrainingJob:
    """In bf16, with exact values in its optimizer."""
    shape = LlamaShape(
        num_blocks=6,
        width=128,
        num_heads=4,
        num_key_value_heads=2,
        feed_forward_width=352,
        vocabulary=512,
        rope_base=1e4,
        sequence_length=128,
    )
    return llama_job(shape)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages of about as many layers, and their micro-batches."""

    cuts: tuple[int, ...]
    num_microbatches: int
    schedule: Schedule

    @property
    def places(self) -> list[Place]:
        """Of its stages."""
        return [
            Place(
                layer_start=start,
                layer_stop=stop,
                stage=stage,
                num_stages=len(self.cuts) - 1,
                num_microbatches=self.num_microbatches,
                schedule=self.schedule,
            )
            for stage, (start, stop) in enumerate(pairwise(self.cuts))
        ]


def pipelines(num_layers: int, schedule: Schedule = Schedule.ONE_F_ONE_B) -> list[Pipeline]:
    """Of every depth that there are layers for."""
    return [
        Pipeline(tuple(round(num_layers * stage / depth) for stage in range(depth + 1)), count, schedule)
        for depth, counts in DEPTHS.items()
        if depth <= num_layers
        for count in counts
    ]


class Model:
    """What the estimator says of pipelines and their stages, from layers that were measured one by one."""

    def __init__(self, job: TrainingJob, layers: tuple[LayerProfile, ...], detail: str) -> None:
        self.detail = detail
        free = LinkCost(alpha_seconds=0.0, beta_seconds_per_byte=0.0)
        self._profile = Profile(
            name="lone-stages",
            microbatch_size=job.microbatch_size,
            provenance=Provenance(kind=ProvenanceKind.MEASURED, detail=detail),
            layers=layers,
            device=device_of(job.device, 1),
            network=Network(intra_host=free, inter_host=free),
            recovery=Recovery(regroup_seconds=0.0, restart_seconds=0.0),
        )
        self._sums = LayerSums(self._profile)

    @property
    def usable_bytes(self) -> int:
        """Of the device, beside what lay there when it was asked."""
        return self._profile.device.usable_bytes

    def peak_bytes(self, place: Place) -> int:
        """Of the estimator's own model."""
        moments = stage_moments(place.schedule, place.stage, place.num_stages, place.num_microbatches)
        return stage_peak_bytes(self._sums, place.layer_start, place.layer_stop, moments=moments, num_replicas=1)

    def equation_14(self, place: Place) -> int:
        """Static memory and the activations in flight, layer by layer."""
        held = scheduled_in_flight(place.schedule, place.stage, place.num_stages, place.num_microbatches)
        stage = place.layer_start, place.layer_stop
        return self._sums.static_bytes(*stage, 1) + held * self._sums.activation_bytes(*stage)

    def step_seconds(self, pipeline: Pipeline) -> float:
        """The estimate of a step; messages take no time."""
        stages = tuple(
            Stage(worker=worker_name(place.stage), layer_start=place.layer_start, layer_stop=place.layer_stop)
            for place in pipeline.places
        )
        planned = PlannedPipeline(stages=stages, num_microbatches=pipeline.num_microbatches)
        plan = Plan(pipelines=(planned,), schedule=pipeline.schedule)
        return estimate(plan, self._profile, Cluster.uniform(len(stages))).iteration_seconds


def emulated_seconds(runs: Sequence[ActionTimes]) -> float:
    """A step of a pipeline whose passes take what they took in their stages alone; messages take no time."""
    waiting, free = [deque(run) for run in runs], [0.0] * len(runs)
    ends: dict[tuple[int, ActionKind, int], float] = {}
    while any(waiting):
        for stage, own in enumerate(waiting):
            while own and (arrived := _arrived(own[0][0], stage, len(runs), ends)) is not None:
                action, seconds = own.popleft()
                free[stage] = ends[stage, action.kind, action.microbatch] = max(free[stage], arrived) + seconds
    return max(free)


WAITED = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)


def _arrived(action: Action, stage: int, num_stages: int, ends: Mapping[tuple[int, ActionKind, int], float]) -> float | None:
    """When what a pass needs of its neighbours is there; None while it is not."""
    if action.kind is ActionKind.FORWARD and stage > 0:
        return ends.get((stage - 1, ActionKind.FORWARD, action.microbatch))
    if action.kind in WAITED and stage + 1 < num_stages:
        return next((ends[key] for kind in WAITED if (key := (stage + 1, kind, action.microbatch)) in ends), None)
    return 0.0


@dataclass(slots=True)
class Findings:
    """Rows of both tables."""

    memory: list[tuple[Value, ...]] = field(default_factory=list)
    time: list[tuple[Value, ...]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    detail: str = "No stage was run"
    """How the layers were measured."""
    sweep_seconds: list[float] = field(default_factory=list)
    """Of one micro-batch through all layers, back, and an update: as measured in turn with each stage."""

    @property
    def drift_percent(self) -> float:
        """The slowest over the fastest, less one."""
        return 100 * (max(self.sweep_seconds) / min(self.sweep_seconds) - 1) if self.sweep_seconds else 0.0


@dataclass(slots=True)
class Bench:
    """Runs stages alone and compares."""

    job: TrainingJob
    schedule: Schedule
    meter: LayerMeter
    model: Model
    num_steps: int
    say: Callable[[str], None]
    """Takes a line once a stage or a pipeline is through."""
    keep: Callable[[Findings], None]
    """Takes what is known so far, once a pipeline is through."""
    findings: Findings = field(default_factory=Findings)

    def run(self, progress: Progress) -> None:
        """Run every stage of every pipeline that fits the device; those that need most come last, for a device may fail at them."""
        wanted = sorted(pipelines(len(self.job.layers), self.schedule), key=self._peak_bytes)
        task = progress.add_task("stages", total=sum(len(pipeline.places) for pipeline in wanted))
        for done, pipeline in enumerate(wanted, start=1):
            name = f"{len(pipeline.places)} stages, {pipeline.num_microbatches} micro-batches"
            most = self._peak_bytes(pipeline)
            if most > self.model.usable_bytes:
                self.findings.left_out.append(f"{name}: needs {most / 1e9:.1f} GB")
            else:
                try:
                    self._compare(pipeline, partial(progress.advance, task))
                except torch.OutOfMemoryError:
                    self.findings.left_out.append(f"{name}: out of memory, where the model says {most / 1e9:.1f} GB")
            self.keep(self.findings)
            progress.update(task, completed=sum(len(earlier.places) for earlier in wanted[:done]))

    def _peak_bytes(self, pipeline: Pipeline) -> int:
        return max(map(self.model.peak_bytes, pipeline.places))

    def _compare(self, pipeline: Pipeline, advance: Callable[[], None]) -> None:
        runs: list[ActionTimes] = []
        layers: list[LayerProfile] = []
        for place in pipeline.places:
            self.meter.forget()
            with LoneStage(self.job, place) as stage:
                self.findings.memory.append(row := memory_row(place, stage.memory, self.model))
                self.say(f"{row[0]}: {row[1]:,.1f} MB, model {row[4]:,.1f} MB ({row[5]:+.2f} %)")
                runs.append(stage.times(self.num_steps, self.meter.sweep))
            meanwhile = self.meter.measured()
            layers += meanwhile.profiles[place.layer_start : place.layer_stop]
            self.findings.detail = meanwhile.detail
            self.findings.sweep_seconds.append(sum(map(whole_seconds, meanwhile.profiles)))
            advance()
        self.findings.time.append(row := time_row(pipeline, runs, Model(self.job, tuple(layers), self.model.detail)))
        self.say(f"{row[0]} stages, {row[1]} micro-batches: {row[2]:,.2f} ms, estimate {row[3]:,.2f} ms ({row[4]:+.2f} %)")


def whole_seconds(layer: LayerProfile) -> float:
    """Of all that a layer does with one micro-batch in a step."""
    return layer.forward_seconds + layer.backward_seconds + layer.update_seconds


def memory_row(place: Place, measured: Section, model: Model) -> tuple[Value, ...]:
    """One stage's."""
    most, predicted, known = measured.most_bytes, model.peak_bytes(place), model.equation_14(place)
    return str(place), most / 1e6, known / 1e6, 100 * (known / most - 1), predicted / 1e6, 100 * (predicted / most - 1)


def time_row(pipeline: Pipeline, runs: Sequence[ActionTimes], model: Model) -> tuple[Value, ...]:
    """One pipeline's."""
    measured, predicted = emulated_seconds(runs), model.step_seconds(pipeline)
    return len(runs), pipeline.num_microbatches, 1e3 * measured, 1e3 * predicted, 100 * (predicted / measured - 1)


def tables(findings: Findings, note: str) -> list[Table]:
    """Memory and time."""
    error = Column(key="error_percent", title="error, %", form="+.2f")
    return [
        Table(
            name="memory",
            title="Peak memory of a stage alone, MB",
            columns=(
                Column(key="stage", title="stage"),
                Column(key="measured_megabytes", title="measured", form=",.1f"),
                Column(key="equation_14_megabytes", title="equation 14", form=",.1f"),
                replace(error, key="equation_14_error_percent"),
                Column(key="model_megabytes", title="model", form=",.1f"),
                error,
            ),
            rows=tuple(findings.memory),
            note=note,
        ),
        Table(
            name="time",
            title="A step, ms",
            columns=(
                Column(key="num_stages", title="stages"),
                Column(key="num_microbatches", title="micro-batches"),
                Column(key="measured_milliseconds", title="measured", form=",.2f"),
                Column(key="estimate_milliseconds", title="estimate", form=",.2f"),
                error,
            ),
            rows=tuple(findings.time),
        ),
    ]


def write_tables(folder: Path | None, findings: Findings) -> None:
    """As CSV, where a folder is given: whoever cuts the benchmark off has the tables of all pipelines before."""
    if folder is not None:
        for table in tables(findings, ""):
            table.write_csv(folder)


def errors(rows: Sequence[tuple[Value, ...]]) -> str:
    """The largest of the last column, either way."""
    found = [value for *_, value in rows if isinstance(value, float)]
    return f"{min(found):+.2f} % to {max(found):+.2f} %" if found else "none"


def missed(findings: Findings) -> list[str]:
    """What was asked for and is not so, in words."""
    result = []
    if len(findings.memory) < LEAST_CASES:
        result.append(f"memory of {len(findings.memory)} stages was compared, asked {LEAST_CASES}")
    if not findings.time:
        result.append("the time of no pipeline was compared")
    memory = [(f"memory of {place}", error, -MOST_UNDER_PERCENT) for place, *_, error in findings.memory]
    time = [(f"time of {depth} stages, {count} micro-batches", error, -MOST_PERCENT) for depth, count, *_, error in findings.time]
    return result + [
        f"{what}: {error:+.2f} %, asked {low:+g} to {MOST_PERCENT:+g} %"
        for what, error, low in (*memory, *time)
        if isinstance(error, float) and not low <= error <= MOST_PERCENT
    ]


def main() -> None:
    """Print both tables, and write them where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", metavar="MODULE:FUNCTION", default="benchmarks.lone_stages:small_job")
    parser.add_argument("--schedule", choices=[schedule.value for schedule in SCHEDULES], default=Schedule.ONE_F_ONE_B.value)
    parser.add_argument("--device", help="cpu, cuda or cuda:1; the job's own by default")
    parser.add_argument("--precision", help="fp64, fp32, bf16, fp16; the job's own by default")
    parser.add_argument("--distinct", action="store_true", help="measure one of the layers that are built alike for all")
    parser.add_argument("--recompute", action="store_true", help="recompute activations in the backward pass")
    parser.add_argument("--steps", type=at_least(1), default=11, help="of every stage, each after sweeps over the layers")
    parser.add_argument("--threads", type=at_least(1), default=1, help="of torch's own arithmetic on processors")
    parser.add_argument("--output", type=folder, help="a folder for the tables as CSV, written anew after every pipeline")
    parser.add_argument("--check", action="store_true", help="exit with 1 where an error is larger than is asked for")
    given = parser.parse_args()
    console = Console(stderr=True)
    try:
        if given.device is not None:
            require_device(given.device)
        dtype = None if given.precision is None else precision_of(given.precision)
        job = job_on(load_job(given.job), given.device, dtype, recomputes_activations=given.recompute)
    except InvalidInputError as error:
        parser.error(str(error))
    torch.set_num_threads(given.threads)
    with Progress(console=console, transient=True) as progress:
        meter = LayerMeter(job, is_distinct=given.distinct)
        meter.sweep()
        layers = meter.measured()
        model = Model(job, layers.profiles, layers.detail)
        say = partial(progress.console.print, markup=False, highlight=False, soft_wrap=True)
        bench = Bench(job, Schedule(given.schedule), meter, model, given.steps, say, partial(write_tables, given.output))
        bench.run(progress)
    findings = bench.findings
    note = (
        f"{description(job.device)}. {findings.detail}. "
        f"Layers were measured with every stage, the slowest time {findings.drift_percent:.1f} % over the fastest."
    )
    for table in tables(findings, note):
        print(table.markdown())
    for line in findings.left_out:
        print(f"left out: {line}")
    print(f"errors: memory {errors(findings.memory)}, time {errors(findings.time)}")
    if given.check and (lines := missed(findings)):
        sys.exit("\n".join(f"missed: {line}" for line in lines))


if __name__ == "__main__":
    main()
