"""The model that a worker trains and what trains it: gradients as one vector, and the atomic update with their mean."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.brought import require_plain_steps, with_own_memory
from kintsugi.runtime.digests import device_kind, entries_digest
from kintsugi.runtime.generators import mixed, seeded
from kintsugi.runtime.optimizer_state import OptimizerState
from kintsugi.runtime.overlay import flat_state
from kintsugi.runtime.overlay.flat_state import FlatState, Schedule
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.reduction import Vector
from kintsugi.runtime.overlay.vectors import VectorPool
from kintsugi.runtime.verdicts import Vote
from restorer.packing import PackedState


def _nothing() -> None:
    pass


class TrainedState:
    """Model, optimizer and schedules of one worker. Only what is trained is reduced, and buffers if they are averaged."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        options: OverlayOptions,
        *,
        schedules: Sequence[Schedule] = (),
        before_step: Callable[[], None] = _nothing,
    ) -> None:
        """Take a model that is built already; gradients that it has are of an earlier life, and dropped.

        Raises:
            InvalidInputError: nothing in it is trained, or the optimizer cannot step with a mean alone.
        """
        require_plain_steps(optimizer)
        self.model, self.optimizer = with_own_memory(model), optimizer
        self.steps = 0
        """Optimizer steps of the job that this state has seen."""
        self._options, self._schedules, self._before_step = options, tuple(schedules), before_step
        trained = {name: parameter for name, parameter in flat_state.optimized(model, optimizer) if parameter.requires_grad}
        self._kept = OptimizerState(optimizer)
        self._trained = list(trained.values())
        if not self._trained:
            raise InvalidInputError("steps no parameter of the model that is trained", field="optimizer")
        self._flat = FlatState(
            model=model,
            optimizer=optimizer,
            schedules=self._schedules,
            replicated=options.replicated,
            reduced=[*trained, *(name for name, _ in model.named_buffers() if options.averages_buffers)],
            chunk_bytes=options.chunk_bytes,
        )
        self._agreed: list[Tensor] = []
        """What all workers had of each averaged buffer after the last step. Changes are averaged: constants stay as they are."""
        self._agree()
        self._kind = device_kind(self._trained[0].device)
        is_double = any(one.dtype.to_real() == torch.float64 for one in self._trained)
        self._dtype = torch.float64 if is_double else torch.float32
        self._vectors = VectorPool(self.num_elements, self._dtype)
        optimizer.zero_grad(set_to_none=True)

    @property
    def num_elements(self) -> int:
        """Length of the vector that is reduced: gradients, averaged buffers, and which parameters had a gradient."""
        return sum(_as_real(one).numel() for one in (*self._trained, *self._buffers)) + len(self._trained)

    @property
    def vector_bytes(self) -> int:
        """Of the vector that is reduced."""
        return self.num_elements * self._dtype.itemsize

    @property
    def state_bytes(self) -> int:
        """Of the state, once the optimizer has stepped."""
        return self._flat.expected_bytes()

    def memory(self) -> Vector:
        """Memory for one vector; nobody else writes to it as long as somebody refers to it."""
        return self._vectors.take()

    def require_all_reduced(self) -> None:
        """Require that no parameter came to be trained since: nothing of it would be reduced.

        Raises:
            InvalidInputError: one did; the first by name.
        """
        reduced = {id(parameter) for parameter in self._trained}
        for name, parameter in flat_state.optimized(self.model, self.optimizer):
            if parameter.requires_grad and id(parameter) not in reduced:
                message = (
                    f"parameter {name!r} came to be trained after the coordinator was made, and would not be reduced: have it "
                    "require gradients before, with a learning rate of 0 until then, or begin another job from there"
                )
                raise InvalidInputError(message, field="optimizer", value=name)

    def gathered(self, weight: float) -> Vector:
        """This worker's gradients and averaged buffers as one vector, times its weight.

        A parameter without a gradient adds zeros, and counts as such. Sums are made in 32 bits, or in 64 where a trained parameter
        has them.
        """
        vector = self.memory()
        own = torch.from_numpy(vector)
        with torch.no_grad():
            for parameter, piece in zip(self._trained, self._pieces(own, self._trained), strict=True):
                if parameter.grad is None:
                    piece.zero_()
                else:
                    piece.copy_(_as_real(parameter.grad.detach().resolve_conj()).reshape(-1))
            for buffer, agreed, piece in zip(self._buffers, self._agreed, self._buffer_pieces(own), strict=True):
                piece.copy_((self._wide(_as_real(buffer)) - self._base(agreed)).reshape(-1))
            self._presence(own).copy_(torch.tensor([parameter.grad is not None for parameter in self._trained]))
            if weight != 1.0:
                own.mul_(weight)
        return vector

    def apply(self, vector: Vector) -> None:
        """Step with the mean of all workers: the same on every replica, bit for bit, also where the optimizer draws numbers.

        A parameter that had a gradient on none of them is not updated, as in torch.
        """
        mean = torch.from_numpy(vector)
        had_one = (self._presence(mean) > 0.0).tolist()
        with torch.no_grad():
            for parameter, piece, has_mean in zip(self._trained, self._pieces(mean, self._trained), had_one, strict=True):
                if not has_mean:
                    parameter.grad = None
                    continue
                if parameter.grad is None or parameter.grad.is_conj():
                    parameter.grad = torch.empty_like(parameter)
                gradient = _as_real(parameter.grad)
                gradient.copy_(piece.view(gradient.shape))
            for buffer, agreed, piece in zip(self._buffers, self._agreed, self._buffer_pieces(mean), strict=True):
                base = self._base(agreed)
                change = piece if base.dtype.is_floating_point else piece.round().long()
                _as_real(buffer).copy_(base + change.view(base.shape))
        self._agree()
        with seeded(mixed(0, self.steps), self._trained[0].device):
            self._before_step()
            self.optimizer.step()
            for schedule in self._schedules:
                schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1

    def skip(self) -> None:
        """Nobody added anything to a step: undo what passes did to gradients and averaged buffers, which differs by worker."""
        with torch.no_grad():
            for buffer, agreed in zip(self._buffers, self._agreed, strict=True):
                _as_real(buffer).copy_(agreed)
        self.optimizer.zero_grad(set_to_none=True)

    def packed(self) -> PackedState:
        """The state as a range of bytes over the live tensors.

        Raises:
            InvalidInputError: the optimizer or a schedule keeps what cannot be sent.
        """
        self._kept.require_nothing_beside()
        return self._as_it_is()

    def _as_it_is(self) -> PackedState:
        return PackedState(self._flat.entries(self.steps))

    def load(self, arrived: PackedState) -> None:
        """Become equal to what arrived.

        Raises:
            ReconfigurationError: it is the state of another model, or of one that is trained in another way.
        """
        self.steps = self._flat.load(arrived.entries)
        self._agree()

    def vote(self) -> Vote:
        """By what a replica is told from one that is none. Buffers that are not averaged are each worker's own."""
        agreed = {(str(number), "agreed"): tensor for number, tensor in enumerate(self._agreed)}
        return Vote(self._kind, entries_digest(self._flat.replica() | agreed))

    def digest(self) -> str:
        """SHA-256 of the whole state."""
        return flat_state.digest(self._as_it_is())

    @property
    def _buffers(self) -> list[Tensor]:
        """Those that are averaged, as they are now: a forward pass may put another tensor in the place of one."""
        return list(self.model.buffers()) if self._options.averages_buffers else []

    def _agree(self) -> None:
        """All workers have the same buffers now."""
        self._agreed = [_as_real(buffer).detach().clone() for buffer in self._buffers]

    def _base(self, agreed: Tensor) -> Tensor:
        """What changes of a buffer are told from: 0 where it was infinite, for nothing can be added to that."""
        is_real = agreed.dtype.is_floating_point
        return self._wide(torch.nan_to_num(agreed, nan=0.0, posinf=0.0, neginf=0.0) if is_real else agreed)

    def _wide(self, real: Tensor) -> Tensor:
        """A buffer's numbers in a type in which differences are exact enough."""
        return real.to(torch.promote_types(real.dtype, self._dtype) if real.dtype.is_floating_point else torch.int64)

    def _buffer_pieces(self, vector: Tensor) -> list[Tensor]:
        return self._pieces(vector[sum(_as_real(one).numel() for one in self._trained) :], self._buffers)

    def _presence(self, vector: Tensor) -> Tensor:
        """Above 0 for each trained parameter that had a gradient. Shape [trained parameters]."""
        return vector[-len(self._trained) :]

    @staticmethod
    def _pieces(vector: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        sizes = [_as_real(one).numel() for one in tensors]
        return list(torch.split(vector[: sum(sizes)], sizes))


def _as_real(tensor: Tensor) -> Tensor:
    """A view of both parts of complex numbers; others as they are."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
