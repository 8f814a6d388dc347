"""One stage of a pipeline alone on a device: the executor's own steps, whose messages come from and go nowhere.

Its passes come in the order of the schedule, with as many micro-batches in flight as among other stages. What would arrive is made
up: random numbers of the shapes that cross the stage's boundaries, which are there before anything is measured.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from estimator.message_windows import Windows
from estimator.program import RECEIVES, Action, ActionKind
from estimator.schedule import Pass, Step, order
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Pipeline, Plan, Schedule, Stage
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.measuring.allocator import MemoryMeter, Section
from kintsugi.runtime.measuring.footprint import what_follows
from kintsugi.runtime.measuring.marks import Marks
from kintsugi.runtime.models import Activations, Batch, Dataset, TrainingJob, model_shape
from kintsugi.runtime.ties import owner_of
from kintsugi.runtime.workers.executor import ActionHook, Executor
from kintsugi.runtime.workers.state import ModelState
from restorer.groups import Groups
from restorer.rendezvous import Rendezvous
from restorer.transport import Fetched, TensorSpec

_WORKER, _NOBODY = "w00", "w01"
_PATIENCE_SECONDS = 60.0
_MANY_STEPS = 2**31
"""None of them is the last: the next one's batch is made in each."""
_ARRIVING, _STEP = "arriving", "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stage's place in a pipeline."""

    layer_start: int
    layer_stop: int
    stage: int
    num_stages: int
    num_microbatches: int
    schedule: Schedule = Schedule.ONE_F_ONE_B
    """One under which every worker has one stage."""

    @property
    def order(self) -> tuple[Step, ...]:
        """Its passes."""
        return order(self.schedule, self.stage, self.num_stages, self.num_microbatches)

    def __str__(self) -> str:
        """Such as `layers 0-7, stage 1 of 4, 8 micro-batches`."""
        layers = f"layers {self.layer_start}-{self.layer_stop - 1}"
        return f"{layers}, stage {self.stage + 1} of {self.num_stages}, {self.num_microbatches} micro-batches"


ActionTimes = tuple[tuple[Action, float], ...]
"""A step's actions in their order, with what each took in seconds."""


def _nothing(*_: object) -> None:
    pass


class LoneStage:
    """A stage that trains alone, while this context is entered; its passes come in the order of its place's schedule."""

    def __init__(self, job: TrainingJob, place: Place) -> None:
        """Nothing is built yet.

        Args:
            job: the whole model's.
            place: of the stage.
        """
        self.memory: Section
        """What a step takes that is not the first, in bytes: nothing that was there before the stage was built counts."""
        self._job, self._place = stage_job(job, place), place
        self._arriving = tuple(_made_up(spec, job.device) for spec in model_shape(job).boundaries[place.layer_start])
        self._marks = Marks(job.device)
        self._stack = ExitStack()
        self._num_steps = 0

    def __enter__(self) -> Self:
        """Build it, train two steps, and see what memory the second takes.

        Raises:
            InvalidInputError: nothing in the stage is trained.
        """
        with ExitStack() as stack:
            groups = stack.enter_context(_groups())
            with MemoryMeter(self._job.device) as meter:
                self._executor = _executor(self._job, self._place, groups, self._arriving, before_action=self._mark)
                self._step()
                with meter.section(_STEP):
                    self._step()
            self.memory = meter.sections[_STEP]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del self._executor
        self._stack.close()

    def times(self, num_steps: int = 11, before_step: Callable[[], None] = _nothing) -> ActionTimes:
        """What each action takes: the median of some steps.

        Args:
            num_steps: as many.
            before_step: called before each of them.
        """
        rows = []
        for _ in range(num_steps):
            before_step()
            self._marks.clear()
            self._step()
            self._marks.add()
            rows.append(self._marks.seconds)
        medians = map(statistics.median, zip(*rows, strict=True))
        return tuple(zip(_actions(self._job, self._place), medians, strict=True))

    def _step(self) -> None:
        self._executor.run(self._num_steps)
        self._num_steps += 1

    def _mark(self, *_: object) -> None:
        self._marks.add()


def stage_job(job: TrainingJob, place: Place) -> TrainingJob:
    """The job of a stage's layers alone; parameters that they share with others' layers are their own."""
    last, specs = len(job.layers), model_shape(job).boundaries[place.layer_start]
    layers = job.layers[place.layer_start : place.layer_stop]
    names, all_names = {layer.name for layer in layers}, {layer.name for layer in job.layers}
    build_here = cache(partial(partial, _built_on, job.device))  # one for all layers that are built alike: they are traced once
    layers = [
        replace(
            layer,
            build=build_here(layer.build),
            tied={own: to for own, to in layer.tied.items() if owner_of(to, all_names) in names},
        )
        for layer in layers
    ]
    if place.layer_start > 0:
        layers.insert(0, Layer(name=_ARRIVING, build=partial(_Arriving, specs)))
    return replace(
        job,
        layers=layers,
        loss=job.loss if place.layer_stop == last else _what_follows,
        dataset=_Repeated(job.dataset, job.microbatch_size * place.num_microbatches),
        num_microbatches=place.num_microbatches,
        num_steps=_MANY_STEPS,
    )


