"""The mean of all workers' gradients, summed in buckets beside the backward pass; the gradients themselves stay as they are.

The last bucket waits for the step: it tells all workers whether one of them has gradients that cannot be summed so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from kintsugi.core.errors import CommunicationError, InvalidInputError
from kintsugi.runtime.synchronization.transport import Summing, Transport

BUCKET_BYTES = 4 * 2**20
_CHANGED = (
    "a worker changed gradients after the backward pass, beside which they are summed ({count} of them here): scale them down by "
    "`max_grad_norm`, not in the script"
)
_SPARSE = "a worker has sparse gradients, which are not summed ({count} of them here): say sparse=False of its nn.Embedding"
_REFUSALS = (_CHANGED, _SPARSE)


@dataclass(slots=True)
class Bucket:
    """Parameters that are reduced together."""

    parameters: tuple[int, ...]
    """By their numbers."""
    flat: Tensor
    """What is summed, in host memory."""
    parts: tuple[Tensor, ...]
    """Views of `flat` in the parameters' shapes."""
    present: Tensor
    """View of `flat`: which parameters have a gradient on some worker, more than zero. Shape [parameters]."""
    refused: Tensor
    """View of `flat`: what some worker is to be refused for, more than zero; the last bucket alone tells. Shape [refusals]."""
    missing: set[int]
    """Parameters whose gradients are not there yet."""
    summing: Summing | None = None


@dataclass
class GradientSum:
    """One step's reduction: begun bucket by bucket as gradients come, in one order on all workers.

    As gradients come last layer first, so do buckets. A bucket is begun once its own and all earlier ones are complete; the last
    one, which the end of the backward pass alone completes, in `wait`.
    """

    parameters: Sequence[nn.Parameter]
    transport: Transport
    bucket_bytes: int = BUCKET_BYTES
    num_backwards: int = 1
    """Backward passes per step, whose gradients autograd adds up."""
    buckets: list[Bucket] = field(init=False)
    _passes: list[int] = field(init=False)
    num_begun: int = field(default=0, init=False)
    """Buckets whose sum is under way or over, in order."""
    _seen: dict[int, tuple[Tensor | None, int]] = field(default_factory=dict, init=False)
    """Gradients that are complete, and how often each had been changed until then; by number of the parameter."""
    _failure: CommunicationError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Lay the buckets out."""
        numbers = _cut(self.parameters, self.bucket_bytes)
        self.buckets = [_empty_bucket(self.parameters, own) for own in numbers]
        self._bucket_of = {number: bucket for bucket in self.buckets for number in bucket.parameters}
        self._passes = [0] * len(self.parameters)

    def ready(self, number: int) -> None:
        """The gradient of a parameter went through one backward pass; begins what is complete with it.

        Raises:
            InvalidInputError: it went through more passes than a step has; the sum of the first ones is under way.
        """
        self._passes[number] += 1
        if self._passes[number] > self.num_backwards:
            raise InvalidInputError(
                f"a parameter had more backward passes than this since the last step; give the number of passes per step, "
                f"or call step after {self.num_backwards}",
                field="num_backwards",
                value=self._passes[number],
            )
        if self._passes[number] == self.num_backwards:
            self._seen[number] = _mark(self.parameters[number].grad)
            self._bucket_of[number].missing.discard(number)
            self._begin_complete(self.buckets[:-1])

    def wait(self) -> list[Tensor | None]:
        """All means, by parameter; begins what is not yet.

        What has no gradient on some workers counts as zero there, and what has none on any has no mean: no update then.

        Raises:
            CommunicationError: a worker is gone. The workers' own gradients are untouched.
            InvalidInputError: a worker changed gradients after the backward pass, or has sparse ones; all workers find the same.
        """
        self.begin_rest()
        if self._failure is not None:
            raise self._failure
        means: dict[int, Tensor | None] = {}
        for bucket in self.buckets:
            means.update(self.settled(bucket))
        for refused, message, numbers in zip(self.buckets[-1].refused.tolist(), _REFUSALS, self._refused(), strict=True):
            if refused:
                raise InvalidInputError(message.format(count=len(numbers)), field="gradients", value=numbers)
        return [means[number] for number in range(len(self.parameters))]

    def begin_rest(self) -> None:
        """The backward passes are over: begin what is not yet."""
        for bucket in self.buckets:
            bucket.missing.clear()
        self._begin_complete(self.buckets)

    def settled(self, bucket: Bucket) -> dict[int, Tensor | None]:
        """Wait for the mean of one bucket that was begun; by number of the parameter."""
        assert bucket.summing is not None
        bucket.summing.wait()
        present = bucket.present.tolist()
        return {
            number: part if is_present else None
            for number, part, is_present in zip(bucket.parameters, bucket.parts, present, strict=True)
        }

    def renew(self) -> None:
        """Begin the next step's sum with what comes next; the means of the last one are gone."""
        for bucket in self.buckets:
            bucket.missing, bucket.summing = set(bucket.parameters), None
        self._passes = [0] * len(self.parameters)
        self._seen.clear()
        self.num_begun = 0

    def _refused(self) -> tuple[list[int], list[int]]:
        """Numbers of the parameters whose gradients are others now than when they were complete, and of those with sparse ones."""
        now = ((number, *_mark(self.parameters[number].grad)) for number in self._seen)
        changed = [n for n, gradient, version in now if gradient is not self._seen[n][0] or version != self._seen[n][1]]
        return changed, [n for n, parameter in enumerate(self.parameters) if _is_sparse(parameter.grad)]

    def _begin_complete(self, buckets: Sequence[Bucket]) -> None:
        """A worker's loss is told by `wait`: a backward pass is no place to handle it."""
        try:
            while self._failure is None and self.num_begun < len(buckets) and not buckets[self.num_begun].missing:
                self._begin(buckets[self.num_begun])
                self.num_begun += 1
        except CommunicationError as error:
            self._failure = error

    def _begin(self, bucket: Bucket) -> None:
        for number, part, present in zip(bucket.parameters, bucket.parts, bucket.present, strict=True):
            gradient = self.parameters[number].grad
            present.fill_(gradient is not None)
            if gradient is None or _is_sparse(gradient):
                part.zero_()
            else:
                part.copy_(gradient)
        if bucket is self.buckets[-1]:
            for refused, numbers in zip(bucket.refused, self._refused(), strict=True):
                refused.fill_(bool(numbers))
        bucket.summing = self.transport.begin_mean(bucket.flat)


