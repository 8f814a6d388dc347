"""Which samples a step trains on: windows of a seeded permutation per epoch, whatever the plan."""

from functools import lru_cache

import torch

from kintsugi.core.errors import InvalidInputError


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

    def indices(self, step: int, microbatch: int) -> tuple[int, ...]:
        """Sample indices of one micro-batch of one step. Shape [microbatch_size]."""
        epoch, window = divmod(step, self.steps_per_epoch)
        start = window * self._global_batch_size + microbatch * self._microbatch_size
        chosen: list[int] = _permutation(self._seed, epoch, self._num_samples)[start : start + self._microbatch_size].tolist()
        return tuple(chosen)


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_samples: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) & 0x7FFFFFFFFFFFFFFF)
    return torch.randperm(num_samples, generator=generator)
