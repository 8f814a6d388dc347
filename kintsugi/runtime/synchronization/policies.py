"""When to change how replicas synchronise, and why: policies over what all workers saw. Without torch.

Every worker asks its own copy of the policy about the same observations in the same order, so all of them find the same
choice: a policy is deterministic, and keeps what it remembers in `memory`, which joining workers are given.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError

SYNCHRONOUS = "synchronous_sgd"
ASYNCHRONOUS = "pairwise_averaging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What all workers together saw over their last steps; the same for each of them."""

    strategy: str
    """The one that is followed now."""
    num_workers: int
    num_steps: int
    """Taken since training began; the mean over workers that take them at their own pace, rounded down."""
    steps_since_change: int
    """Taken since the strategy or the workers changed; the mean likewise."""
    step_seconds: float
    """Mean over the workers and over the steps in view."""
    throughput_ratio: float
    """A worker's throughput over what it would have alone: the share of a step that is not spent on synchronising, 0..1."""
    is_settled: bool
    """Whether every worker has had as many steps since the last change as are in view."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy to follow from the next step on."""

    strategy: str
    reason: str
    """For people: what was seen, and why that decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A change of strategy."""

    step: int
    """The first one under the new strategy, by this worker's count."""
    before: str
    after: str
    reason: str
    num_workers: int


class Policy(ABC):
    """Chooses a strategy by its name."""

    def __init__(self) -> None:
        self.memory: dict[str, float] = {}
        """All that choices depend on beside the observation; handed over to workers that join."""

    @property
    def strategies(self) -> Collection[str]:
        """Names of those that it may choose, as far as they are known beforehand; the optimizer has to be given them."""
        return ()

    @abstractmethod
    def choose(self, seen: Observation) -> Choice | None:
        """Another strategy to follow; None to go on."""


class WorkerCountPolicy(Policy):
    """One strategy from so many workers on."""

    def __init__(self, strategies: Mapping[int, str]) -> None:
        """Strategies by the smallest number of workers that they are meant for; one must be meant for 1.

        Raises:
            InvalidInputError: none is, or a number is no whole one above 0.
        """
        super().__init__()
        checks.instance("strategies", strategies, Mapping, hint='such as {1: "synchronous_sgd", 8: "pairwise_averaging"}')
        for count in strategies:
            checks.count("strategies", count)
        if 1 not in strategies:
            raise InvalidInputError("give the strategy for 1 worker and more", field="strategies", value=dict(strategies))
        self._strategies = dict(sorted(strategies.items()))

    @property
    def strategies(self) -> Collection[str]:
        """Those of all numbers of workers."""
        return self._strategies.values()

    def choose(self, seen: Observation) -> Choice | None:
        """The strategy with the largest number that is reached."""
        least = max(count for count in self._strategies if count <= seen.num_workers)
        wanted = self._strategies[least]
        if wanted == seen.strategy:
            return None
        return Choice(wanted, f"{seen.num_workers} workers, and {wanted} is meant for {least} and more")


class SchedulePolicy(Policy):
    """One strategy from a step on."""

    def __init__(self, strategies: Sequence[tuple[int, str]]) -> None:
        """Pairs of the first step and the strategy from there on, in ascending order.

        Raises:
            InvalidInputError: not ascending, or no whole numbers.
        """
        super().__init__()
        if not isinstance(strategies, Sequence) or not all(isinstance(one, Sequence) and len(one) == 2 for one in strategies):
            message = 'must be pairs of a step and a strategy, such as [(0, "synchronous_sgd"), (100, "pairwise_averaging")]'
            raise InvalidInputError(message, field="strategies", value=repr(strategies)[:200])
        for step, _ in strategies:
            checks.whole("strategies", step)
        steps = [step for step, _ in strategies]
        if steps != sorted(set(steps)):
            raise InvalidInputError("the first steps must ascend", field="strategies", value=steps)
        self._strategies = tuple(strategies)

    @property
    def strategies(self) -> Collection[str]:
        """Those of all steps."""
        return [strategy for _, strategy in self._strategies]

    def choose(self, seen: Observation) -> Choice | None:
        """The strategy whose first step is reached last."""
        due = [(step, strategy) for step, strategy in self._strategies if step <= seen.num_steps]
        if not due or due[-1][1] == seen.strategy:
            return None
        return Choice(due[-1][1], f"step {seen.num_steps} is reached, and {due[-1][1]} is scheduled from step {due[-1][0]} on")


