"""The memory of messages: buffers from when they can be needed until their ends are known, against buffers for a whole step.

    python -m benchmarks.message_buffers [--depth 4] [--microbatches 16 64] [--mebibytes 4] [--steps 9]

One pipeline under 1F1B, a process for each stage, the runtime's own executor over gloo on loopback, computing emulated by sleeping.
Both ways train in turn, each in processes of its own: ours, and with all receives begun at once and all sends kept to the commit
point. Memory is the most that a worker had resident, beyond what it had before its first step; the worst worker's. A step is
the slowest worker's, the median of those that count. On CPUs a receive takes no memory before its message comes; in pinned
memory, as for workers on CUDA devices, it does.
"""

import argparse
import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.arguments import at_least
from benchmarks.members import LocalMembers, Member
from benchmarks.stepping import Opening, executor_of, step_seconds
from estimator.message_windows import Windows, most_held, windows
from estimator.program import RECEIVES, Action, Program, compile_program
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Plan
from kintsugi.reporting.tables import Column, Table, Value
from kintsugi.runtime.emulation import EmulatedTimes, emulated_job
from kintsugi.runtime.machine import description
from tests.builders import grid_plan, layer, profile_of

MEBIBYTE = 1 << 20
FORWARD_SECONDS = 2e-3
"""Of a stage, which is one layer; a backward pass takes twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained."""

    depth: int
    """Stages."""
    num_microbatches: int
    num_bytes: int
    """Of a message."""
    num_steps: int
    """That count."""

    @property
    def plan(self) -> Plan:
        """One pipeline of one layer a stage."""
        return grid_plan(self.depth, [self.depth], [self.num_microbatches])

    @property
    def program(self) -> Program:
        """Of the plan."""
        profile = profile_of([layer(f"layer{index}") for index in range(self.depth)])
        return compile_program(self.plan, profile, Cluster.uniform(self.depth))


def for_a_step(actions: Sequence[Action], places: Sequence[int]) -> Windows:  # noqa: ARG001  # the peers' lists say nothing then
    """All receives are begun with the step, and no send is known to be over before its end."""
    return Windows(at_once=tuple(action for action in actions if action.kind in RECEIVES), begun_with={}, over_with={})


WAYS: dict[str, Opening] = {"ours": windows, "for a whole step": for_a_step}


def train(member: Member, way: str, setting: Setting) -> tuple[int, list[float]]:
    """The most memory beyond what there was before, in bytes, and the seconds of every step but the first."""
    job = emulated_job(
        [EmulatedTimes.even(FORWARD_SECONDS)] * setting.depth,
        num_microbatches=setting.num_microbatches,
        num_steps=setting.num_steps,
        width=setting.num_bytes // torch.float32.itemsize,
    )
    executor = executor_of(member, job, setting.plan, setting.program, WAYS[way])
    before = resident("VmRSS")
    _, *seconds = step_seconds(executor, setting.num_steps + 1)
    return resident("VmHWM") - before, seconds


def resident(field: str) -> int:
    """Memory of this process in bytes: what is resident now (`VmRSS`), or was at most (`VmHWM`)."""
    found = re.search(rf"^{field}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def measured(way: str, setting: Setting) -> tuple[int, float]:
    """The worst worker's memory in bytes, and the median step in seconds."""
    workers = setting.plan.workers
    with LocalMembers(workers) as members:
        members.build(workers, (workers,))
        answers = members.call(train, way, setting)
    steps = [max(step) for step in zip(*(seconds for _, seconds in answers.values()), strict=True)]
    return max(memory for memory, _ in answers.values()), statistics.median(steps)


def rows(setting: Setting) -> list[tuple[Value, ...]]:
    """Both ways, and ours over the other."""
    program = setting.program
    found = []
    for way, opening in WAYS.items():
        most = max(most_held(actions, opening(actions, program.places[worker])) for worker, actions in program.actions.items())
        memory, step = measured(way, setting)
        found.append((most, memory / MEBIBYTE, 1e3 * step))
    ratios = tuple(one / other for one, other in zip(*found, strict=True))
    return [(setting.num_microbatches, way, *own) for way, own in zip([*WAYS, "ratio"], [*found, ratios], strict=True)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=at_least(2), default=4, help="stages")
    parser.add_argument("--microbatches", type=at_least(1), nargs="+", default=[16, 64], help="of a step")
    parser.add_argument("--mebibytes", type=at_least(1), default=4, help="of a message")
    parser.add_argument("--steps", type=at_least(1), default=9, help="that count")
    given = parser.parse_args()
    console = Console(stderr=True)
    found: list[tuple[Value, ...]] = []
    for count in given.microbatches:
        console.print(f"{count} micro-batches")
        setting = Setting(depth=given.depth, num_microbatches=count, num_bytes=given.mebibytes * MEBIBYTE, num_steps=given.steps)
        found += rows(setting)
    table = Table(
        name="message_buffers",
        title=f"Messages of {given.mebibytes} MiB in a pipeline of {given.depth} stages, the worst worker",
        columns=(
            Column(key="num_microbatches", title="micro-batches"),
            Column(key="way", title="buffers"),
            Column(key="most_held", title="messages with buffers at once", form=".3g"),
            Column(key="mebibytes", title="memory beyond the model, MiB", form=",.3g"),
            Column(key="milliseconds", title="step, ms", form=",.3g"),
        ),
        rows=tuple(found),
        note=f"{description()}; load at the end {os.getloadavg()[0]:.1f}. Medians of {given.steps} steps.",
    )
    print(table.markdown())


if __name__ == "__main__":
    main()
