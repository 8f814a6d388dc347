"""The names that NVIDIA's resiliency extension gives the events of a recovery, for logs and reports.

`ProfilingEvent` in `nvidia_resiliency_ext/shared_utils/profiling.py`.
"""

from enum import StrEnum


class RecoveryEvent(StrEnum):
    """What happens between a failure and training again."""

    FAILURE_DETECTED = "failure_detected"
    WORKER_TERMINATED = "worker_terminated"
    RENDEZVOUS_STARTED = "rendezvous_started"
    RENDEZVOUS_COMPLETED = "rendezvous_completed"
    WORKER_START_STARTED = "worker_start_started"
    WORKER_START_COMPLETED = "worker_start_completed"
