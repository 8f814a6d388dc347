"""What plans cost, what moves between them, and the decision for one."""

from dataclasses import dataclass, replace
from enum import StrEnum

from kintsugi.core.plan import Plan, Policy
from kintsugi.core.profile import PYDANTIC_CONFIG
from kintsugi.core.reliability import FailureRecord


class StateKind(StrEnum):
    """Kinds of state that a migration moves."""

    PARAMETER = "parameter"
    OPTIMIZER = "optimizer"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """What one stage costs its worker."""

    __pydantic_config__ = PYDANTIC_CONFIG

    worker: str
    pipeline: int
    stage: int
    layer_start: int
    layer_stop: int
    forward_seconds: float
    """One micro-batch."""
    backward_seconds: float
    """One micro-batch, input and weight part."""
    num_in_flight: int
    """Most micro-batches whose activations the worker holds at once; counted once per stage of its own."""
    peak_memory_bytes: int
    """Of the worker: of all stages that it holds."""
    busy_seconds: float
    """The worker computing, per step: in all stages that it holds and in those it stands in for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a plan costs, as the estimator's replay of its program tells it."""

    __pydantic_config__ = PYDANTIC_CONFIG

    iteration_seconds: float
    """To the last optimizer update of a step."""
    pipeline_seconds: float
    """First action's start to last backward's end, link delays included; the maximum over pipelines."""
    reduce_seconds: float
    """The exposed part of the gradient reductions."""
    reconfiguration_seconds: float
    """Detection, regrouping and migration: from the failure to training again."""
    throughput_samples_per_second: float
    goodput_samples_per_second: float
    bubble_ratio: float
    """Share of the living workers' time in the pipelines that is idle (0..1)."""
    stages: tuple[StageEstimate, ...]
    expected_restart_seconds: float = 0.0
    """What the next failure is expected to cost more because some layers have one holder only: with that holder their state
    is lost, and a checkpoint restart is due. Policies are compared with it; goodput leaves it out."""
    splits_backward: bool = False
    """Whether the step is of backward passes in two parts, as rerouted plans may have them under every schedule: a trainer that
    has whole ones only takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEstimate(Estimate):
    """What a plan that somebody asks about costs, whether its workers have the memory for it or not."""

    overfull_workers: tuple[str, ...] = ()
    """Whose usable memory is less than the peak of their stages: the plan cannot run on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Some bytes of one layer's state from a survivor to a worker that needs them."""

    __pydantic_config__ = PYDANTIC_CONFIG

    source: str
    target: str
    layer: int
    kind: StateKind
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRead:
    """Some bytes of one layer's state that no survivor holds: they come from the last checkpoint, as old as it is."""

    __pydantic_config__ = PYDANTIC_CONFIG

    target: str
    layer: int
    kind: StateKind
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """All state that moves before a plan can run."""

    __pydantic_config__ = PYDANTIC_CONFIG

    total_bytes: int = 0
    """Of the transfers between workers."""
    makespan_seconds: float = 0.0
    """Until the last byte has arrived, from survivors or from the checkpoint."""
    lower_bound_seconds: float = 0.0
    """No choice of sources is faster."""
    transfers: tuple[Transfer, ...] = ()
    from_checkpoint: tuple[CheckpointRead, ...] = ()
    """Shards of optimizer state whose every holder is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How a plan was found and how far from the best it can be."""

    __pydantic_config__ = PYDANTIC_CONFIG

    lower_bound_seconds: float
    """No plan without dead slots within the ranges and the schedule has a shorter iteration; where the plan keeps the replicas of
    every layer on different hosts, none that does so has. With dead slots, whose micro-batches their peers take, backward passes
    are split, which may be faster: such a plan that goes below the bound has its own iteration here."""
    gap_ratio: float
    """iteration_seconds / lower_bound_seconds - 1."""
    elapsed_seconds: float
    """The search alone: reading the profile and compiling the planner's inner loops are left out."""
    candidates: int = 0
    """Plans that were priced."""

    def bounded(self, lower_bound_seconds: float, iteration_seconds: float) -> "Search":
        """The same search with a bound, and with how far a step is from it."""
        gap = iteration_seconds / lower_bound_seconds - 1
        return replace(self, lower_bound_seconds=lower_bound_seconds, gap_ratio=gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A policy that was considered: its price, or why it is impossible."""

    __pydantic_config__ = PYDANTIC_CONFIG

    policy: Policy
    feasible: bool
    reason: str
    estimate: Estimate | None
    charged_goodput_samples_per_second: float | None = None
    """What policies are compared by: goodput with `expected_restart_seconds` and every further transition as parts of the
    transition. Null where the policy is impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivable:
    """How many simultaneous losses leave a holder of every layer, whichever they are."""

    __pydantic_config__ = PYDANTIC_CONFIG

    workers: int
    hosts: int
    failure_domains: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """The second step of a policy: the plan to move to while the first one runs."""

    __pydantic_config__ = PYDANTIC_CONFIG

    after_steps: int
    """Steps of the first plan, during which the state moves beside the training."""
    plan: Plan
    estimate: Estimate
    """`reconfiguration_seconds`: what the move itself takes once the state is there."""
    migration: Migration


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The plan that was chosen, every alternative with its numbers, and the reason."""

    __pydantic_config__ = PYDANTIC_CONFIG

    policy: Policy
    reason: str
    plan: Plan
    estimate: Estimate
    search: Search
    migration: Migration
    survivable: Survivable
    break_even_mtbf_seconds: float | None
    """Mean time between failures at which the choice would change; null when it never does."""
    previous_plan: Plan | None
    alternatives: tuple[Alternative, ...]
    follow_up: FollowUp | None = None
    """What comes after `plan` under a policy of two steps; `estimate` is of `plan`, its goodput of both together."""
    mtbf_seconds: float | None = None
    """Mean time between failures that was reckoned with; null in decisions older than this field."""
    failures: FailureRecord | None = None
    """What that time was estimated from, with the job's prior; null where it is the job's own setting."""
