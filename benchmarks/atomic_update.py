"""What the atomic update costs: all mean gradients are awaited and a commit point is passed before the optimizer steps.

Beside it the plain pipelined update, as Horovod-like libraries do it: each bucket's parameters are updated as soon as its
all-reduce ends, beside the backward pass and later buckets; a loss in the middle leaves them half updated. Both take turns
in the same processes, with the same model, data and buckets, connected by gloo over loopback.

Two processes compute for real, one core each. Four would share cores: they sleep for as long as computing takes alone, from
parameter to parameter, and their gradients are those of a real pass.

    python -m benchmarks.atomic_update [--steps S]

Exits with 1 where any overhead is above ALLOWED_RATIO.
"""

import argparse
import os
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.four_models import MODELS, Workload
from benchmarks.members import LocalMembers, Member
from kintsugi.core.cluster import worker_name
from kintsugi.runtime.synchronization import PeerTransport, SynchronizedOptimizer, SynchronousSGD, Transport
from kintsugi.runtime.synchronization.gradients import Bucket, GradientSum

ALLOWED_RATIO = 0.03
BUCKET_BYTES = 2**20
LEAST_SLEEP_SECONDS = 5e-4
PATIENCE_SECONDS = 120.0
NUM_WARM_UP = 4
REPEATS = 10


class Update(Protocol):
    """A way to go from gradients to parameters."""

    def zero_grad(self) -> None:
        """As of an optimizer."""

    def step(self) -> Any:
        """As of an optimizer."""

    def close(self) -> None:
        """Give threads back."""


class PipelinedUpdate:
    """Each bucket has an optimizer of its own, which steps in a second thread as soon as the bucket's all-reduce ends."""

    def __init__(self, workload: Workload, transport: Transport) -> None:
        self._parameters = list(workload.model.parameters())
        self._gradients = GradientSum(self._parameters, transport, BUCKET_BYTES)
        buckets = self._gradients.buckets
        self._optimizers = [workload.optimizer([self._parameters[number] for number in own.parameters]) for own in buckets]
        self._queue: queue.Queue[int | None] = queue.Queue()
        self._num_queued = 0
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._ready, number))
            for number, parameter in enumerate(self._parameters)
        ]
        self._thread = threading.Thread(target=self._work, name="updates", daemon=True)
        self._thread.start()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Wait until all buckets are applied."""
        self._gradients.begin_rest()
        self._queue_begun()
        self._queue.join()
        self._num_queued = 0
        self._gradients.renew()

    def close(self) -> None:
        """Let the thread end."""
        for hook in self._hooks:
            hook.remove()
        self._queue.put(None)
        self._thread.join(PATIENCE_SECONDS)

    def _ready(self, number: int, _: Tensor) -> None:
        self._gradients.ready(number)
        self._queue_begun()

    def _queue_begun(self) -> None:
        while self._num_queued < self._gradients.num_begun:
            self._queue.put(self._num_queued)
            self._num_queued += 1

    def _work(self) -> None:
        while (index := self._queue.get()) is not None:
            self._apply(self._gradients.buckets[index], self._optimizers[index])
            self._queue.task_done()

    def _apply(self, bucket: Bucket, optimizer: torch.optim.Optimizer) -> None:
        for number, mean in self._gradients.settled(bucket).items():
            gradient = self._parameters[number].grad
            assert gradient is not None
            assert mean is not None
            gradient.copy_(mean)
        optimizer.step()


def atomic_update(workload: Workload, transport: Transport) -> SynchronizedOptimizer:
    """The same optimizer behind the atomic update."""
    optimizer = workload.optimizer(list(workload.model.parameters()))
    return SynchronizedOptimizer(optimizer, SynchronousSGD(), transport, bucket_bytes=BUCKET_BYTES)


UPDATES: dict[str, Callable[[Workload, Transport], Update]] = {"pipelined": PipelinedUpdate, "atomic": atomic_update}


class _Asleep(torch.autograd.Function):
    """Zero, whose gradient comes late and is known before."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, gradient: Tensor, seconds: float) -> Tensor:
        ctx.gradient, ctx.seconds = gradient, seconds
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None, None]:
        if ctx.seconds:
            time.sleep(ctx.seconds)
        return ctx.gradient.clone(), None, None


@dataclass(frozen=True, slots=True)
class Computing:
    """How long forward and backward pass of a model take alone on one core, in seconds."""

    forward_seconds: float
    backward_seconds: float


def computing(member: Member, name: str, repeats: int) -> Computing:
    """Measure a model's passes; medians."""
    workload = _workload(member, name)
    seconds: list[tuple[float, float]] = []
    for _ in range(repeats):
        workload.model.zero_grad()
        began = time.perf_counter()
        loss = workload.loss()
        passed = time.perf_counter()
        loss.backward()
        seconds.append((passed - began, time.perf_counter() - passed))
    return Computing(*map(statistics.median, zip(*seconds, strict=True)))


def _workload(member: Member, name: str) -> Workload:
    torch.manual_seed(len(member.name))
    return MODELS[name]()


def _sleeps(parameters: Sequence[nn.Parameter], seconds: float) -> list[float]:
    """The backward pass's time by parameter, in proportion to the number of parameters that follow each other.

    What is too short to sleep for is slept for later, at a parameter that the pass comes to afterwards.
    """
    result, owed = [0.0] * len(parameters), 0.0
    for number in reversed(range(len(parameters))):
        owed += seconds / len(parameters)
        if owed >= LEAST_SLEEP_SECONDS or number == 0:
            result[number], owed = owed, 0.0
    return result