@dataclass
class ThroughputPolicy(Policy):
    """Synchronous while that leaves the workers enough of their throughput, asynchronous when it does not (Spotnik, section 3.3).

    Asynchronous training cannot measure what synchronising would cost. It is tried again when workers left since it was
    given up and, where `trial_after_steps` is given, after so many steps, then after twice as many, and so on; it stays
    only where it leaves `return_above_ratio`. Between the two ratios lies the hysteresis.
    """

    leave_below_ratio: float = 0.4
    """Throughput over what a worker would have alone, below which synchronising is given up; 0.4 in Spotnik's section 4."""
    return_above_ratio: float = 0.6
    """The same, which a trial must reach."""
    trial_after_steps: int | None = None
    """Asynchronous steps before a trial without a change of workers; None: there is none."""
    synchronous: str = SYNCHRONOUS
    asynchronous: str = ASYNCHRONOUS
    memory: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the ratios and the trial's steps.

        Raises:
            InvalidInputError: not 0 <= leave <= return <= 1, or no whole number of steps above 0.
        """
        for name in ("leave_below_ratio", "return_above_ratio"):
            checks.non_negative(name, getattr(self, name))
        if self.trial_after_steps is not None:
            checks.count("trial_after_steps", self.trial_after_steps)
        if not 0.0 <= self.leave_below_ratio <= self.return_above_ratio <= 1.0:
            raise InvalidInputError(
                "must lie between 0 and return_above_ratio, and that at most at 1",
                field="leave_below_ratio",
                value=self.leave_below_ratio,
            )

    @property
    def strategies(self) -> Collection[str]:
        """The synchronous and the asynchronous one."""
        return self.synchronous, self.asynchronous

    def choose(self, seen: Observation) -> Choice | None:
        """By throughput while synchronous, by occasions for a trial while asynchronous; one worker waits for nobody."""
        if seen.strategy == self.asynchronous:
            return self._occasion(seen)
        return self._judgement(seen) if seen.is_settled and seen.num_workers > 1 else None

    def _judgement(self, seen: Observation) -> Choice | None:
        is_trial = bool(self.memory.get("is_trial"))
        limit = self.return_above_ratio if is_trial else self.leave_below_ratio
        if seen.throughput_ratio >= limit:
            self.memory["is_trial"] = self.memory["num_trials"] = 0
            return None
        self.memory["given_up_at"] = seen.num_workers
        return Choice(
            self.asynchronous,
            f"{seen.num_workers} workers have {seen.throughput_ratio:.1%} of the throughput that they would have alone, "
            f"below {limit:.1%}{', which a trial must reach' if is_trial else ''}",
        )

    def _occasion(self, seen: Observation) -> Choice | None:
        given_up_at = self.memory.get("given_up_at", 0)
        if seen.num_workers < given_up_at:
            why = f"{seen.num_workers} workers are left of the {given_up_at:.0f} for which it was too slow"
        elif self._is_trial_due(seen.steps_since_change):
            why = f"{seen.steps_since_change} steps have passed since it was too slow"
        else:
            return None
        self.memory["is_trial"] = 1
        self.memory["num_trials"] = self.memory.get("num_trials", 0) + 1
        return Choice(self.synchronous, f"{why}: {self.synchronous} is tried again")

    def _is_trial_due(self, num_steps: int) -> bool:
        """Each trial waits twice as long as the one before, so that trials that fail cost little in all."""
        if self.trial_after_steps is None:
            return False
        return num_steps >= self.trial_after_steps * 2 ** self.memory.get("num_trials", 0)
