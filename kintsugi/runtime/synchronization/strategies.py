"""Strategies: what a worker does with its gradients at the end of a step, and beside the next one.

A strategy is written with the primitives of `Replica` (collective) and of `caching`: `ModelCache`, `cached_model` (pairwise). See
`examples/adaptive_synchronization.py` for one of a user's own.
"""

import random
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import ClassVar

from kintsugi.core import checks
from kintsugi.core.errors import CommunicationError, InvalidInputError
from kintsugi.runtime import endings
from kintsugi.runtime.synchronization.caching import ModelCache
from kintsugi.runtime.synchronization.policies import ASYNCHRONOUS, SYNCHRONOUS
from kintsugi.runtime.synchronization.replica import Replica
from kintsugi.runtime.synchronization.transport import Summing


class Strategy(ABC):
    """How replicas synchronise. One instance serves one worker; it may keep state between steps."""

    name: ClassVar[str]
    is_synchronous: ClassVar[bool] = True
    """Whether all workers step together, which sums over all of them need. A worker that does not may use pairs alone."""
    keeps_replicas_equal: ClassVar[bool] = False
    """Whether replicas that are equal before a step are equal after it; else they are made so where that is needed."""

    @abstractmethod
    def step(self, replica: Replica) -> None:
        """Synchronise and call `replica.apply` once. Nothing else may change the parameters or this strategy's state before it."""

    def enter(self, replica: Replica) -> None:  # noqa: B027  # most have nothing to begin
        """This strategy takes over, between two steps, on all workers."""

    def begin(self, replica: Replica) -> None:  # noqa: B027
        """The next step begins: what may run beside its computing. Not called when a membership begins."""

    def applied(self, replica: Replica) -> None:  # noqa: B027
        """A step was applied here: what follows from it on this worker alone. Also called where it was rolled forward."""

    def gradient_ready(self, replica: Replica, number: int) -> None:  # noqa: B027
        """In the backward pass: the gradient of a parameter, by its number in `replica.parameters`, is there."""

    def leave(self, replica: Replica) -> None:
        """Another strategy takes over, or training ends, on all workers: wait for what is under way."""
        self.abandon(replica)

    def abandon(self, replica: Replica) -> None:  # noqa: B027
        """The membership is over: give up what is under way, alone, and leave the model in the parameters."""


class SynchronousSGD(Strategy):
    """Every worker applies the mean of all gradients: the same function as one worker with all the data."""

    name = SYNCHRONOUS
    keeps_replicas_equal = True

    def gradient_ready(self, replica: Replica, number: int) -> None:
        """Sum it as soon as its bucket is complete."""
        replica.gradients.ready(number)

    def step(self, replica: Replica) -> None:
        """Apply the mean gradient."""
        replica.apply(gradients=replica.mean_gradients())


class ModelAveraging(Strategy):
    """Synchronous model averaging: every worker is pulled to the mean model, then applies its own gradient.

    The mean is of the models that the step began with, so it is computed beside forward and backward pass (SMA of CROSSBOW,
    Koliousis et al. 2019, with the mean itself as the central model).
    """

    name = "model_averaging"

    def __init__(self, pull_ratio: float = 0.5, *, matches_synchronous: bool = False) -> None:
        """Takes over nothing yet.

        Args:
            pull_ratio: of the way to the mean model that a replica goes each step, above 0 and at most 1.
            matches_synchronous: see `PairwiseAveraging`.

        Raises:
            InvalidInputError: the ratio is outside, or `matches_synchronous` neither true nor false.
        """
        checks.positive("pull_ratio", pull_ratio)
        checks.flag("matches_synchronous", matches_synchronous)
        if pull_ratio > 1.0:
            raise InvalidInputError("must be above 0 and at most 1", field="pull_ratio", value=pull_ratio)
        self._pull_ratio, self._matches_synchronous = pull_ratio, matches_synchronous
        self._summing: Summing | None = None

    def begin(self, replica: Replica) -> None:
        """Begin to sum the models."""
        self._summing = replica.begin_mean_model()

    def step(self, replica: Replica) -> None:
        """Go towards the mean model, then along the own gradient."""
        mean = replica.mean_model(self._summing)
        replica.apply(model=replica.model().lerp_(mean, self._pull_ratio), matches_synchronous=self._matches_synchronous)
        self._summing = None

    def leave(self, replica: Replica) -> None:
        """Everybody has begun the sum; it ends before another one begins."""
        if self._summing is not None:
            self._summing.wait()
        self.abandon(replica)

    def abandon(self, replica: Replica) -> None:  # noqa: ARG002
        """Forget the sum."""
        self._summing = None


