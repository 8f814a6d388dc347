"""A worker joins every so many steps: throughput per worker of synchronous SGD, AD-PSGD, and of switching between them.

As figure 6 of Spotnik. Every worker is a process; computing is emulated by sleeping, layer by layer, forward and backward;
gradients and models are real and cross one emulated link that all workers share (a token bucket; as root, else the reason
is printed and nothing is run). All ways of synchronising take turns at every size, in the same processes.

    python -m benchmarks.synchronization [--workers N] [--steps S] [--picture docs/synchronization]

Exits with 1 where the adaptive run is slower than ALLOWED_LOSS below the better fixed one at any size.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from benchmarks.links import unavailable_reason
from benchmarks.members import Member, Members
from benchmarks.shared_link import SharedLink
from kintsugi.core.cluster import worker_name
from kintsugi.reporting.pictures import new_axes, pyplot, save
from kintsugi.runtime.emulation import EmulatedLayer, EmulatedTimes
from kintsugi.runtime.synchronization import (
    PairwiseAveraging,
    PeerTransport,
    Policy,
    Switch,
    SynchronizedOptimizer,
    SynchronousSGD,
    ThroughputPolicy,
)

ALLOWED_LOSS = 0.05
NUM_LAYERS, PASS_SECONDS, WIDTH = 4, 0.012, 32_768
"""Three passes per layer; its parameters are `WIDTH` numbers of 4 bytes."""
BUCKET_BYTES = 4 * WIDTH
MODEL_BYTES = NUM_LAYERS * 4 * WIDTH
LINK_BYTES_PER_SECOND = 24e6
NUM_TURNS, NUM_SETTLING, NUM_REJOINING = 3, 20, 3
"""Turns that each run gets at a size; steps that do not count: in its first turn, in which policies decide, and in later ones."""

FIXED = ("S-SGD", "AD-PSGD")
ADAPTIVE, PUBLISHED = "adaptive", "adaptive, 40 %"
RUNS = (*FIXED, ADAPTIVE, PUBLISHED)
LEAVE_BELOW = {ADAPTIVE: 0.97, PUBLISHED: 0.4}
"""The first gives away less than is allowed, whatever the other strategy brings."""


@dataclass(slots=True)
class _Trainee:
    """One worker's part in one of the runs."""

    model: nn.Sequential
    optimizer: SynchronizedOptimizer
    switches: list[Switch]


@dataclass(frozen=True, slots=True)
class Interval:
    """One worker's steps between two joins."""

    step_seconds: tuple[float, ...]
    strategy: str
    """At the end."""
    switches: tuple[Switch, ...]


def train(member: Member, run: str, rank: int, num_workers: int, num_steps: int) -> Interval:
    """Go on with one run among so many workers, or join it."""
    assert member.groups is not None
    transport = PeerTransport(member.groups.all_reduce, rank=rank, num_workers=num_workers)
    if run in member.kept:
        member.kept[run].optimizer.adopt(transport)
    else:
        member.kept[run] = _trainee(run, transport)
    trainee: _Trainee = member.kept[run]
    trainee.switches.clear()
    seconds = []
    for _ in range(num_steps):
        began = time.perf_counter()
        trainee.optimizer.zero_grad()
        trainee.model(torch.ones(1, 1)).square().mean().backward()
        trainee.optimizer.step()
        seconds.append(time.perf_counter() - began)
    return Interval(tuple(seconds), trainee.optimizer.strategy, tuple(trainee.switches))


def _trainee(run: str, transport: PeerTransport) -> _Trainee:
    times = EmulatedTimes.even(PASS_SECONDS)
    model = nn.Sequential(*[EmulatedLayer(times, WIDTH) for _ in range(NUM_LAYERS)])
    switches: list[Switch] = []
    candidates = [SynchronousSGD(), PairwiseAveraging()]
    policy: Policy | None = None
    if run in LEAVE_BELOW:
        policy = ThroughputPolicy(leave_below_ratio=LEAVE_BELOW[run], return_above_ratio=max(0.98, LEAVE_BELOW[run]))
    elif run == FIXED[1]:
        candidates.reverse()
    optimizer = SynchronizedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3),
        candidates,
        transport,
        policy=policy,
        on_switch=switches.append,
        bucket_bytes=BUCKET_BYTES,
    )
    return _Trainee(model, optimizer, switches)


@dataclass(frozen=True, slots=True)
class Point:
    """All runs at one size."""

    num_workers: int
    per_second: dict[str, float]
    """Steps per second of a worker once settled, by run: of the first quartile of steps, each being the median over workers.

    What else the machine does delays steps and hastens none.
    """
    strategies: dict[str, str]
    """At the end of the interval, by run."""
    reasons: tuple[str, ...]
    """Of what the adaptive runs changed."""

    @property
    def best_fixed(self) -> float:
        """Of the two that do not change."""
        return max(self.per_second[run] for run in FIXED)

    def ratio(self, run: str) -> float:
        """Throughput over that of the better fixed way."""
        return self.per_second[run] / self.best_fixed


