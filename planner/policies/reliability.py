"""The mean time between failures: the job's own setting, or estimated from its failures with that setting as the prior."""

from dataclasses import replace

from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.reliability import FailureRecord


def posterior_mtbf_seconds(prior_mtbf_seconds: float, prior_failures: float, record: FailureRecord) -> float:
    """Inverse of the posterior mean of the failure rate, in seconds.

    Failures come as a Poisson process whose rate has a Gamma prior of shape `prior_failures` and rate
    `prior_failures * prior_mtbf_seconds`: as though so many failures had been seen, so far apart. After n failures in
    T seconds the rate's posterior mean is (shape + n) / (rate + T).

    Args:
        prior_mtbf_seconds: what is believed before any failure was seen.
        prior_failures: weight of that belief, in failures.
        record: what was seen.
    """
    seconds = prior_failures * prior_mtbf_seconds + record.observed_seconds
    return seconds / (prior_failures + record.num_failures)


def mtbf_seconds(settings: JobSettings, record: FailureRecord | None) -> float:
    """The mean time between failures to reckon with, in seconds."""
    if settings.mtbf_prior_failures is None or record is None:
        return settings.mtbf_seconds
    return posterior_mtbf_seconds(settings.mtbf_seconds, settings.mtbf_prior_failures, record)


def with_estimated_mtbf(snapshot: Snapshot) -> Snapshot:
    """The snapshot with `settings.mtbf_seconds` as it is to be reckoned with; `failures` stays only where it was used."""
    if snapshot.settings.mtbf_prior_failures is None or snapshot.failures is None:
        return replace(snapshot, failures=None) if snapshot.failures is not None else snapshot
    seconds = mtbf_seconds(snapshot.settings, snapshot.failures)
    return replace(snapshot, settings=replace(snapshot.settings, mtbf_seconds=seconds))
