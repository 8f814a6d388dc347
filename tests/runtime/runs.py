"""Runs jobs on real worker processes, and checks that nothing of them is left."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from socket import SO_ACCEPTCONN, SOL_SOCKET, socket

import pytest

from estimator.program import ActionKind, compile_program
from kintsugi.core.cluster import Cluster
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.plan import Plan, Policy, Schedule
from kintsugi.runtime import forking
from kintsugi.runtime.control.agent import Agent, Observer
from kintsugi.runtime.control.decisions import Decisions, JobRequest, LocalDecisions
from kintsugi.runtime.faults import Fault
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.result import RunResult
from restorer.rounds import colour_rounds
from tests.builders import grid_plan
from tests.patience import eventually
from tests.runtime.gated_jobs import held_gpt, slow_gpt
from tests.runtime.jobs import NUM_MICROBATCHES, profile_for, tiny_gpt

# one fork server serves all tests of a process, whoever governs their workers
for module in (forking.PLANNER, "pytest", "tests.runtime.gated_jobs"):
    forking.preload(module)


def request_for(
    job: TrainingJob,
    dp: int,
    pp: int,
    policy: Policy | None = None,
    *,
    min_dp: int | None = None,
    stages_per_worker: int = 1,
    **profile: int,
) -> JobRequest:
    """Start on the even DP x PP grid; the policy, where given, is pinned, and two replicas are kept where there were two."""
    costs = profile_for(job, **profile)
    schedule = Schedule.INTERLEAVED if stages_per_worker > 1 else Schedule.ONE_F_ONE_B
    plan = grid_plan(
        len(job.layers), [pp] * dp, [NUM_MICROBATCHES // dp] * dp, schedule=schedule, stages_per_worker=stages_per_worker
    )
    return JobRequest(
        name="job",
        profile=costs,
        cluster=Cluster.uniform(dp * pp),
        settings=JobSettings(
            num_microbatches=NUM_MICROBATCHES, policy=policy, schedule=schedule, ranges=Ranges(min_dp=min_dp or min(dp, 2))
        ),
        plan=replace(plan, rounds=colour_rounds(plan, costs)),
    )


def under(schedule: Schedule, request: JobRequest) -> JobRequest:
    """The same request with another schedule."""
    return replace(request, plan=replace(request.plan, schedule=schedule), settings=replace(request.settings, schedule=schedule))


def kinds(result: RunResult, request: JobRequest) -> set[ActionKind]:
    """Kinds of actions in the program that the job ended on."""
    program = compile_program(survivors(result), request.profile, request.cluster)
    return {action.kind for actions in program.actions.values() for action in actions}


def gpt_request(dp: int, pp: int, policy: Policy | None = None, *, min_dp: int | None = None) -> JobRequest:
    """The decoder's request."""
    return request_for(tiny_gpt(), dp, pp, policy, min_dp=min_dp)


def options_with(*faults: Fault) -> AgentOptions:
    """Short patience, as everything is small."""
    return AgentOptions(worker=WorkerOptions(faults=faults))


def run(make_job: Callable[[], TrainingJob], request: JobRequest, *faults: Fault) -> RunResult:
    """Train to the end under a failure script; nothing may be left."""
    with leaves_nothing(), Agent(make_job, request, LocalDecisions(), options=options_with(*faults)) as agent:
        return agent.run()


def run_slowly(
    gate: Path,
    num_steps: int,
    request: JobRequest,
    observer: Observer,
    *faults: Fault,
    is_over: Callable[[Agent], bool],
    decisions: Decisions | None = None,
    pause_seconds: float = 0.005,
    make_job: Callable[[Path, int, float], TrainingJob] = slow_gpt,
) -> RunResult:
    """Train the decoder, or another job, to the end under an observer, slowly until it `is_over`; nothing may be left."""

    def observe(agent: Agent) -> None:
        observer(agent)
        if is_over(agent):
            gate.touch()

    job = partial(make_job, gate, num_steps, pause_seconds)
    source = decisions or LocalDecisions()
    with leaves_nothing(), Agent(job, request, source, options=options_with(*faults), observer=observe) as agent:
        return agent.run()


