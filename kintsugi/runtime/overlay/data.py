"""Which samples a worker trains on at a step: its own (several parties), or its share of everybody's (one owner)."""

from collections.abc import Sequence

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.sampler import Sampler


class PartySamples:
    """Samples that one party alone has: they come and go with it. Give `len(indices)` as the weight of an update."""

    def __init__(self, *, num_samples: int, batch_size: int, seed: int = 0) -> None:
        """An order of the party's own samples.

        Raises:
            InvalidInputError: it has less than one batch.
        """
        self._sampler = Sampler(num_samples=num_samples, microbatch_size=batch_size, num_microbatches=1, seed=seed)

    def indices(self, step: int) -> tuple[int, ...]:
        """This party's samples at a step. Shape [batch_size]."""
        return self._sampler.window(step)


class SharedSamples:
    """Samples of one owner that every worker can read: a step's batch is the same whoever is there, dealt anew to those who are."""

    def __init__(self, *, num_samples: int, batch_size: int, seed: int = 0) -> None:
        """An order of all samples; `batch_size` is that of all workers together.

        Raises:
            InvalidInputError: there is less than one batch.
        """
        self._sampler = Sampler(num_samples=num_samples, microbatch_size=batch_size, num_microbatches=1, seed=seed)

    def indices(self, step: int, members: Sequence[str], worker: str) -> tuple[int, ...]:
        """The worker's part of a step's batch, equal for all members or one sample more. Give its length as the weight.

        Raises:
            InvalidInputError: the worker is no member.
        """
        order = sorted(members)
        if worker not in order:
            raise InvalidInputError("is none of the members", field="worker", value=worker)
        window, rank = self._sampler.window(step), order.index(worker)
        return window[rank * len(window) // len(order) : (rank + 1) * len(window) // len(order)]
