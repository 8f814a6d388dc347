"""What is asked of the planner: a job, and the snapshot of it that a decision is a pure function of."""

from dataclasses import dataclass, field

from kintsugi.core import checks
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError, InvalidInputError
from kintsugi.core.plan import Plan, Policy, Schedule
from kintsugi.core.profile import PYDANTIC_CONFIG, Profile
from kintsugi.core.reliability import FailureRecord

DEFAULT_MTBF_SECONDS = 10_800.0
"""Three hours: the 54-day Llama 3.1 run was interrupted 419 times (Chameleon, section II-B)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Parallel degrees that the search may use; null means as wide as workers, layers and micro-batches allow."""

    __pydantic_config__ = PYDANTIC_CONFIG

    min_dp: int = 1
    max_dp: int | None = None
    min_pp: int = 1
    """Workers of a pipeline: its stages, where each has a worker of its own."""
    max_pp: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (("dp", self.min_dp, self.max_dp), ("pp", self.min_pp, self.max_pp)):
            checks.count(f"min_{name}", low)
            if high is not None and high < low:
                raise InvalidInputError(f"must be at least min_{name} = {low}", field=f"max_{name}", value=high)

    def require_carried_out(self, num_layers: int, num_microbatches: int) -> None:
        """Require that the least degrees find what every pipeline or stage needs one of: a micro-batch, or a layer.

        Raises:
            InvalidInputError: there are fewer.
        """
        if self.min_dp > num_microbatches:
            message = f"asks for more pipelines than there are micro-batches ({num_microbatches}); every pipeline needs one"
            raise InvalidInputError(message, field="min_dp", value=self.min_dp)
        if self.min_pp > num_layers:
            raise InvalidInputError(f"is more stages than the model has layers ({num_layers})", field="min_pp", value=self.min_pp)

    def require_workers(self, num_workers: int) -> None:
        """Require that there are workers for the least degrees.

        Raises:
            InfeasibleError: there are too few.
        """
        needed = self.min_dp * self.min_pp
        if needed > num_workers:
            asked = f"min_dp {self.min_dp} and min_pp {self.min_pp}"
            message = f"{needed} are needed for {asked}, {num_workers} are there; add some, or lower either"
            raise InfeasibleError(message, field="workers", value=num_workers)

    def allow(self, dp: int, pp: int) -> bool:
        """Whether a grid of `dp` pipelines with `pp` workers each lies within them."""
        pairs = (dp, self.min_dp, self.max_dp), (pp, self.min_pp, self.max_pp)
        return all(low <= degree and (high is None or degree <= high) for degree, low, high in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How a job wants to be planned for."""

    __pydantic_config__ = PYDANTIC_CONFIG

    num_microbatches: int
    """Per step, over all pipelines."""
    ranges: Ranges = field(default_factory=Ranges)
    schedule: Schedule = Schedule.ONE_F_ONE_B
    mtbf_seconds: float = DEFAULT_MTBF_SECONDS
    """Mean time between failures of the whole job; with `mtbf_prior_failures` what is believed before any was seen."""
    mtbf_prior_failures: float | None = None
    """Estimate the mean time from the job's own failures; `mtbf_seconds` weighs as much as so many of them. Null: no estimate."""
    policy: Policy | None = None
    """Pins the policy; null leaves the choice to the planner."""
    allows_follow_up: bool = False
    """Whether the trainer can carry out a decision's follow-up by itself; only then are policies of two steps considered."""
    heartbeat_timeout_seconds: float | None = None
    """Workers that send the service no heartbeat for so long count as failed; null: nobody listens."""

    def __post_init__(self) -> None:
        checks.microbatches("num_microbatches", self.num_microbatches, None)
        checks.positive("mtbf_seconds", self.mtbf_seconds)
        if self.mtbf_prior_failures is not None:
            checks.positive("mtbf_prior_failures", self.mtbf_prior_failures)
        if self.heartbeat_timeout_seconds is not None:
            checks.positive("heartbeat_timeout_seconds", self.heartbeat_timeout_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a decision depends on. Equal snapshots give equal decisions.

    `plan` is the plan the workers carried out last: its slots say who holds which layers. `alive` are the workers that
    may be used now; a worker of the plan that is not alive is lost with its state, unless it is `draining`; one that is not in the
    plan is new.
    """

    __pydantic_config__ = PYDANTIC_CONFIG

    profile: Profile
    cluster: Cluster
    settings: JobSettings
    plan: Plan | None
    """Null before the first plan."""
    alive: tuple[str, ...]
    generation: int
    """Of the plan to be made."""
    stateless: tuple[str, ...] = ()
    """Living workers that hold no state although the plan gives them a slot: they restarted since."""
    draining: tuple[str, ...] = ()
    """Workers of the plan that leave and take no slot any more, but still hold their state for others to fetch."""
    failures: FailureRecord | None = None
    """Failures up to the latest decision; counted only where the job's mean time between failures is to be estimated."""
    refused_policies: tuple[Policy, ...] = ()
    """Policies that were refused or rejected for this membership already: they are priced, but not chosen."""
    speeds_changed: bool = False
    """Whether workers or links are slower or faster than when `plan` was decided."""

    def __post_init__(self) -> None:
        checks.non_negative("generation", self.generation)
        checks.microbatches("settings.num_microbatches", self.settings.num_microbatches, len(self.cluster.workers))
        checks.unique("alive", self.alive)
        for field_name in ("alive", "stateless", "draining"):
            for index, worker in enumerate(getattr(self, field_name)):
                if worker not in self.cluster.by_id:
                    raise InvalidInputError("is no worker of the cluster", field=f"{field_name}[{index}]", value=worker)
        if both := set(self.draining) & set(self.alive):
            raise InvalidInputError("leaves and may not be used", field="draining", value=sorted(both))
        if self.plan is not None:
            self.plan.require_layers(self.profile.num_layers)