def run_struck(
    gate: Path,
    num_steps: int,
    request: JobRequest,
    strike: Callable[[Agent], None],
    *,
    at_step: int = 2,
    options: AgentOptions | None = None,
) -> RunResult:
    """Train the decoder to the end; `strike` is called once, while step `at_step` is under way. Nothing may be left."""

    def observe(agent: Agent) -> None:
        if len(agent.losses) == at_step and not gate.exists():
            strike(agent)
            gate.touch()

    job = partial(held_gpt, gate, num_steps, at_step)
    with leaves_nothing(), Agent(job, request, LocalDecisions(), options=options, observer=observe) as agent:
        return agent.run()


def survivors(result: RunResult) -> Plan:
    """The plan that the job ended on."""
    return result.decisions[-1].plan


def assert_same(result: RunResult, reference: RunResult, tolerance: float = 1e-12) -> None:
    """Losses, parameters and buffers equal within `tolerance` of their largest entry; replicas bitwise equal."""
    assert result.losses == pytest.approx(reference.losses, rel=tolerance, abs=0)
    assert result.parameters.keys() == reference.parameters.keys()
    for name, value in reference.parameters.items():
        scale = max(float(value.abs().max()), 1e-30)
        assert float((result.parameters[name] - value).abs().max()) <= tolerance * scale, name
    assert result.has_equal_replicas
    assert set(result.digests) == set(range(survivors(result).num_layers))


@dataclass(frozen=True)
class Footprint:
    """What a process holds of the system."""

    descriptors: frozenset[tuple[str, str]]
    listening: frozenset[str]
    threads: frozenset[str]
    workers: frozenset[int]

    @classmethod
    def now(cls) -> "Footprint":
        forkserver.ensure_running()
        threads = frozenset(thread.name for thread in threading.enumerate() if not thread.daemon)
        return cls(frozenset(descriptors().items()), listening_sockets(), threads, worker_pids())

    def left_since(self, earlier: "Footprint") -> list[frozenset[object]]:
        """What is there more of each kind. A descriptor in the place of another one does not count."""
        left = [now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)]
        if len(self.descriptors) <= len(earlier.descriptors):
            left[0] = frozenset()
        return left


@contextmanager
def leaves_nothing() -> Iterator[None]:
    """No process, port, descriptor or thread is left, however the block ends."""
    forking.forkserver()
    gc.collect()  # what earlier tests left to it could come to its end meanwhile, and hide what is left here
    before = Footprint.now()
    try:
        yield
    finally:
        left = eventually(lambda: Footprint.now().left_since(before), lambda left: not any(left))
        assert not any(left), left


def children_of(pid: int) -> frozenset[int]:
    """Living and unburied children of a process."""
    while True:
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread ended meanwhile, and its children are another one's now
            tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
            return frozenset(int(child) for text in tasks for child in text.split())


def worker_pids() -> frozenset[int]:
    """Children of this process's fork server, and this process's own, but for Python's two helpers."""
    helpers = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    own = children_of(os.getpid()) - helpers
    return own.union(*(children_of(pid) for pid in helpers if pid is not None))


def listening_sockets() -> frozenset[str]:
    """Inodes of the listening sockets that this process holds."""
    sockets = {number: link for number, link in descriptors().items() if link.startswith("socket:")}
    return frozenset(link for number, link in sockets.items() if is_listening(number))


def is_listening(number: str) -> bool:
    """Whether others can connect to a socket of this process; False once another thread closed it."""
    with suppress(OSError), socket(fileno=os.dup(int(number))) as one:
        return bool(one.getsockopt(SOL_SOCKET, SO_ACCEPTCONN))
    return False


def descriptors() -> dict[str, str]:
    """What this process has open, by number."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found