def _mark(gradient: Tensor | None) -> tuple[Tensor | None, int]:
    """The gradient, and how often it was changed in place; changes through `.data` are not seen."""
    return gradient, 0 if gradient is None else gradient._version


def _is_sparse(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.layout != torch.strided


def _cut(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[int]]:
    """Numbers of parameters, last first, in buckets of at most so many bytes, or of one parameter, and of one type."""
    buckets: list[list[int]] = []
    filled, dtype = 0, None
    for number in reversed(range(len(parameters))):
        parameter = parameters[number]
        if not buckets or filled + parameter.nbytes > bucket_bytes or parameter.dtype != dtype:
            buckets.append([])
            filled, dtype = 0, parameter.dtype
        buckets[-1].append(number)
        filled += parameter.nbytes
    return buckets


def _empty_bucket(parameters: Sequence[nn.Parameter], numbers: Sequence[int]) -> Bucket:
    sizes = [parameters[number].numel() for number in numbers]
    flat = torch.zeros(sum(sizes) + len(sizes) + len(_REFUSALS), dtype=parameters[numbers[0]].dtype)
    *pieces, present, refused = torch.split(flat, [*sizes, len(sizes), len(_REFUSALS)])
    parts = tuple(piece.view(parameters[number].shape) for piece, number in zip(pieces, numbers, strict=True))
    return Bucket(tuple(numbers), flat, parts, present, refused, set(numbers))
