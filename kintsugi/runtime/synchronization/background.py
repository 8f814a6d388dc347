"""What workers that take steps at their own pace agree on: sums in rounds, beside the training."""

from collections.abc import Callable

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.synchronization.monitor import Totals
from kintsugi.runtime.synchronization.transport import Summing, Transport

ROUND_STEPS = 5
"""Steps between the end of one round and a worker's part in the next."""


class Rounds:
    """One worker's part: it gives its report to each round when it comes by, and never waits.

    A round ends once every worker came by, so each worker sees the same sums in the same order. A worker that is lost
    stops the rounds, and with them changes of strategy, until there is a new membership; the training goes on.
    """

    def __init__(self, transport: Transport, report: Callable[[bool], Totals], round_steps: int = ROUND_STEPS) -> None:
        """`report`: of this worker; told whether it trains no further."""
        self._transport, self._report, self._round_steps = transport, report, round_steps
        self._summing: Summing | None = None
        self._steps_left = round_steps
        self.failure: CommunicationError | None = None
        """Why there are no more rounds."""

    def stepped(self) -> Totals | None:
        """This worker took a step; the sum of a round that ended since the last one."""
        try:
            return self._advanced()
        except CommunicationError as error:
            self.failure = error
            return None

    def next(self) -> Totals:
        """Train no further, and wait for the next round.

        Raises:
            CommunicationError: a worker is gone.
        """
        if self.failure is not None:
            raise self.failure
        return self._taken(self._summing or self._begin(is_done=True))

    def _advanced(self) -> Totals | None:
        if self.failure is not None:
            return None
        if self._summing is not None:
            return self._taken(self._summing) if self._summing.is_over else None
        self._steps_left -= 1
        if self._steps_left <= 0:
            self._summing = self._begin(is_done=False)
        return None

    def _taken(self, summing: Summing) -> Totals:
        self._summing, self._steps_left = None, self._round_steps
        return Totals.of(summing.wait())

    def _begin(self, *, is_done: bool) -> Summing:
        return self._transport.begin_sum(self._report(is_done).tensor())
