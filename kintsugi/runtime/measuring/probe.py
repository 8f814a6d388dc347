"""Measures what a profile says about network and recovery, between real processes of this machine."""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import wait

import torch

from kintsugi.core import checks
from kintsugi.core.cluster import worker_name
from kintsugi.core.errors import UnavailableError, WorkerError
from kintsugi.core.profile import LinkCost, Network, Recovery
from kintsugi.runtime.measuring.peers import Peers
from kintsugi.runtime.messages import Failed, Started
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import WorkerOptions
from kintsugi.runtime.processes import WorkerHandle

SMALL_BYTES = 64
"""Of the message whose time is the latency."""
LARGE_BYTES = 4 << 20
"""Of the message whose time beyond the latency gives the rate."""
MOST_PEERS = 16
"""Processes that connect at once; more ranks would measure this machine's scheduler."""
EARLY_ENDS = (
    'it printed why. Usual causes: the script does its work outside of `if __name__ == "__main__":`, which every worker then does '
    "again; or make_job is defined where other processes cannot import it from (a notebook, standard input): put it in a module"
)
"""Of processes that end before they can say anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was measured, and how."""

    network: Network
    recovery: Recovery
    commit_seconds: float
    """All-reduce of two numbers over all ranks: what a commit point takes when all come at once."""
    detail: str


def probe(
    make_job: Callable[[], TrainingJob],
    *,
    device: str = "cpu",
    num_workers: int = 4,
    repeats: int = 101,
    timeout_seconds: float = 120.0,
) -> Probed:
    """Measure latency and rate of messages, and the times of detection, regrouping and restart.

    Args:
        make_job: called by the processes whose start is timed.
        device: of the tensors that workers send; what they copy to host memory and from there is part of a message.
        num_workers: ranks that are started, connected and reduced over; at most 16 of them.
        repeats: of every message and reduction; the first decile counts, which other programs disturb least.
        timeout_seconds: for each answer.

    Raises:
        UnavailableError: a process did not answer in time.
        WorkerError: `make_job` raised in a process.
    """
    checks.positive("num_workers", num_workers)
    num_ranks = min(max(num_workers, 2), MOST_PEERS)
    restart_seconds, detect_seconds = _lives(make_job, num_ranks, timeout_seconds)
    with Peers(num_ranks, timeout_seconds=timeout_seconds) as peers:
        connected = [peers.connect()]
        small = peers.message_seconds(SMALL_BYTES, repeats, device)
        large = peers.message_seconds(LARGE_BYTES, repeats, device)
        commit_seconds = peers.all_reduce_seconds(repeats)
        connected += [peers.connect() for _ in range(4)]
    link = LinkCost(alpha_seconds=small, beta_seconds_per_byte=max(large - small, 0.0) / (LARGE_BYTES - SMALL_BYTES))
    staged = "" if torch.device(device).type == "cpu" else ", from device to device by way of host memory"
    detail = (
        f"Network: gloo over loopback between two processes{staged}, "
        f"{SMALL_BYTES} and {LARGE_BYTES} bytes, first deciles of {repeats}; one machine, so links between hosts are "
        "taken to be the same. "
        f"An all-reduce of two numbers over {num_ranks} processes took {commit_seconds:.2g} s. "
        "Recovery: as many processes, of which regroup_seconds connects the groups and restart_seconds starts all, up to their "
        "knowing the model, from a server that has torch loaded; detect_seconds is from SIGKILL to the agent's notice."
    )
    return Probed(
        network=Network(intra_host=link, inter_host=link),
        recovery=Recovery(
            detect_seconds=detect_seconds, regroup_seconds=statistics.median(connected), restart_seconds=restart_seconds
        ),
        commit_seconds=commit_seconds,
        detail=detail,
    )


def _lives(make_job: Callable[[], TrainingJob], num_workers: int, timeout_seconds: float) -> tuple[float, float]:
    """From the start of all workers to the last one's knowing its model, and the median from SIGKILL to the sentinel."""
    with ExitStack() as stack:
        _start(1, make_job, stack, timeout_seconds)
        began = time.monotonic()
        handles = _start(num_workers, make_job, stack, timeout_seconds)
        restart_seconds = time.monotonic() - began
        return restart_seconds, statistics.median(_seconds_to_sentinel(handle, timeout_seconds) for handle in handles)


def _start(num_workers: int, make_job: Callable[[], TrainingJob], stack: ExitStack, timeout_seconds: float) -> list[WorkerHandle]:
    """Workers that know their model; `stack` ends them."""
    handles = []
    for index in range(num_workers):
        handle = WorkerHandle(worker_name(index), make_job, WorkerOptions())
        stack.callback(handle.fence)
        handles.append(handle)
    for handle in handles:
        _await_start(handle, timeout_seconds)
    return handles


def _await_start(handle: WorkerHandle, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while handle.connection.poll(max(deadline - time.monotonic(), 0.0)):
        message = handle.receive()
        if isinstance(message, Started):
            return
        if isinstance(message, Failed):
            raise WorkerError(f"the job could not be made in a worker process:\n{message.traceback}", field="worker")
        if message is None:
            raise WorkerError(f"a worker process ended before it knew the job; {EARLY_ENDS}", field="worker", value=handle.worker)
    raise UnavailableError(f"a worker did not know its model within {timeout_seconds:g} s", field="worker", value=handle.worker)


def _seconds_to_sentinel(handle: WorkerHandle, timeout_seconds: float) -> float:
    handle.strike()
    assert handle.struck_at is not None
    if not wait([handle.process.sentinel], timeout_seconds):
        raise UnavailableError(f"did not end {timeout_seconds:g} s after SIGKILL", field="worker", value=handle.worker)
    return time.monotonic() - handle.struck_at
