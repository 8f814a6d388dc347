"""Where the time of a job went, and what it trained: every second stands in exactly one account."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kintsugi.simulator.running import Running, StepPrice

ROUNDING = 1e-9
"""Share of a step by which sums of floats may miss its end."""


class Account(StrEnum):
    """What a second of a job's time was spent on."""

    COMPUTE = "compute"
    REDUNDANT = "redundant"
    BUBBLE = "bubble"
    REDUCTION = "reduction"
    CHECKPOINT = "checkpoint"
    TRANSITION = "transition"
    LOST = "lost"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of training at one rate, or none."""

    start_seconds: float
    stop_seconds: float
    microbatches_per_second: float


@dataclass(slots=True)
class Ledger:
    """Accounts of one job. Steps and checkpoints count when they are complete."""

    seconds: dict[Account, float] = field(default_factory=lambda: dict.fromkeys(Account, 0.0))
    num_microbatches: int = 0
    num_steps: int = 0
    num_lost_steps: int = 0
    since: dict[Account, float] = field(default_factory=lambda: dict.fromkeys(Account, 0.0))
    """Of the steps since the last checkpoint."""
    steps_since: int = 0
    microbatches_since: int = 0
    under_way: StepPrice | None = None
    """Of a step that began at another price."""

    def spend(self, account: Account, seconds: float) -> None:
        """Enter time that trains nothing."""
        self.seconds[account] += seconds

    def train(self, running: Running, seconds: float, pause_seconds: float, slack_seconds: float = 0.0) -> float:
        """Train for at most so long; only complete steps and complete checkpoints count.

        A checkpoint is taken at the end of the first step that brings the training since the last one to the interval.

        Args:
            running: what is carried out.
            seconds: that there are.
            pause_seconds: of a checkpoint.
            slack_seconds: by which the clock that they were read from may be wrong.

        Returns:
            Seconds that are left at the end and that no account has yet: the beginning of a step or of a checkpoint.
        """
        step, left = running.price.iteration_seconds, seconds
        assert seconds >= 0, "a ledger does not go back in time"
        if self.under_way is not None:
            own = self.under_way.iteration_seconds
            if not _num_whole(left, own, slack_seconds):
                return left
            self._commit(running, self.under_way, 1)
            self.under_way, left = None, max(0.0, left - own)
        while True:
            due = self._steps_until_checkpoint(running)
            if due == 0:
                if left < pause_seconds - min(slack_seconds, pause_seconds / 2):
                    return _rest(left, slack_seconds)
                self.spend(Account.CHECKPOINT, pause_seconds)
                self.checkpoint()
                left = max(0.0, left - pause_seconds)
                continue
            if due is not None and not self.steps_since:
                left = self._train_periods(running, due, left, pause_seconds)
            possible = _num_whole(left, step, slack_seconds)
            count = possible if due is None else min(possible, due)
            self._commit(running, running.price, count)
            left = max(0.0, left - count * step)
            if due is None or count < due:
                return _rest(left, slack_seconds)

    def _train_periods(self, running: Running, num_steps: int, seconds: float, pause_seconds: float) -> float:
        """All but the last of the times that so many steps and their checkpoint fit into the seconds; what is left of these."""
        period = num_steps * running.price.iteration_seconds + pause_seconds
        times = max(0, int(seconds / period) - 1)
        if times:
            self._commit(running, running.price, times * num_steps)
            self.spend(Account.CHECKPOINT, times * pause_seconds)
            self.checkpoint()
        return seconds - times * period

    def next_end(self, running: Running, pause_seconds: float) -> float:
        """How long the step or the checkpoint takes that is under way or comes next, in seconds."""
        if self.under_way is not None:
            return self.under_way.iteration_seconds
        return pause_seconds if self._steps_until_checkpoint(running) == 0 else running.price.iteration_seconds

    def reprice(self, before: Running, after: Running, begun_seconds: float) -> None:
        """Give what is left of the step under way another price; a checkpoint under way goes on as it is.

        Args:
            before: what was carried out, with the former price.
            after: what is from now on.
            begun_seconds: for which the step, or the checkpoint, has been under way.
        """
        if begun_seconds <= 0.0 or (self.under_way is None and self._steps_until_checkpoint(before) == 0):
            return
        present = self.under_way or before.price
        left = max(0.0, present.iteration_seconds - begun_seconds) / before.price.iteration_seconds
        self.under_way = present.going_on(left, before.price, after.price)

    def give_up(self) -> None:
        """What is under way never ends."""
        self.under_way = None

    def _steps_until_checkpoint(self, running: Running) -> int | None:
        """Complete steps until a checkpoint is due, one at least after each; None where none ever is."""
        interval = running.checkpoint_interval_seconds
        if interval is None:
            return None
        missing = (interval - sum(self.since.values())) / running.price.iteration_seconds
        return max(0 if self.steps_since else 1, math.ceil(missing - ROUNDING))

    def _commit(self, running: Running, price: StepPrice, count: int) -> None:
        for account, seconds in _parts(price):
            self.seconds[account] += count * seconds
            self.since[account] += count * seconds
        self.num_steps += count
        self.steps_since += count
        self.num_microbatches += count * running.plan.num_microbatches
        self.microbatches_since += count * running.plan.num_microbatches

    def checkpoint(self) -> None:
        """All that was trained is safe now."""
        self.since = dict.fromkeys(Account, 0.0)
        self.steps_since = self.microbatches_since = 0

    def roll_back(self) -> None:
        """What was trained since the last checkpoint is lost."""
        for account, seconds in self.since.items():
            self.seconds[account] -= seconds
            self.seconds[Account.LOST] += seconds
        self.num_steps -= self.steps_since
        self.num_lost_steps += self.steps_since
        self.num_microbatches -= self.microbatches_since
        self.checkpoint()

    def shares(self) -> Mapping[str, float]:
        """Seconds of every account, in the order of the accounts."""
        return {account.value: self.seconds[account] for account in Account}


def _num_whole(seconds: float, length: float, slack_seconds: float) -> int:
    """How many of a length fit into seconds that sums of floats, and the clock, have made a little less than they are."""
    return int(seconds / length + min(0.5, ROUNDING + slack_seconds / length))


def _rest(seconds: float, slack_seconds: float) -> float:
    """What is left, none where it is no more than the clock may be wrong by."""
    return seconds if seconds > slack_seconds else 0.0


def _parts(price: StepPrice) -> tuple[tuple[Account, float], ...]:
    return (
        (Account.COMPUTE, price.compute_seconds),
        (Account.REDUNDANT, price.redundant_seconds),
        (Account.BUBBLE, price.bubble_seconds),
        (Account.REDUCTION, price.reduction_seconds),
    )