def point(members: Members, num_workers: int, num_steps: int) -> Point:
    """One worker more joins every run; all runs take turns, so that what else the machine does meets all of them."""
    names = members.names[:num_workers]
    seconds: dict[str, list[float]] = {run: [] for run in RUNS}
    strategies, reasons = {}, []
    for turn, run in itertools.product(range(NUM_TURNS), RUNS):
        skipped = NUM_REJOINING if turn else NUM_SETTLING
        members.connect(names)
        calls = {name: (train, (run, rank, num_workers, skipped + num_steps)) for rank, name in enumerate(names)}
        intervals: list[Interval] = list(members.calls(calls).values())
        steps = zip(*(interval.step_seconds[skipped:] for interval in intervals), strict=True)
        seconds[run] += [statistics.median(of_workers) for of_workers in steps]
        strategies[run] = intervals[0].strategy
        reasons += [f"{run}: {switch.reason}" for switch in intervals[0].switches]
    per_second = {run: 1.0 / statistics.quantiles(values, n=4)[0] for run, values in seconds.items()}
    return Point(num_workers, per_second, strategies, tuple(reasons))


def report(points: Sequence[Point]) -> str:
    """A Markdown table, and why strategies were changed."""
    header = ("workers", *RUNS, *(f"{run} / better fixed" for run in LEAVE_BELOW), "adaptive follows")
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for one in points:
        cells = [str(one.num_workers), *(f"{one.per_second[run]:.2f}" for run in RUNS)]
        cells += [*(f"{one.ratio(run):.2f}" for run in LEAVE_BELOW), one.strategies[ADAPTIVE]]
        lines.append(f"| {' | '.join(cells)} |")
    changes = [f"- {one.num_workers} workers, {reason}" for one in points for reason in one.reasons]
    worst = min(point.ratio(ADAPTIVE) for point in points)
    verdict = f"Adaptive over the better fixed one, at worst {worst:.3f}; asked for: {1 - ALLOWED_LOSS:.2f}."
    return "\n".join(("Steps per second of one worker:", "", *lines, "", *changes, "", verdict))


def draw(points: Sequence[Point], path: Path) -> list[Path]:
    """Throughput per worker over the number of workers, as PNG."""
    plot = pyplot()
    figure, axes = new_axes(plot, "workers (one joins every interval)", "throughput of one worker (% of one alone)")
    styles = {FIXED[0]: ("#1f4e79", "s"), FIXED[1]: ("#e4572e", "^"), ADAPTIVE: ("#4b8b3b", "o"), PUBLISHED: ("#8a8a8a", "D")}
    alone = points[0].per_second[FIXED[0]]
    for run, (colour, marker) in styles.items():
        values = [100 * point.per_second[run] / alone for point in points]
        label = f"{run}: synchronous while above {LEAVE_BELOW[run]:.0%}" if run == ADAPTIVE else run
        width, size = (3.5, 9) if run == ADAPTIVE else (1.5, 5)
        axes.plot([point.num_workers for point in points], values, color=colour, marker=marker, label=label, lw=width, ms=size)
    axes.set_ylim(0, 115)
    axes.set_xticks([point.num_workers for point in points])
    axes.legend(fontsize="small", loc="lower left")
    written = save(figure, path, ("png",))
    plot.close(figure)
    return written


def measured(num_workers: int, num_steps: int, console: Console) -> list[Point]:
    """Every size from one worker on."""
    names = [worker_name(index) for index in range(num_workers)]
    points = []
    with SharedLink(names, LINK_BYTES_PER_SECOND) as link, Members(link) as members:
        for size in range(1, num_workers + 1):
            points.append(point(members, size, num_steps))
            console.print(f"{size} workers: {', '.join(f'{run} {value:.2f}/s' for run, value in points[-1].per_second.items())}")
    return points


def main() -> int:
    """Measure, print and draw; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8, help="at the end (default 8)")
    parser.add_argument("--steps", type=int, default=10, help=f"that count in each of {NUM_TURNS} turns at a size (default 10)")
    parser.add_argument("--picture", type=Path, help="to write, without .png")
    arguments = parser.parse_args()
    if (reason := unavailable_reason()) is not None:
        print(f"Nothing was run: {reason}.")
        return 0
    began = time.monotonic()
    points = measured(arguments.workers, arguments.steps, Console(stderr=True, highlight=False))
    print(report(points))
    if arguments.picture is not None:
        print(f"\nPictures: {', '.join(map(str, draw(points, arguments.picture)))}")
    print(
        f"\nA model of {MODEL_BYTES / 1e6:.2f} MB, a shared link of {LINK_BYTES_PER_SECOND / 1e6:.0f} MB/s, "
        f"{(3 * NUM_LAYERS - 1) * PASS_SECONDS * 1e3:.0f} ms of computing per step; {time.monotonic() - began:.0f} s; "
        f"load of the machine at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )
    return 0 if min(point.ratio(ADAPTIVE) for point in points) >= 1 - ALLOWED_LOSS else 1


if __name__ == "__main__":
    sys.exit(main())
