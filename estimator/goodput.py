"""What failures cost: the price of a transition and equation 8."""

from kintsugi.core.profile import Profile, Recovery


def throughput_samples_per_second(num_microbatches: int, microbatch_size: int, iteration_seconds: float) -> float:
    """Equation 7: samples of a step by its time."""
    return num_microbatches * microbatch_size / iteration_seconds


def effective_time_ratio(reconfiguration_seconds: float, mtbf_seconds: float) -> float:
    """Equation 8, second factor: the share of the time between two failures that is left for training (0..1).

    The time between failures, transition included, is constant (the paper's footnote 1), so a longer transition leaves less.
    """
    return max(0.0, 1.0 - reconfiguration_seconds / mtbf_seconds)


def goodput_samples_per_second(throughput: float, reconfiguration_seconds: float, mtbf_seconds: float) -> float:
    """Equation 8: throughput of the next state times its effective time ratio, in samples per second."""
    return throughput * effective_time_ratio(reconfiguration_seconds, mtbf_seconds)


def break_even_mtbf_seconds(
    iteration_seconds: float, reconfiguration_seconds: float, other_iteration_seconds: float, other_reconfiguration_seconds: float
) -> float | None:
    """The time between failures at which two plans have the same goodput; None where one is better at any.

    (1 - r / m) / t = (1 - s / m) / u solved for m: (r * u - s * t) / (u - t).
    """
    difference = other_iteration_seconds - iteration_seconds
    if difference == 0.0:
        return None
    numerator = reconfiguration_seconds * other_iteration_seconds - other_reconfiguration_seconds * iteration_seconds
    result = numerator / difference
    return result if result > max(reconfiguration_seconds, other_reconfiguration_seconds) else None


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
