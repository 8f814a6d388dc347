"""Interprets a worker's action list: one step of training, up to and through the commit point."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from estimator.message_windows import Windows
from estimator.program import Action, ActionKind
from kintsugi.core.logs import get_logger
from kintsugi.core.plan import Plan, Reduction
from kintsugi.runtime.brought import as_announced, require_dense_gradients
from kintsugi.runtime.checkpoints.recording import Cadence, Recorder
from kintsugi.runtime.models import (
    Activations,
    Batch,
    ModelShape,
    TrainingJob,
    batch_of,
    loss_of,
    noted,
    sampler_of,
    train_layer,
)
from kintsugi.runtime.records.tracing import ActionTrace
from kintsugi.runtime.workers.backward import PassedStage
from kintsugi.runtime.workers.buckets import BucketInFlight, taken_gradients
from kintsugi.runtime.workers.commit import CommitRecord, CommitVector, Permit, StepStatus, anything, divisor_of, require_each_once
from kintsugi.runtime.workers.demands import Watch, scale, squared_norm
from kintsugi.runtime.workers.numbering import Numbering
from kintsugi.runtime.workers.ownership import owned_parameters, require_reduced
from kintsugi.runtime.workers.replicas import Comparison
from kintsugi.runtime.workers.state import ModelState
from restorer.groups import Groups
from restorer.transport import Receiving, Sending, Transport

ActionHook = Callable[[int, Action], None]
"""Called with step and action before each action; raises to leave the step."""


class Executor:
    """Runs the steps of one generation on one worker."""

    def __init__(
        self,
        *,
        worker: str,
        job: TrainingJob,
        shape: ModelShape,
        state: ModelState,
        plan: Plan,
        actions: Sequence[Action],
        windows: Windows,
        reductions: Sequence[Reduction],
        groups: Groups,
        transport: Transport,
        before_action: ActionHook,
        recorder: Recorder | None = None,
        trace: ActionTrace | None = None,
        permit: Permit = anything,
        comparison: Comparison | None = None,
    ) -> None:
        self.state = state
        self._permit = permit
        self._comparison = comparison or Comparison(worker, plan.workers, ())
        self.groups = groups
        self.status = StepStatus(step=0)
        self._job = job
        self._shape = shape
        self._plan = plan
        self._actions = tuple(actions)
        self._windows = windows
        self._reductions = tuple(reductions)
        self._transport = transport
        self._before_action = before_action
        require_reduced(plan, shape, reductions)
        self._owned = owned_parameters(worker, plan, shape)
        self._sampler = sampler_of(job)
        self._recorder = recorder or Recorder(None, Cadence(), self._sampler, 0, range(0))
        self._trace = trace or ActionTrace(worker, None)
        self._numbering = Numbering(shape)
        self._watches: dict[int, Watch] = {}
        self._forwards = {(own.microbatch, own.layer_start): own for own in self._actions if own.kind is ActionKind.FORWARD}
        self._batches: dict[tuple[int, Action], Batch] = {}
        """Made before their passes, by step and forward pass."""
        self._has_told_of_no_count = False
        self._begin(0)

    def _begin(self, step: int) -> None:
        self._step = step
        self._batches = {(own, action): batch for (own, action), batch in self._batches.items() if own == step}
        self._losses: list[tuple[Tensor, Tensor]] = []
        """Sums and their counts, on the device: to read one is to wait for it."""
        self._counted = torch.zeros(self._job.num_microbatches, dtype=torch.float64)
        self._in_flight: dict[tuple[int, int], PassedStage] = {}
        self._activations: dict[tuple[int, int], Activations] = {}
        self._gradients: dict[tuple[int, int], Activations] = {}
        self._receiving: dict[Action, list[Receiving]] = {}
        self._sending: dict[Action, list[Sending]] = {}
        self._reducing: list[tuple[Action, BucketInFlight]] = []

    def run(self, step: int) -> CommitRecord:
        """Train one step: every action in order, through the commit point.

        Raises:
            CommunicationError: a peer broke or the step was called off; `status` says how far it came.
            ReplicasDifferError: holders of a layer do not hold the same; nobody applies the step.
        """
        self._begin(step)
        self.status = StepStatus(step=step, last_record=self.status.last_record)
        self._recorder.begin()
        for parameter in self.state.parameters.values():
            parameter.grad = None
        self._begin_to_receive(self._windows.at_once)
        self._trace.begin()
        for action in self._actions:
            self._before_action(step, action)
            _PERFORM[action.kind](self, action)
            self._trace.did(action)
        self._trace.committed(step)
        assert self.status.last_record is not None
        return self.status.last_record

    def compare(self) -> None:
        """Compare what the workers of the plan hold after the last step: all of them at once.

        Raises:
            CommunicationError: a peer broke, or the attempt was called off.
            ReplicasDifferError: holders of a layer do not hold the same.
        """
        if self._comparison.is_on:
            heard = self._comparison.heard(self.state, self.groups)
            self._comparison.require_agreement(self.status.step, heard, self._job.layers)

    @property
    def copied(self) -> frozenset[int]:
        """Layers that this worker has from others, and that were not compared since."""
        return self._comparison.copied

    def leave(self) -> None:
        """Let go of what a step that was called off holds; its gradients stay, in case another worker has committed it."""
        self._begin(self._step)

    def roll_forward(self, record: CommitRecord) -> None:
        """Apply the gradients of a step whose commit point another worker has passed."""
        self._apply(record)

    def _begin_to_receive(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._receiving[action] = [
                self._transport.receive(spec, action.peer, self._numbering.tag(action.message, index))
                for index, spec in enumerate(self._numbering.specs(action.message))
            ]

    def _batch(self, step: int, action: Action) -> Batch:
        """The fields of a micro-batch; nothing where neither a layer nor the loss of this stage looks at them."""
        layers = self._job.layers[action.layer_start : action.layer_stop]
        if action.layer_stop < len(self._job.layers) and not any(layer.inputs for layer in layers):
            return {}
        return batch_of(self._job, self._sampler, step, action.microbatch)

    def _make_batch(self, step: int, forward: Action | None) -> None:
        """Of a forward pass that is to come, while there is something else to wait for."""
        if forward is not None and step < self._job.num_steps:
            self._batches[step, forward] = self._batch(step, forward)

    def _forward(self, action: Action) -> None:
        ahead = self._batches.pop((self._step, action), None)
        batch = self._batch(self._step, action) if ahead is None else ahead
        arrived = self._activations.pop((action.microbatch, action.layer_start), ())
        inputs = tuple(
            tensor.detach().requires_grad_(spec.requires_grad)
            for tensor, spec in zip(arrived, self._shape.boundaries[action.layer_start], strict=True)
        )
        values = inputs
        for index in range(action.layer_start, action.layer_stop):
            with (watch := self._watch(index)).unchanged():
                values = train_layer(self._job, index, watch.module, values, batch, step=self._step, microbatch=action.microbatch)
        loss = None
        if action.layer_stop == len(self._job.layers):
            loss, count = loss_of(self._job, values, batch)
            loss = loss / self._job.num_microbatches
            self._losses.append((loss.detach(), count))
            self._counted[action.microbatch] += 1
        samples = self._sampler.indices(self._step, action.microbatch)
        self._recorder.passed(self._sampler.offset(action.microbatch), samples, action.layer_start, action.layer_stop)
        if loss is None:
            values = as_announced(values, self._shape.boundaries[action.layer_stop], self._job.layers[action.layer_stop - 1].name)
            self._activations[action.microbatch, action.layer_stop] = values
        self._in_flight[action.microbatch, action.layer_start] = PassedStage.of(inputs, values, loss)

    def _watch(self, index: int) -> Watch:
        """Over a layer that is held here."""
        module = self.state.modules[index]
        if index not in self._watches or self._watches[index].module is not module:
            self._watches[index] = Watch(self._job.layers[index].name, module)
        return self._watches[index]

    def _backward(self, action: Action) -> None:
        """The whole backward pass or its input part; either way the stage before gets its gradient."""
        place = (action.microbatch, action.layer_start)
        gradients = self._gradients.pop((action.microbatch, action.layer_stop), ())
        self._activations.pop((action.microbatch, action.layer_stop), None)
        with noted(self._where(action)):
            if action.kind is ActionKind.BACKWARD:
                self._gradients[place] = self._in_flight.pop(place).backward(gradients)
            else:
                self._gradients[place] = self._in_flight[place].backward_input(gradients)

    def _backward_weight(self, action: Action) -> None:
        with noted(self._where(action)):
            self._in_flight.pop((action.microbatch, action.layer_start)).backward_weight()

    def _where(self, action: Action) -> str:
        first, last = (self._job.layers[index].name for index in (action.layer_start, action.layer_stop - 1))
        return f"in layers {first!r} to {last!r}, in the backward pass of micro-batch {action.microbatch} of step {self._step}"

    def _send(self, action: Action) -> None:
        self._begin_to_receive(self._windows.begun_with.get(action, ()))
        store = self._activations if action.kind is ActionKind.SEND_ACTIVATION else self._gradients
        self._sending[action] = [
            self._transport.send(tensor, action.peer, self._numbering.tag(action.message, index))
            for index, tensor in enumerate(store.pop((action.microbatch, action.boundary)))
        ]

    def _receive(self, action: Action) -> None:
        if action.kind is ActionKind.RECEIVE_ACTIVATION:
            self._make_batch(self._step, self._forwards.get((action.microbatch, action.boundary)))
        store = self._activations if action.kind is ActionKind.RECEIVE_ACTIVATION else self._gradients
        store[action.microbatch, action.boundary] = tuple(receiving.wait() for receiving in self._receiving.pop(action))
        for over in self._windows.over_with.get(action, ()):
            for sending in self._sending.pop(over):
                sending.acknowledged()

    def _reduce(self, action: Action) -> None:
        """Begin to sum one bucket's gradients over its holders; `_commit` waits for the sum."""
        reduction = self._reductions[action.reduction]
        shapes = {name: shape for layer in reduction.layers for name, shape in self._shape.parameters[layer].items()}
        if not shapes:
            return
        require_dense_gradients({name: self.state.parameters[name] for name in shapes if name in self.state.parameters})
        flat = taken_gradients(self.state.parameters, shapes, dtype=self._job.dtype, device=self._job.device)
        self._reducing.append((action, BucketInFlight(self.groups.begin_all_reduce(flat, reduction.workers), flat, shapes)))

    def _commit(self, _: Action) -> None:
        self._await_sends()
        opinion = self._opinion(self._step)
        self._await_reductions()
        self._complete_gradients()
        own = self._own_part(opinion)
        self.status = StepStatus(step=self._step, is_reduced=True, last_record=self.status.last_record)
        self._recorder.before_commit(self._step)
        total = own.packed()
        self.groups.all_reduce(total, self._plan.workers)
        self._trace.waited()
        record = self._record_of(CommitVector.unpacked(total, len(self._counted)))
        require_each_once(record)
        self._permit(record)
        self.status = StepStatus(step=self._step, is_reduced=True, last_record=record)
        self._apply(record)

    def _await_sends(self) -> None:
        for sending in itertools.chain.from_iterable(self._sending.values()):
            sending.wait()
        self._sending.clear()
        self._transport.settle()

    def _await_reductions(self) -> None:
        for begun, bucket in self._reducing:
            bucket.settle(self.state.parameters)
            self._trace.settled(begun, bucket.reducing.span)
        self._reducing.clear()

    def _own_part(self, opinion: Tensor) -> CommitVector:
        """What this worker adds at the commit point; on a CUDA device the next batch is made while that is still computed."""
        squared = squared_norm([parameter.grad for name, parameter in self.state.parameters.items() if name in self._owned])
        if squared.is_cuda:
            self._make_batch(self._step + 1, next(iter(self._forwards.values()), None))
        squared, *losses = _on_host([squared, *itertools.chain.from_iterable(self._losses)])
        return CommitVector(
            squared_norm=squared,
            asks_for_checkpoint=torch.tensor(float(self._recorder.asks_for_checkpoint(self._step)), dtype=torch.float64),
            loss=sum(map(torch.stack, zip(losses[::2], losses[1::2], strict=True)), torch.zeros(2, dtype=torch.float64)),
            trained=self._counted,
            opinion=opinion,
        )

    def _record_of(self, total: CommitVector) -> CommitRecord:
        """What all workers' parts together tell of the step.

        Raises:
            ReplicasDifferError: holders of a layer hold different states.
            InvalidInputError: the losses' counts are no numbers to divide by.
        """
        if len(total.opinion):
            self._comparison.require_agreement(self._step, total.opinion.tolist(), self._job.layers)
        loss, count = total.loss.tolist()
        divisor = divisor_of(count, self._job.num_microbatches)
        if loss and not count:
            self._tell_of_no_count(loss)
        return CommitRecord(
            step=self._step,
            squared_norm=total.squared_norm.item() / divisor**2,
            loss=loss / divisor,
            divisor=divisor,
            microbatches=tuple(map(int, total.trained.tolist())),
            asks_for_checkpoint=total.asks_for_checkpoint.item() > 0,
        )

    def _tell_of_no_count(self, loss: float) -> None:
        if self._has_told_of_no_count:
            return
        self._has_told_of_no_count = True
        told = "a step's losses are sums that are not 0, of 0 tokens or samples as the loss counts: they are not divided by a count"
        get_logger("kintsugi.runtime").warning(told, step=self._step, loss=loss)

    def _opinion(self, step: int) -> Tensor:
        """What this worker says of the state before `step`; nothing where that is not compared."""
        return self._comparison.statement(self.state) if self._comparison.is_due(step) else torch.empty(0, dtype=torch.float64)

    def _complete_gradients(self) -> None:
        """A parameter that no micro-batch reached has a gradient of zero, with one holder as with many."""
        require_dense_gradients(self.state.parameters)
        for parameter in self.state.parameters.values():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _apply(self, record: CommitRecord) -> None:
        limit, factor = self._job.max_grad_norm, 1 / record.divisor
        if limit is not None:
            factor *= min(1.0, limit / (math.sqrt(record.squared_norm) + 1e-6))
        if factor != 1.0:
            scale([parameter.grad for parameter in self.state.parameters.values() if parameter.grad is not None], factor)
        self.state.set_learning_rate(record.step)
        self.state.update(record.step)
        self.status = StepStatus(step=record.step + 1, last_record=record)
        self._recorder.committed(record)
        self._comparison.took(has_checkpoint=record.asks_for_checkpoint)


def _on_host(values: Iterable[Tensor]) -> list[Tensor]:
    """Single numbers, in 64 bits in host memory; the device is waited for once, whatever it has of them."""
    exact = [value.double() for value in values]
    away = [value for value in exact if value.is_cuda]
    arrived = iter(torch.stack(away).cpu() if away else ())
    return [next(arrived) if value.is_cuda else value for value in exact]


_PERFORM: dict[ActionKind, Callable[[Executor, Action], None]] = {
    ActionKind.FORWARD: Executor._forward,
    ActionKind.BACKWARD: Executor._backward,
    ActionKind.BACKWARD_INPUT: Executor._backward,
    ActionKind.BACKWARD_WEIGHT: Executor._backward_weight,
    ActionKind.SEND_ACTIVATION: Executor._send,
    ActionKind.SEND_GRADIENT: Executor._send,
    ActionKind.RECEIVE_ACTIVATION: Executor._receive,
    ActionKind.RECEIVE_GRADIENT: Executor._receive,
    ActionKind.REDUCE: Executor._reduce,
    ActionKind.APPLY: Executor._commit,
}
"""By function, not by bound method: an executor that held itself would outlive its generation."""
