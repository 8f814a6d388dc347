"""Which samples a step trains on: windows of a seeded permutation per epoch, whatever the plan (ECRL, equations 1, 3 and 4)."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerState:
    """All that has to be remembered to go on: where the next window begins, and of which permutation."""

    epoch: int
    cursor: int
    """Index of the next step within its epoch."""
    seed: int

    def __post_init__(self) -> None:
        checks.non_negative("epoch", self.epoch)
        checks.non_negative("cursor", self.cursor)


class Sampler:
    """Sample indices by step and micro-batch.

    An epoch is a permutation of all samples, seeded by (seed, epoch) and cut into global batches; the rest that does not
    fill one is left out of that epoch. A step's samples depend on nothing else: not on the plan, not on the workers.
    """

    def __init__(self, *, num_samples: int, microbatch_size: int, num_microbatches: int, seed: int) -> None:
        self._num_samples = num_samples
        self._microbatch_size = microbatch_size
        self._global_batch_size = microbatch_size * num_microbatches
        self._seed = seed
        if num_samples < self._global_batch_size:
            raise InvalidInputError("must fill at least one global batch", field="num_samples", value=num_samples)

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches in an epoch."""
        return self._num_samples // self._global_batch_size

    def window(self, step: int) -> tuple[int, ...]:
        """Sample indices of the whole global batch of one step. Shape [global batch]."""
        return self._window(step, 0, self._global_batch_size)

    def indices(self, step: int, microbatch: int) -> tuple[int, ...]:
        """Sample indices of one micro-batch of one step. Shape [microbatch_size]."""
        return self._window(step, microbatch * self._microbatch_size, self._microbatch_size)

    def offset(self, microbatch: int) -> int:
        """Where a micro-batch begins in the window of its step."""
        return microbatch * self._microbatch_size

    def shard(self, step: int, rank: int, world_size: int) -> tuple[int, ...]:
        """Sample indices of one of `world_size` equal ranks: its part of the window. Shape [global batch / world_size].

        Raises:
            InvalidInputError: the ranks cannot share the global batch evenly, or there is no such rank.
        """
        if not 0 <= rank < world_size:
            raise InvalidInputError(f"must be from 0 to {world_size - 1}", field="rank", value=rank)
        size, rest = divmod(self._global_batch_size, world_size)
        if rest:
            raise InvalidInputError(
                f"must divide the global batch of {self._global_batch_size}, which stays constant",
                field="world_size",
                value=world_size,
            )
        return self._window(step, rank * size, size)

    def state(self, step: int) -> SamplerState:
        """The state right before `step`."""
        epoch, cursor = divmod(step, self.steps_per_epoch)
        return SamplerState(epoch=epoch, cursor=cursor, seed=self._seed)

    def step_of(self, state: SamplerState) -> int:
        """The step that follows `state`.

        Raises:
            InvalidInputError: the state is of another order or geometry; going on would repeat samples and miss others.
        """
        if state.seed != self._seed:
            raise InvalidInputError(f"must be {self._seed}, or the samples come in another order", field="seed", value=state.seed)
        if state.cursor >= self.steps_per_epoch:
            raise InvalidInputError(
                f"must be below {self.steps_per_epoch}, the steps of an epoch", field="cursor", value=state.cursor
            )
        return state.epoch * self.steps_per_epoch + state.cursor

    def _window(self, step: int, offset: int, size: int) -> tuple[int, ...]:
        epoch, window = divmod(step, self.steps_per_epoch)
        start = window * self._global_batch_size + offset
        chosen: list[int] = _permutation(self._seed, epoch, self._num_samples)[start : start + size].tolist()
        return tuple(chosen)


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_samples: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) & 0x7FFFFFFFFFFFFFFF)
    return torch.randperm(num_samples, generator=generator)