class PairwiseAveraging(Strategy):
    """AD-PSGD (Lian et al., Asynchronous Decentralized Parallel SGD, ICML 2018): nobody waits for anybody.

    A worker computes on a model while a thread averages that model's cached copy with one random peer's, at most once per
    step; at the end of the step the gradient is applied to whatever the copy is by then. Workers of even rank ask, those of
    odd rank answer: a bipartite graph, so that every model is part of one average at a time. A peer that does not answer
    is left alone for a while.
    """

    name = ASYNCHRONOUS
    is_synchronous = False

    def __init__(self, seed: int = 0, *, matches_synchronous: bool = False) -> None:
        """Takes over nothing yet.

        Args:
            seed: of the choice of peers.
            matches_synchronous: whether steps are lengthened so that the mean of all models goes as far in a step as it would
                under synchronous SGD, where noise prevails in gradients: for Adam and its like; it changes nothing for SGD.

        Raises:
            InvalidInputError: the seed is no whole number, or `matches_synchronous` neither true nor false.
        """
        checks.whole("seed", seed)
        checks.flag("matches_synchronous", matches_synchronous)
        self._seed, self._matches_synchronous = seed, matches_synchronous
        self._cache: ModelCache | None = None
        self._versions: list[int] = []
        """Of the parameters, which change wherever somebody writes to them."""
        self._thread: _AveragingThread | None = None

    @property
    def num_averaged(self) -> int:
        """Averages that this worker's model took part in since the strategy took over."""
        return 0 if self._cache is None else self._cache.num_averaged

    def enter(self, replica: Replica) -> None:
        """Cache the model, answer for it, and begin to ask."""
        transport = replica.transport
        self._cache = ModelCache(replica.model())
        self._versions = replica.versions()
        transport.serve(self._cache.answer)
        if transport.rank % 2 == 0 and transport.num_workers > 1:
            self._thread = _AveragingThread(self._cache, replica, self._seed)

    def begin(self, replica: Replica) -> None:  # noqa: ARG002
        """Average once beside this step, unless the last time is still going on."""
        if self._thread is not None:
            self._thread.wake()

    def step(self, replica: Replica) -> None:
        """Apply the own gradient to the averaged model.

        Raises:
            InvalidInputError: somebody else has changed the parameters, which would be lost.
        """
        assert self._cache is not None
        if replica.versions() != self._versions:
            message = (
                "parameters were changed outside of the optimizer's steps, and are about to be overwritten by the averaged model: "
                "load a model before the state of the optimizer, and change it nowhere else"
            )
            raise InvalidInputError(message, field="model", value=self.name)
        with self._cache.held() as model:
            replica.apply(model=model, matches_synchronous=self._matches_synchronous)
            model.copy_(replica.model())
        self._versions = replica.versions()

    def leave(self, replica: Replica) -> None:
        """Ask no more; answer until nobody asks."""
        self._end_thread()
        replica.transport.begin_sum(replica.report().tensor()).wait()
        self.abandon(replica)

    def abandon(self, replica: Replica) -> None:
        """Stop, with the averaged model in the parameters."""
        self._end_thread()
        replica.transport.serve(None)
        if self._cache is not None:
            with self._cache.held() as model:
                replica.load(model)
            self._cache = None

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None


class _AveragingThread:
    """Averages a cached model with random peers, one at a time, when it is woken."""

    def __init__(self, cache: ModelCache, replica: Replica, seed: int) -> None:
        self._cache, self._transport = cache, replica.transport
        self._peers = range(1, self._transport.num_workers, 2)
        self._random = random.Random(f"{seed}:{self._transport.rank}")  # noqa: S311  # no secret
        self._wakened = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"averaging-{self._transport.rank}", daemon=True)
        self._thread.start()
        endings.before_exit(self.close)

    def wake(self) -> None:
        """Average once more; it goes without saying where that is under way."""
        self._wakened.set()

    def close(self) -> None:
        """End, after what is under way, which is bounded by the transport's timeouts."""
        self._is_closed = True
        self._wakened.set()
        self._thread.join()
        endings.is_over(self.close)

    def _work(self) -> None:
        while self._wakened.wait() and not self._is_closed:
            self._wakened.clear()
            with suppress(CommunicationError):  # the transport leaves that peer alone for a while; others are there
                self._average()

    def _average(self) -> None:
        peers = [rank for rank in self._peers if self._transport.can_ask(rank)]
        if peers:
            self._cache.average_with(self._transport, self._random.choice(peers))