def _emulated(workload: Workload, times: Computing) -> Callable[[], None]:
    """A pass that sleeps as long as the real one takes."""
    parameters = list(workload.model.parameters())
    workload.loss().backward()
    gradients = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    sleeps = _sleeps(parameters, times.backward_seconds)

    def run() -> None:
        time.sleep(times.forward_seconds)
        losses = [_Asleep.apply(*one) for one in zip(parameters, gradients, sleeps, strict=True)]  # type: ignore[no-untyped-call]
        torch.stack(losses).sum().backward()

    return run


@dataclass(frozen=True, slots=True)
class Place:
    """A worker among others."""

    rank: int
    num_workers: int


def train(member: Member, name: str, emulated: Computing | None, place: Place, num_steps: int) -> dict[str, list[float]]:
    """Seconds of this worker's steps by update, which take turns step by step; every other pair the other way round."""
    assert member.groups is not None
    seconds: dict[str, list[float]] = {kind: [] for kind in UPDATES}
    with ExitStack() as stack:
        steps = {}
        for kind, make in UPDATES.items():
            workload = _workload(member, name)
            passes = _passes(workload, emulated)
            transport = PeerTransport(member.groups.all_reduce, rank=place.rank, num_workers=place.num_workers)
            update = stack.enter_context(closing(make(workload, stack.enter_context(closing(transport)))))
            steps[kind] = partial(_step, update, passes)
        for turn in range(NUM_WARM_UP + num_steps):
            for kind in list(UPDATES)[:: 1 if turn % 2 == 0 else -1]:
                seconds[kind].append(steps[kind]())
    return {kind: values[NUM_WARM_UP:] for kind, values in seconds.items()}


def _passes(workload: Workload, emulated: Computing | None) -> Callable[[], None]:
    return _emulated(workload, emulated) if emulated is not None else lambda: workload.loss().backward()


def _step(update: Update, passes: Callable[[], None]) -> float:
    """Seconds that it took."""
    began = time.perf_counter()
    update.zero_grad()
    passes()
    update.step()
    return time.perf_counter() - began


def processes(size: int) -> LocalMembers:
    """Connected ones."""
    members = LocalMembers([worker_name(index) for index in range(size)], timeout_seconds=PATIENCE_SECONDS)
    try:
        members.build(members.names, ())
    except BaseException:
        members.close()
        raise
    return members


@dataclass(frozen=True, slots=True)
class Outcome:
    """One model on so many processes."""

    name: str
    num_parameters: int
    size: int
    step_seconds: dict[str, float]
    """By update, the median."""
    overhead_ratio: float
    """Atomic over pipelined, less one: the median over pairs of steps."""


def compared(members: LocalMembers, name: str, times: Computing | None, num_steps: int) -> Outcome:
    """Both updates; a step takes as long as its slowest worker."""
    size = len(members.names)
    calls = {member: (train, (name, times, Place(rank, size), num_steps)) for rank, member in enumerate(members.names)}
    answers = members.ask(calls).values()
    seconds = {kind: [max(step) for step in zip(*(answer[kind] for answer in answers), strict=True)] for kind in UPDATES}
    ratios = [atomic / pipelined - 1.0 for atomic, pipelined in zip(seconds["atomic"], seconds["pipelined"], strict=True)]
    count = sum(parameter.numel() for parameter in MODELS[name]().model.parameters())
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    return Outcome(name, count, size, medians, statistics.median(ratios))


def report(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table."""
    lines = ["| model | parameters | processes | pipelined (ms) | atomic (ms) | overhead |", "|---" * 6 + "|"]
    for one in outcomes:
        kind = "computing" if one.size == 2 else "sleeping"
        pipelined, atomic = (f"{1e3 * one.step_seconds[update]:.1f}" for update in UPDATES)
        lines.append(
            f"| {one.name} | {one.num_parameters / 1e6:.2f} million | {one.size}, {kind} | {pipelined} | {atomic} "
            f"| {one.overhead_ratio:+.1%} |"
        )
    return "\n".join(lines)


def measured(num_steps: int, console: Console) -> list[Outcome]:
    """Every model, computing on two processes and sleeping on four."""
    outcomes = []
    with processes(2) as two, processes(4) as four:
        for name in MODELS:
            alone = two.ask({two.names[0]: (computing, (name, REPEATS))})[two.names[0]]
            for members, times in ((two, None), (four, alone)):
                outcomes.append(compared(members, name, times, num_steps))
                console.print(f"{name} on {outcomes[-1].size}: {outcomes[-1].overhead_ratio:+.2%}")
    return outcomes


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="pairs of them that count (default 60)")
    arguments = parser.parse_args()
    began = time.monotonic()
    outcomes = measured(arguments.steps, Console(stderr=True, highlight=False))
    print(report(outcomes))
    worst = max(outcome.overhead_ratio for outcome in outcomes)
    print(
        f"\nLargest overhead {worst:+.1%}; asked for: at most {ALLOWED_RATIO:.0%}. {time.monotonic() - began:.0f} s; "
        f"load of the machine at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )
    return 0 if worst <= ALLOWED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
