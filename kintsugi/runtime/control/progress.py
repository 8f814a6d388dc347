"""What the job has trained so far, step by step."""

import math
import statistics
import time
from collections.abc import Callable

from kintsugi.core.logs import get_logger
from kintsugi.runtime.messages import StepDone

_TELL_SECONDS = 30.0


class Progress:
    """Loss and time of every committed step. A step that was told twice was committed once: all tell the same loss."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._log = get_logger("kintsugi.runtime")
        self.losses: dict[int, float] = {}
        """Mean loss over the global batch, by step."""
        self.microbatches: dict[int, tuple[int, ...]] = {}
        """How often the loss of each micro-batch counted, by step. Shape [steps][micro-batches]."""
        self._seconds: dict[int, tuple[int, float]] = {}
        """Attempt in which each step was done, and the slowest worker's time."""
        self.moved_at = self._told_at = clock()
        """When the latest step was told of."""
        self._is_warned = False

    @property
    def next_step(self) -> int:
        """The first step that is not done."""
        return max(self.losses, default=-1) + 1

    def take(self, message: StepDone) -> None:
        """A worker did a step. The log says so now and then, and warns of the first loss that is no number."""
        self.losses[message.step] = message.loss
        self.microbatches[message.step] = message.microbatches
        self._seconds[message.step] = max((message.attempt, message.seconds), self._seconds.get(message.step, (0, 0.0)))
        self.moved_at = self._clock()
        if not math.isfinite(message.loss) and not self._is_warned:
            self._is_warned = True
            self._log.warning("the loss is no finite number; training goes on", step=message.step, loss=message.loss)
        if self.moved_at - self._told_at >= _TELL_SECONDS:
            self._told_at = self.moved_at
            self._log.info("trains", step=message.step, loss=message.loss, step_seconds=round(self.median_seconds, 3))

    def adopt(self, step: int, loss: float, microbatches: tuple[int, ...]) -> None:
        """A step was done in an earlier life of the job."""
        self.losses[step] = loss
        self.microbatches[step] = microbatches

    def rewind(self, step: int) -> None:
        """Forget `step` and all later ones: they are trained again."""
        for values in (self.losses, self.microbatches, self._seconds):
            for done in [done for done in values if done >= step]:
                del values[done]

    def seconds(self, step: int) -> float:
        """What the slowest worker took for a step; not a number for one of an earlier life."""
        return self._seconds.get(step, (0, math.nan))[1]

    @property
    def median_seconds(self) -> float:
        """The median step so far; 0 before the first."""
        return statistics.median(seconds for _, seconds in self._seconds.values()) if self._seconds else 0.0

    @property
    def longest_seconds(self) -> float:
        """The longest step so far; 0 before the first."""
        return max((seconds for _, seconds in self._seconds.values()), default=0.0)
