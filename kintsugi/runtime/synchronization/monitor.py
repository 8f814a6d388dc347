"""How long a worker's steps take, and how much of that is synchronising; told to all workers as one small sum."""

import hashlib
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.synchronization.policies import Observation

WINDOW_STEPS = 10
_NUM_MARKS = 8


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
    num_late: float = 0.0
    """Parameters that came to be trained since the optimizer was made, of which nothing is synchronised."""
    rate_marks: tuple[float, ...] = (0.0,) * _NUM_MARKS
    """A digest of all learning rates, in whole numbers below 65,536. Shape [8]."""
    squared_rate_marks: tuple[float, ...] = (0.0,) * _NUM_MARKS

    def tensor(self) -> Tensor:
        """As numbers to be summed."""
        plain = [getattr(self, name) for name in _NAMES]
        return torch.tensor([*plain, *self.rate_marks, *self.squared_rate_marks], dtype=torch.float64)

    @classmethod
    def of(cls, total: Tensor) -> Self:
        """From the sum."""
        numbers = total.tolist()
        plain, marks, squared = numbers[: len(_NAMES)], numbers[len(_NAMES) : -_NUM_MARKS], numbers[-_NUM_MARKS:]
        return cls(**dict(zip(_NAMES, plain, strict=True)), rate_marks=tuple(marks), squared_rate_marks=tuple(squared))

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

    def require_none_late(self, late: Sequence[str]) -> None:
        """Require that everything that is trained is synchronised.

        Args:
            late: what is not, of this worker.

        Raises:
            InvalidInputError: some worker has such a parameter; all workers find the same.
        """
        if late or self.num_late:
            where = ", ".join(late) or "a parameter of another worker"
            raise InvalidInputError(
                f"{where} came to be trained after this optimizer was made, and would not be synchronised: from then on train with "
                "a new SynchronizedOptimizer on all workers, which goes on from the `state_dict` of this one",
                field="optimizer",
                value=list(late),
            )

    def require_one_learning_rate(self, rates: Sequence[float]) -> None:
        """Require that all workers step alike, which equal replicas depend on: whole numbers are equal where their spread is 0.

        Args:
            rates: this worker's, by parameter group.

        Raises:
            InvalidInputError: they do not; all workers find the same.
        """
        pairs = zip(self.rate_marks, self.squared_rate_marks, strict=True)
        if any(int(self.num_workers) * int(squared) != int(mark) ** 2 for mark, squared in pairs):
            raise InvalidInputError(
                f"the workers' learning rates or numbers of parameter groups differ, {list(rates)} by group here: give all workers "
                "the same groups, and since schedulers count each worker's own steps, `learning_rate` as a function of the steps "
                "that the workers agree on",
                field="learning_rate",
                value=list(rates),
            )


_NAMES = tuple(field.name for field in fields(Totals) if not field.name.endswith("rate_marks"))


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

    def report(self, num_steps: int, rates: Sequence[float], *, is_done: bool = False, num_late: int = 0) -> Totals:
        """What this worker, whose parameter groups have these learning rates, tells the others."""
        marks = _marks(rates)
        totals = Totals(
            num_steps=num_steps,
            steps_since_change=self._num_steps,
            num_settled=float(len(self._steps) == self._window_steps),
            num_done=float(is_done),
            num_late=float(num_late),
            rate_marks=marks,
            squared_rate_marks=tuple(mark**2 for mark in marks),
        )
        if not self._steps:
            return totals
        whole, own = (sum(values) / len(self._steps) for values in zip(*self._steps, strict=True))
        return replace(totals, step_seconds=whole, own_seconds=own)


def _marks(rates: Sequence[float]) -> tuple[float, ...]:
    """128 bits of the SHA-256 of the rates: sums of such numbers and of their squares are exact for over a million workers."""
    digest = hashlib.sha256(array("d", rates).tobytes()).digest()
    return tuple(float(mark) for mark in array("H", digest[: 2 * _NUM_MARKS]))
