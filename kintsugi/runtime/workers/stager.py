"""Stages what a plan gives a worker to do: its state, moved, built or read, and the executor of its actions."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import torch

from estimator.message_windows import windows
from estimator.program import Action, checksum, list_digest, parse_action
from kintsugi.core.decision import StateKind
from kintsugi.core.errors import InvalidInputError, ReconfigurationError
from kintsugi.core.plan import Plan
from kintsugi.runtime.checkpoints.bookkeeper import Bookkeeper
from kintsugi.runtime.digests import device_kind
from kintsugi.runtime.likeness import Traits, traits
from kintsugi.runtime.messages import Prepare
from kintsugi.runtime.models import ModelShape, TrainingJob, model_shape
from kintsugi.runtime.records.tracing import ActionTrace
from kintsugi.runtime.workers.beginning import require_alike
from kintsugi.runtime.workers.commit import Permit, StepStatus, anything
from kintsugi.runtime.workers.executor import ActionHook, Executor
from kintsugi.runtime.workers.replicas import Comparison, slots_of
from kintsugi.runtime.workers.state import ModelState
from kintsugi.runtime.workers.wiring import Wiring
from restorer.groups import Groups
from restorer.reconfigure import migrate
from restorer.staging import Staging


@dataclass(slots=True)
class Stager:
    """One worker's; what it has, and trains with, stays as it is."""

    worker: str
    job: TrainingJob
    books: Bookkeeper
    require_current: Callable[[int], None]
    """Raises CommunicationError where an attempt was called off."""
    before_action: ActionHook
    trace: ActionTrace
    wiring: Wiring
    permit: Permit = anything
    compare_every_steps: int | None = None
    staging: Staging = field(init=False)
    """State on its way here, over all attempts."""
    _shape: ModelShape = field(init=False)

    def __post_init__(self) -> None:
        self._shape = model_shape(self.job)
        self.staging = Staging(torch.device(self.job.device))

    def traits(self) -> Traits:
        """What of the job has to be the same for all workers."""
        return traits(self.job, self._shape)

    def compare(self, message: Prepare, groups: Groups, present: Executor | None) -> frozenset[int]:
        """Compare what the members hold of layers that some of them are to let go of, while those can still tell.

        Returns:
            Layers that this worker has from others, and that were not compared since.

        Raises:
            CommunicationError: the attempt was called off, or a peer is gone.
            ReplicasDifferError: holders of a layer do not hold the same; nothing moves.
        """
        copied, state = (present.copied, present.state) if present is not None else (frozenset[int](), None)
        if not message.compared:
            return copied
        comparison = Comparison(self.worker, message.members, message.compared, kind=self._kind, copied=copied)
        comparison.require_agreement(message.start_step, comparison.heard(state, groups), self.job.layers)
        return comparison.copied

    def state(self, message: Prepare, groups: Groups, present: ModelState | None) -> ModelState | None:
        """The state for the worker's slots; null where it has none. Sends what others need of the present one.

        Raises:
            CommunicationError: the attempt was called off, or a peer is gone.
            ReconfigurationError: state is missing, or sources disagree.
            InvalidInputError: the plan is of another job, or a layer begins with other values than on its other workers.
        """
        _require_plan_of(self.job, message.plan)
        layers = message.plan.layers_of.get(self.worker)
        restore = message.restore
        old = present if not (restore and restore.is_whole) else None
        require_current = partial(self.require_current, message.attempt)
        if message.is_initial:
            return self._initial(message.plan, layers, groups, require_current) if layers is not None else None
        arrived = migrate(
            message.migration,
            self.worker,
            self.staging,
            version=message.start_step,
            export=old.export if old is not None else _holds_nothing,
            open_transport=groups.stream_transport,
        )
        if layers is None:
            return None
        if restore is not None:
            arrived |= self.books.read(restore, layers, old, require_current)
        return (old or ModelState(self.job, {}, {})).rebuilt(layers, arrived, require_current)

    def _initial(self, plan: Plan, layers: Sequence[int], groups: Groups, require_current: Callable[[], None]) -> ModelState:
        state = ModelState.initial(self.job, layers, require_current)
        require_alike(self.worker, self.job, state, plan, groups)
        return state

    def executor(
        self,
        message: Prepare,
        actions: tuple[Action, ...],
        groups: Groups,
        state: ModelState | None,
        *,
        copied: Collection[int] = frozenset(),
    ) -> Executor | None:
        """What runs the plan's steps here; null without a slot. `copied` are the present one's, which may have compared nothing."""
        if state is None:
            return None
        executor = Executor(
            worker=self.worker,
            job=self.job,
            shape=self._shape,
            state=state,
            plan=message.plan,
            actions=actions,
            windows=windows(actions, message.places),
            reductions=message.reductions,
            groups=groups,
            transport=self.wiring.transport(groups, message, actions, self._shape),
            before_action=self.before_action,
            recorder=self.books.recorder(message, self.job),
            trace=self.trace,
            permit=self.permit,
            comparison=self._comparison(message, copied),
        )
        executor.status = StepStatus(step=message.start_step, last_record=message.record)
        self.trace.follow(message.plan)
        return executor

    @property
    def _kind(self) -> int:
        return device_kind(torch.device(self.job.device))

    def _comparison(self, message: Prepare, copied: Collection[int]) -> Comparison:
        return Comparison(
            self.worker,
            message.plan.workers,
            slots_of(message.plan),
            kind=self._kind,
            every_steps=self.compare_every_steps,
            copied={*copied, *arriving(message, self.worker)},
        )


def checked_actions(worker: str, message: Prepare) -> tuple[Action, ...]:
    """A worker's actions.

    Raises:
        ReconfigurationError: the list is not the one that the checksum was made of.
    """
    own_is_right = worker not in message.digests or message.digests[worker] == list_digest(message.actions, message.places)
    if not own_is_right or checksum(message.digests, message.reductions) != message.checksum:
        raise ReconfigurationError("the program does not have the checksum it came with", field="checksum", value=message.checksum)
    return tuple(parse_action(text) for text in message.actions)


def _require_plan_of(job: TrainingJob, plan: Plan) -> None:
    for noun, planned, own in (
        ("layers", plan.num_layers, len(job.layers)),
        ("micro-batches", plan.num_microbatches, job.num_microbatches),
    ):
        if planned != own:
            message = f"is of {planned} {noun} where the job has {own}; plan it from the job's own profile and settings"
            raise InvalidInputError(message, field="plan", value=planned)


def arriving(message: Prepare, worker: str) -> set[int]:
    """Layers that a worker gets with an attempt, from others or from a checkpoint: it says of them what their source says."""
    moved = {transfer.layer for transfer in message.migration.transfers if transfer.target == worker}
    read = message.restore.layers if message.restore is not None else ()
    return moved | {layer for layer in read if worker in message.plan.holders[layer]}


def _holds_nothing(layer: int, kind: StateKind) -> NoReturn:
    raise ReconfigurationError(
        f"this worker was asked for the {kind.value} state of layer {layer} and holds none", field="migration"
    )
