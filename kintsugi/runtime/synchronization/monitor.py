"""How long a worker's steps take, and how much of that is synchronising; told to all workers as one small sum."""

import time
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.synchronization.policies import Observation

WINDOW_STEPS = 10
RATE_TOLERANCE_RATIO = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """One worker's report, or the sum over all workers'."""

    num_workers: float = 1.0
    step_seconds: float = 0.0
    """Of a worker's steps in view, their mean."""
    own_seconds: float = 0.0
    """The part of it that is not spent on synchronising."""
    num_steps: float = 0.0
    steps_since_change: float = 0.0
    num_settled: float = 0.0
    """Workers with a full view since the last change."""
    num_done: float = 0.0
    """Workers that train no further."""
    learning_rate: float = 0.0
    squared_learning_rate: float = 0.0

    def tensor(self) -> Tensor:
        """As numbers to be summed."""
        return torch.tensor([getattr(self, name) for name in _NAMES], dtype=torch.float64)

    @classmethod
    def of(cls, total: Tensor) -> Self:
        """From the sum."""
        return cls(**dict(zip(_NAMES, total.tolist(), strict=True)))

    def observation(self, strategy: str) -> Observation:
        """What a policy is asked about, from the sum over all workers' reports."""
        count = self.num_workers
        return Observation(
            strategy=strategy,
            num_workers=int(count),
            num_steps=int(self.num_steps / count),
            steps_since_change=int(self.steps_since_change / count),
            step_seconds=self.step_seconds / count,
            throughput_ratio=self.own_seconds / self.step_seconds if self.step_seconds > 0 else 1.0,
            is_settled=self.num_settled == count,
        )

    def require_one_learning_rate(self) -> None:
        """Require that all workers step alike, which equal replicas depend on.

        Raises:
            InvalidInputError: they do not; all workers find the same.
        """
        spread = self.num_workers * self.squared_learning_rate - self.learning_rate**2
        if spread > RATE_TOLERANCE_RATIO * self.learning_rate**2:
            raise InvalidInputError(
                "the workers' learning rates differ: schedulers count each worker's own steps; give `learning_rate` as a "
                "function of the steps that the workers agree on",
                field="learning_rate",
                value=self.learning_rate / self.num_workers,
            )


_NAMES = tuple(field.name for field in fields(Totals))


class Monitor:
    """Watches one worker's steps."""

    def __init__(self, window_steps: int = WINDOW_STEPS) -> None:
        """`window_steps`: in view."""
        self._window_steps = window_steps
        self.renew()

    def renew(self) -> None:
        """Forget what was seen: strategy or workers changed."""
        self._steps: deque[tuple[float, float]] = deque(maxlen=self._window_steps)
        self._ended_at: float | None = None
        self._applied_seconds = 0.0
        self._num_steps = 0

    def applied(self, seconds: float) -> None:
        """The optimizer itself took so long, which any strategy costs."""
        self._applied_seconds += seconds

    def stepped(self, synchronized_seconds: float) -> None:
        """A step ended, of which so long was spent outside of the trainer's own code; the first one has no known beginning."""
        now = time.perf_counter()
        if self._ended_at is not None:
            whole = now - self._ended_at
            self._steps.append((whole, whole - max(synchronized_seconds - self._applied_seconds, 0.0)))
        self._ended_at, self._applied_seconds = now, 0.0
        self._num_steps += 1

    def report(self, num_steps: int, learning_rate: float, *, is_done: bool = False) -> Totals:
        """What this worker tells the others."""
        totals = Totals(
            num_steps=num_steps,
            steps_since_change=self._num_steps,
            num_settled=float(len(self._steps) == self._window_steps),
            num_done=float(is_done),
            learning_rate=learning_rate,
            squared_learning_rate=learning_rate**2,
        )
        if not self._steps:
            return totals
        whole, own = (sum(values) / len(self._steps) for values in zip(*self._steps, strict=True))
        return replace(totals, step_seconds=whole, own_seconds=own)
