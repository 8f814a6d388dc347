"""Whether a plain script steps its scheduler before it commits: a checkpoint, which a commit takes, lacks what comes after."""

import json

from torch import Tensor

from kintsugi.core.logs import get_logger
from kintsugi.runtime.plain_state import Stateful
from kintsugi.runtime.values import to_plain


class SchedulerWatch:
    """Compares a scheduler's state between a commit and the step that follows, and warns once where it has moved on.

    Who steps it at the beginning of a step does so before the first one, too, and again in the next life: that is as good.
    """

    def __init__(self, scheduler: Stateful | None) -> None:
        """As it is when the first step of this life may begin."""
        self._scheduler = scheduler
        self._is_asked = scheduler is not None
        self._is_first = True
        self._seen = self._state()

    def committed(self) -> None:
        """A commit is over."""
        if self._is_asked:
            self._seen = self._state()

    def begins(self, step: int) -> None:
        """The samples of the step that follows the latest commit, or of the first one, are asked for."""
        if not self._is_asked:
            return
        is_first, self._is_first = self._is_first, False
        if self._state() == self._seen:
            return
        self._is_asked = False
        if not is_first:
            get_logger("kintsugi.runtime").warning(
                "the scheduler is stepped after commit, so checkpoints lack it: step it before; mean(loss) is that of all ranks",
                step=step,
            )

    def _state(self) -> str:
        if self._scheduler is None:
            return ""
        tensors: list[Tensor] = []
        text = json.dumps(to_plain(self._scheduler.state_dict(), "scheduler", tensors))
        return text + repr([tensor.tolist() for tensor in tensors])
