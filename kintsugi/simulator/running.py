"""What a job does between two incidents, and what a policy answers to one."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Protocol

from kintsugi.core.decision import Estimate
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrice:
    """What becomes of the time of one step, in seconds, in the mean over the workers of the plan."""

    compute_seconds: float
    bubble_seconds: float
    reduction_seconds: float
    """Exposed reductions, the commit and the update."""
    redundant_seconds: float = 0.0
    """Computing that only insures against failures, where it makes the step longer."""

    @property
    def iteration_seconds(self) -> float:
        """The whole step."""
        return self.compute_seconds + self.bubble_seconds + self.reduction_seconds + self.redundant_seconds

    @classmethod
    def of(cls, price: Estimate) -> "StepPrice":
        """The parts of an estimate; its bubbles are those of the passes."""
        bubble = price.bubble_ratio * price.pipeline_seconds
        return cls(
            compute_seconds=price.pipeline_seconds - bubble,
            bubble_seconds=bubble,
            reduction_seconds=price.iteration_seconds - price.pipeline_seconds,
        )

    def going_on(self, left_ratio: float, before: "StepPrice", after: "StepPrice") -> "StepPrice":
        """The step whose last part, of so large a share, has another price: what is done of it stays done."""
        return StepPrice(
            **{
                part.name: getattr(self, part.name) + left_ratio * (getattr(after, part.name) - getattr(before, part.name))
                for part in fields(self)
            }
        )

    def lasting(self, iteration_seconds: float) -> "StepPrice":
        """The same computing in a step of another length: bubbles and then reductions give way."""
        change = iteration_seconds - self.iteration_seconds
        bubble = max(0.0, self.bubble_seconds + change)
        rest = change - (bubble - self.bubble_seconds)
        return replace(self, bubble_seconds=bubble, reduction_seconds=self.reduction_seconds + rest)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A plan that is carried out, with its price."""

    plan: Plan
    price: StepPrice
    checkpoint_interval_seconds: float | None
    """Training time between two checkpoints; null: none are taken."""

    @cached_property
    def microbatches_per_second(self) -> float:
        """While training."""
        return self.plan.num_microbatches / self.price.iteration_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """How a job goes on after its workers changed."""

    running: Running
    pause_seconds: float
    """From the incident until training goes on; 0: training is not disturbed."""
    rolls_back: bool = False
    """Whether everything since the last checkpoint is trained again."""
    saves: bool = False
    """Whether the pause begins with a checkpoint of all that was trained."""


class Strategy(Protocol):
    """A policy for a whole job."""

    @property
    def name(self) -> str:
        """As it is chosen on the command line."""
        ...

    def start(self, snapshot: Snapshot) -> Running:
        """The first plan: `snapshot.plan` is null.

        Raises:
            InfeasibleError: these workers cannot run the job.
        """
        ...

    def respond(self, snapshot: Snapshot) -> Response:
        """What to do now that workers of `snapshot.plan` are not alive any more, or others have come.

        Raises:
            InfeasibleError: the workers that are left cannot run the job.
        """
        ...
