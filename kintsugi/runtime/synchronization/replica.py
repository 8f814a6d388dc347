"""One worker's model and optimizer, and the primitives that strategies are written with.

Collective: `mean_gradients` and `mean_model`. Pairwise: `caching.ModelCache`. Whatever they bring is set aside; `apply` alone
touches the parameters, once everything of the step is there on every worker.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError, ReconfigurationError
from kintsugi.runtime.brought import finite_factor, require_plain_steps
from kintsugi.runtime.synchronization import equalizing
from kintsugi.runtime.synchronization.gradients import BUCKET_BYTES, GradientSum
from kintsugi.runtime.synchronization.membership import record_of
from kintsugi.runtime.synchronization.monitor import Monitor, Totals
from kintsugi.runtime.synchronization.rate import NoiseMemory, lengthened
from kintsugi.runtime.synchronization.transport import Summing, Transport, bytes_of
from kintsugi.runtime.workers.commit import StepStatus
from kintsugi.runtime.workers.fit import shape_and_type
from restorer.transport import to_host


@dataclass(frozen=True, slots=True)
class _Update:
    """What a step is about to do."""

    model: Tensor | None
    gradients: Sequence[Tensor | None] | None
    matches_synchronous: bool


class Replica:
    """What a strategy sees of its worker."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        transport: Transport,
        *,
        learning_rate: Callable[[int], float] | None = None,
        max_grad_norm: float | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        num_backwards: int = 1,
    ) -> None:
        """See `SynchronizedOptimizer` for the arguments.

        Raises:
            InvalidInputError: there are no parameters, or of several types, or the optimizer's step needs a closure.
        """
        require_plain_steps(optimizer)
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        dtypes = {str(parameter.dtype) for parameter in self.parameters}
        if len(dtypes) != 1:
            raise InvalidInputError("the optimizer needs parameters of one type", field="optimizer", value=sorted(dtypes))
        self._synchronized = {id(parameter) for parameter in self.parameters}
        every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._still = {number: parameter for number, parameter in enumerate(every) if id(parameter) not in self._synchronized}
        self.num_steps = 0
        """Taken by this worker; the same on all workers after synchronous steps."""
        self.noise = NoiseMemory()
        self.monitor = Monitor()
        self.agreed: Totals | None = None
        """What all workers told in the last synchronous step."""
        self._learning_rate, self._max_grad_norm = learning_rate, max_grad_norm
        self._options = {"bucket_bytes": bucket_bytes, "num_backwards": num_backwards}
        self.has_commit_point = True
        """Whether a synchronous step ends with one."""
        self._reporting: Summing | None = None
        self._update: _Update | None = None
        self._committed: int | None = None
        self.connect(transport)

    @property
    def transport(self) -> Transport:
        """The workers of the present membership."""
        return self._transport

    @property
    def status(self) -> StepStatus:
        """How far this worker is."""
        record = None if self._committed is None else record_of(self._committed)
        return StepStatus(step=self.num_steps, is_reduced=self._update is not None, last_record=record)

    def connect(self, transport: Transport) -> None:
        """Go on among other workers; what was being summed is given up, the gradients are still there."""
        self._transport, self._reporting = transport, None
        self.gradients = GradientSum(self.parameters, transport, **self._options)

    def model(self) -> Tensor:
        """A flat copy of all parameters in host memory."""
        return _flat(self.parameters)

    def digest(self) -> int:
        """63 bits of a hash (XXH3) over all parameters."""
        hashed = xxhash.xxh3_64()
        for parameter in self.parameters:
            hashed.update(bytes_of(to_host(parameter)))
        return hashed.intdigest() >> 1

    def versions(self) -> list[int]:
        """How often each parameter was written to."""
        return [parameter._version for parameter in self.parameters]

    def load(self, model: Tensor) -> None:
        """Overwrite all parameters."""
        _overwrite(self.parameters, model)

    def go_on(self, num_steps: int, noise: NoiseMemory) -> None:
        """With a model and an optimizer that are of so many steps; nothing that was set aside is for the next one."""
        self.num_steps, self.noise, self._update = num_steps, noise, None

    def still(self) -> dict[int, Tensor]:
        """The parameters that are not trained, by their numbers among all."""
        return {number: parameter.detach().cpu() for number, parameter in self._still.items()}

    def load_still(self, arrived: Mapping[int, Tensor]) -> None:
        """Overwrite those that are not trained.

        Raises:
            InvalidInputError: others are not trained, or they are of other shapes or types; nothing was touched.
        """
        own, theirs = ({number: shape_and_type(one) for number, one in still.items()} for still in (self._still, arrived))
        if own != theirs:
            message = (
                f"leaves parameters of {own} untrained here, by number, and of {theirs} with the others; give all workers the same"
            )
            raise InvalidInputError(message, field="optimizer", value=sorted(own))
        for number, parameter in self._still.items():
            _overwrite([parameter], arrived[number].reshape(-1))

    def mean_gradients(self) -> list[Tensor | None]:
        """The mean of all workers' gradients, by parameter; most of it was summed beside the backward pass.

        None where no worker has a gradient, as in torch: such a parameter is not updated.

        Raises:
            CommunicationError: a worker is gone.
            InvalidInputError: a worker changed gradients after the backward pass, or has sparse ones.
        """
        return self.gradients.wait()

    def begin_mean_model(self) -> Summing:
        """Begin to take the mean of all workers' models; `mean_model` waits for it."""
        return self._transport.begin_mean(self.model())

    def mean_model(self, summing: Summing | None = None) -> Tensor:
        """The mean of all workers' models, flat.

        Raises:
            CommunicationError: a worker is gone.
        """
        return (summing or self.begin_mean_model()).wait()

    def begin_report(self) -> None:
        """Tell the others how this worker is doing, beside the backward pass; the first sum of a synchronous step."""
        if self._reporting is None:
            self._reporting = self._transport.begin_sum(self.report(num_steps=self.num_steps + 1).tensor())

    def conclude(self) -> None:
        """Wait for all who train no further either; where a synchronous step begins instead, its first sum is this one.

        Raises:
            CommunicationError: a worker is gone.
        """
        self._transport.begin_sum(self.report(is_done=True).tensor()).wait()

    def apply(
        self, *, model: Tensor | None = None, gradients: Sequence[Tensor | None] | None = None, matches_synchronous: bool = False
    ) -> None:
        """Let the optimizer step, from another model or by other gradients where they are given.

        Under a synchronous strategy the step commits on all workers or on none. Where replicas are equal, one that has
        applied the step shows those that could not what came of it; else a commit point is passed, a sum behind which every
        worker has all that it needs.

        Args:
            model: to take first, flat.
            gradients: to take instead of this worker's own, by parameter.
            matches_synchronous: whether a step by its own gradient is lengthened so that the mean of all models goes as far as by
                their mean gradient; see `rate`.

        Raises:
            CommunicationError: a worker is gone; nothing was touched.
            InvalidInputError: the workers' learning rates differ, or a parameter came to be trained later; nothing was touched.
        """
        self._update = _Update(model, gradients, matches_synchronous)
        agreed = Totals() if self._reporting is None else Totals.of(self._reporting.wait())
        agreed.require_none_late(self._late())
        if self._reporting is not None:
            agreed.require_one_learning_rate(self._rates())
            if self.has_commit_point:
                self._transport.begin_sum(torch.zeros(1)).wait()
            self.agreed, self._reporting, self._committed = agreed, None, self.num_steps
        self._take()

    def roll_forward(self) -> None:
        """Apply what was set aside for a step that another worker has committed; from then on this one has, too.

        Raises:
            ReconfigurationError: nothing was.
        """
        self._committed = self.num_steps
        self._take()

    def _take(self) -> None:
        update, began = self._update, time.perf_counter()
        if update is None:
            raise ReconfigurationError("nothing is there to apply", field="step", value=self.num_steps)
        if update.model is not None:
            self.load(update.model)
        if (rate := self._scheduled_rate()) is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        with self._lent(update.gradients), lengthened(self.optimizer, self._length_ratio(update)):
            if self._max_grad_norm is not None:
                nn.utils.clip_grad_norm_(self.parameters, self._max_grad_norm)
            self.optimizer.step()
        self._update = None
        self.num_steps += 1
        self.gradients.renew()
        self.monitor.applied(time.perf_counter() - began)

    def report(self, *, num_steps: int | None = None, is_done: bool = False) -> Totals:
        """What this worker tells the others.

        Args:
            num_steps: that it has taken then; the present number by default.
            is_done: whether it trains no further.
        """
        num_steps = self.num_steps if num_steps is None else num_steps
        return self.monitor.report(num_steps, self._rates(), is_done=is_done, num_late=len(self._late()))

    def _late(self) -> list[str]:
        """Parameters that the optimizer trains now, and did not when it was wrapped."""
        return [
            f"param_groups[{index}]['params'][{place}]"
            for index, group in enumerate(self.optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
            if parameter.requires_grad and id(parameter) not in self._synchronized
        ]

    def _rates(self) -> list[float]:
        """The learning rates of this step, by parameter group.

        Raises:
            InvalidInputError: the scheduled one is no finite number.
        """
        rate = self._scheduled_rate()
        return [float(group["lr"]) if rate is None else rate for group in self.optimizer.param_groups]

    def _scheduled_rate(self) -> float | None:
        """The learning rate of this step; null where the optimizer's own holds.

        Raises:
            InvalidInputError: it is no finite number.
        """
        if self._learning_rate is None:
            return None
        rate: float = finite_factor(self._learning_rate(self.num_steps), self.num_steps, "learning_rate")
        return rate

    def equalize(self) -> None:
        """Make all replicas one: the mean of parameters, what optimizers agree to keep, and the largest number of steps.

        Raises:
            CommunicationError: a worker is gone; nothing was touched.
            InvalidInputError: optimizers keep different things of one name, or what cannot be sent; nothing was touched.
        """
        counts = torch.zeros(self._transport.num_workers, dtype=torch.int64)
        counts[self._transport.rank] = self.num_steps
        summings = self._transport.begin_sum(counts), self.begin_mean_model()
        num_steps, mean = [int(count) for count in summings[0].wait()], summings[1].wait()
        agreed = equalizing.agreed_state(self.optimizer, self.parameters, self._transport, num_steps)
        self.load(mean)
        equalizing.take(self.optimizer, self.parameters, agreed)
        self.num_steps = max(num_steps)

    def _length_ratio(self, update: _Update) -> float:
        """Learning rate of this step over the one that is set."""
        num_workers = self._transport.num_workers
        self.noise.stepped(self.optimizer, 1 if update.gradients is None else num_workers, num_workers)
        return self.noise.ratio(num_workers) if update.matches_synchronous else 1.0

    @contextmanager
    def _lent(self, gradients: Sequence[Tensor | None] | None) -> Iterator[None]:
        """Other gradients for the time being; this worker's own are not copied and stay its own."""
        if gradients is None:
            yield
            return
        own = [parameter.grad for parameter in self.parameters]
        try:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
            yield
        finally:
            for parameter, kept in zip(self.parameters, own, strict=True):
                parameter.grad = kept


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """A copy in host memory."""
    return torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors])


@torch.no_grad()
def _overwrite(tensors: Iterable[Tensor], flat: Tensor) -> None:
    begin = 0
    for tensor in tensors:
        tensor.copy_(flat[begin : begin + tensor.numel()].view(tensor.shape))
        begin += tensor.numel()
