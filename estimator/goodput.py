"""What failures cost: the price of a transition, equation 8, and what the next failure may take with it."""

import math

from kintsugi.core.decision import Estimate
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile, Recovery

_SAME_RATIO = 1e-9
"""Times that differ by less do so by the order in which they were added up."""


def throughput_samples_per_second(num_microbatches: int, microbatch_size: int, iteration_seconds: float) -> float:
    """Equation 7: samples of a step by its time, B / t_step with B = micro-batches * samples of each."""
    return num_microbatches * microbatch_size / iteration_seconds


def effective_time_ratio(reconfiguration_seconds: float, mtbf_seconds: float) -> float:
    """Equation 8, second factor: the share of the time between two failures that is left for training (0..1).

    t / (u + t) for a state of t seconds after a transition of u. Their sum, the time between the failures, is constant (the paper's
    footnote 1), so a longer transition leaves less: max(0, 1 - u / mtbf).
    """
    return max(0.0, 1.0 - reconfiguration_seconds / mtbf_seconds)


def goodput_samples_per_second(throughput: float, reconfiguration_seconds: float, mtbf_seconds: float) -> float:
    """Equation 8: throughput of the next state times its effective time ratio, in samples per second."""
    return throughput * effective_time_ratio(reconfiguration_seconds, mtbf_seconds)


def charged_goodput(price: Estimate, mtbf_seconds: float) -> float:
    """Equation 8 with `expected_restart_seconds` as part of the transition, in samples per second: what plans are compared by.

    With p the probability that the next failure makes a restart due, R its price and r that of the least recovery, a time m
    between failures holds T * (m - transition - p * (R - r)) samples of this plan's making.
    """
    seconds = price.reconfiguration_seconds + price.expected_restart_seconds
    return goodput_samples_per_second(price.throughput_samples_per_second, seconds, mtbf_seconds)


def expected_restart_seconds(plan: Plan, profile: Profile) -> float:
    """By how much a restart is dearer than rerouting, times the probability that the next failure makes it due.

    0 where every layer has several holders, and where the profile names no checkpoints: what is lost then has no price in
    seconds (`survivable` says so).
    """
    return sole_holder_ratio(plan) * restart_excess_seconds(profile)


def restart_excess_seconds(profile: Profile) -> float:
    """By how much a checkpoint restart is dearer than the least recovery, which is rerouting; 0 without checkpoints."""
    seconds = restart_seconds(profile)
    return 0.0 if seconds is None else max(0.0, seconds - rerouting_seconds(profile.recovery))


def sole_holder_ratio(plan: Plan) -> float:
    """Probability that the next loss takes the last holder of a layer (0..1): any worker of the plan is as likely to be next.

    O(layers) where there is no such worker.
    """
    if min(plan.num_holders) > 1:
        return 0.0
    return len({holders[0] for holders in plan.holders if len(holders) == 1}) / len(plan.workers)


def break_even_mtbf_seconds(
    iteration_seconds: float, reconfiguration_seconds: float, other_iteration_seconds: float, other_reconfiguration_seconds: float
) -> float | None:
    """The time between failures at which two plans have the same goodput; None where one is better at any.

    (1 - r / m) / t = (1 - s / m) / u solved for m: (r * u - s * t) / (u - t). What rounding alone makes differ is the same.
    """
    if math.isclose(iteration_seconds, other_iteration_seconds, rel_tol=_SAME_RATIO):
        return None
    numerator = reconfiguration_seconds * other_iteration_seconds - other_reconfiguration_seconds * iteration_seconds
    result = numerator / (other_iteration_seconds - iteration_seconds)
    least = max(reconfiguration_seconds, other_reconfiguration_seconds)  # where neither trains anything
    return result if result > least and not math.isclose(result, least, rel_tol=_SAME_RATIO) else None


def rerouting_seconds(recovery: Recovery) -> float:
    """Price of data rerouting: detection and regrouping; nothing moves."""
    return recovery.detect_seconds + recovery.regroup_seconds


def migration_seconds(recovery: Recovery, makespan_seconds: float) -> float:
    """Price of a new arrangement (dynamic parallelism, spare substitution): detection, regrouping and the migration."""
    return rerouting_seconds(recovery) + makespan_seconds


def restart_seconds(profile: Profile) -> float | None:
    """Price of a checkpoint restart: detection, restart, reading, and half an interval of lost work; None without checkpoints."""
    recovery = profile.recovery
    if recovery.checkpoint_interval_seconds is None or recovery.checkpoint_read_bytes_per_second is None:
        return None
    state_bytes = sum(layer.parameter_bytes + layer.optimizer_bytes for layer in profile.layers) * profile.tensor_parallel_degree
    read_seconds = state_bytes / recovery.checkpoint_read_bytes_per_second
    return recovery.detect_seconds + recovery.restart_seconds + read_seconds + recovery.checkpoint_interval_seconds / 2