def _built_on(device: str, build: Callable[[], nn.Module]) -> nn.Module:
    """Built where it computes: a processor would take minutes to draw a large model's values, which nobody compares here.

    Not where only its shape is asked for.
    """
    if torch.get_default_device().type == "meta":
        return build()
    with torch.device(device):
        return build()


class _Arriving(nn.Module):
    """Stands for the layers before the stage, and is never passed: it tells what crosses the boundary."""

    anchor: Tensor

    def __init__(self, specs: tuple[TensorSpec, ...]) -> None:
        super().__init__()
        self._specs = specs
        self.register_buffer("anchor", torch.empty(0))

    def forward(self) -> Activations:
        """Random numbers of the shapes that arrive, or zeros where they are whole ones."""
        return tuple(_made_up(spec, self.anchor.device) for spec in self._specs)


def _made_up(spec: TensorSpec, device: str | torch.device) -> Tensor:
    make = torch.randn if spec.dtype.is_floating_point else torch.zeros
    return make(spec.shape, dtype=spec.dtype, device=device, requires_grad=spec.requires_grad)


class _Elsewhere:
    """A transport to nowhere; copies of the same arrive every time, since to draw numbers takes as long as a small layer."""

    def __init__(self, arriving: Activations) -> None:
        """Nothing is sent yet.

        Args:
            arriving: what each message to the stage brings.
        """
        self._arriving, self._next = arriving, 0

    def receive(self, spec: TensorSpec, peer: str, tag: int) -> Fetched:  # noqa: ARG002  # as of every transport
        """The next of a message's tensors, which is there once it is waited for."""
        arriving = self._arriving[self._next % len(self._arriving)]
        self._next += 1
        return Fetched(lambda: arriving.detach().clone())

    def send(self, tensor: Tensor, peer: str, tag: int) -> "_Gone":  # noqa: ARG002
        """Let go of it."""
        return _Gone()

    def settle(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""


class _Gone:
    """A message that nobody waits for."""

    def wait(self) -> None:
        """It is gone."""

    def acknowledged(self) -> None:
        """It is gone."""


class _Repeated:
    """A data set's samples over and over."""

    def __init__(self, dataset: Dataset, num_samples: int) -> None:
        self._dataset, self._num_samples = dataset, num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self._dataset[index % len(self._dataset)]


@contextmanager
def _groups() -> Iterator[Groups]:
    """The groups of a worker without peers."""
    rendezvous = Rendezvous(lambda key, value: rendezvous.deliver(key, value))  # noqa: PLW0108  # it is not there yet
    groups = Groups(_WORKER, [_WORKER], (), rendezvous, _WORKER)
    try:
        groups.build(address="127.0.0.1", timeout_seconds=_PATIENCE_SECONDS, operation_timeout_seconds=_PATIENCE_SECONDS)
        yield groups
    finally:
        groups.close()


def _actions(job: TrainingJob, place: Place) -> list[Action]:
    """All layers' passes in the order of the stage that they stand for, with the messages between it and the stage before."""
    first, stop = int(place.layer_start > 0), len(job.layers)
    is_answered = any(spec.requires_grad for spec in model_shape(job).boundaries[first])
    result: list[Action] = []
    for step in place.order:
        own = Action(ActionKind(step.kind.value), step.microbatch, 0, first, stop)
        if first and step.kind is Pass.FORWARD:
            result.append(replace(own, kind=ActionKind.RECEIVE_ACTIVATION, peer=_NOBODY))
        result.append(own)
        if first and is_answered and step.kind in {Pass.BACKWARD, Pass.BACKWARD_INPUT}:
            result.append(replace(own, kind=ActionKind.SEND_GRADIENT, peer=_NOBODY))
    return [*result, Action(ActionKind.APPLY)]


def _executor(job: TrainingJob, place: Place, groups: Groups, arriving: Activations, *, before_action: ActionHook) -> Executor:
    layers, actions = len(job.layers), _actions(job, place)
    whole = Stage(worker=_WORKER, layer_start=0, layer_stop=layers)
    return Executor(
        worker=_WORKER,
        job=job,
        shape=model_shape(job),
        state=ModelState.initial(job, range(layers)),
        plan=Plan(pipelines=(Pipeline(stages=(whole,), num_microbatches=job.num_microbatches),)),
        actions=actions,
        windows=Windows(at_once=tuple(action for action in actions if action.kind in RECEIVES), begun_with={}, over_with={}),
        reductions=(),
        groups=groups,
        transport=_Elsewhere(arriving),
        before_action=before_action,
    )


def _what_follows(outputs: Activations, _: Batch) -> Tensor:
    scalar = what_follows(outputs)
    if scalar is None:
        raise InvalidInputError("no layer of the stage is trained, nor does any before it", field="layers")
    return scalar
