"""State transfers over emulated links, measured against their plans: makespan, one link's rate, and two sources.

Each worker is a process in a network namespace of its own behind a link with a rate (as root; elsewhere the reason is
printed and nothing is run). What is sent, by whom and in which order is the planner's own migration; it is carried out by
the restorer, and seconds count from the first worker's beginning to the last one's end, on the clock that they share.

    python -m benchmarks.migration [--megabytes-per-second R] [--layer-megabytes S] [--repeats N]
"""

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console

from benchmarks.links import EmulatedLinks, unavailable_reason
from benchmarks.members import Member, Members
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Migration, StateKind, Transfer
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Policy
from kintsugi.core.profile import Device, LayerProfile, LinkCost, Network, Profile, Provenance, ProvenanceKind, Recovery
from planner.replan import replan
from restorer.packing import StateEntries
from restorer.reconfigure import migrate
from restorer.staging import Staging

ASKED_ERROR = 0.15
ASKED_RATE_RATIO = 0.9
ASKED_GAIN = 1.8
NUM_LAYERS, NUM_WORKERS = 16, 8
ALPHA_SECONDS = 1e-3


def profile_of(layer_bytes: int, bytes_per_second: float) -> Profile:
    """Layers whose parameters are a third of their state, as under Adam without master weights, over links of this rate."""
    layer = partial(
        LayerProfile,
        forward_seconds=0.01,
        backward_input_seconds=0.01,
        backward_weight_seconds=0.01,
        parameter_bytes=layer_bytes // 3,
        gradient_bytes=layer_bytes // 3,
        optimizer_bytes=layer_bytes - layer_bytes // 3,
        activation_bytes=0,
        output_bytes=0,
    )
    link = LinkCost(alpha_seconds=ALPHA_SECONDS, beta_seconds_per_byte=1 / bytes_per_second)
    return Profile(
        name="emulated",
        microbatch_size=1,
        provenance=Provenance(kind=ProvenanceKind.ANALYTICAL, detail="the emulation's own settings"),
        layers=tuple(layer(name=f"layer{index}") for index in range(NUM_LAYERS)),
        device=Device(name="emulated", memory_bytes=10**12),
        network=Network(
            intra_host=link,
            inter_host=link,
            host_ingress_bytes_per_second=bytes_per_second,
            host_egress_bytes_per_second=bytes_per_second,
        ),
        recovery=Recovery(detect_seconds=0.0, regroup_seconds=0.0, restart_seconds=60.0),
    )


def planned(profile: Profile, lost: str) -> Migration:
    """The planner's migration from DP 4 x PP 2 to pipelines of 2, 2 and 3 stages."""
    cluster = Cluster.uniform(NUM_WORKERS)
    names = tuple(worker.id for worker in cluster.workers)
    ranges = Ranges(min_dp=4, max_dp=4, min_pp=2, max_pp=2)
    first = JobSettings(num_microbatches=16, ranges=ranges)
    grid = replan(Snapshot(profile=profile, cluster=cluster, settings=first, plan=None, alive=names, generation=0)).plan
    then = JobSettings(
        num_microbatches=16, ranges=Ranges(min_dp=3, max_dp=3, min_pp=2, max_pp=3), policy=Policy.DYNAMIC_PARALLELISM
    )
    alive = tuple(name for name in names if name != lost)
    return replan(Snapshot(profile=profile, cluster=cluster, settings=then, plan=grid, alive=alive, generation=1)).migration


def shared_out(sources: Sequence[str], layer_bytes: int, bytes_per_second: float) -> Migration:
    """One layer from several sources, in equal parts."""
    parts = [
        Transfer(source=source, target="target", layer=0, kind=StateKind.PARAMETER, num_bytes=layer_bytes // len(sources))
        for source in sources
    ]
    return Migration(
        total_bytes=layer_bytes, makespan_seconds=layer_bytes / len(sources) / bytes_per_second, transfers=tuple(parts)
    )


def carry_out(member: Member, migration: Migration, sizes: Mapping[tuple[int, StateKind], int]) -> tuple[float, float, int]:
    """When this worker began and ended, and how many bytes arrived here."""
    assert member.groups is not None
    state = {key: {("layer", "values"): torch.full((size,), key[0] + 1, dtype=torch.uint8)} for key, size in sizes.items()}
    staging = Staging()
    groups = member.groups

    def export(layer: int, kind: StateKind) -> StateEntries:
        return dict(state.get((layer, kind), {}))

    groups.all_reduce(torch.zeros(1))
    began = time.monotonic()
    arrived = migrate(migration, member.name, staging, version=0, export=export, open_transport=groups.stream_transport)
    ended = time.monotonic()
    for key, entries in arrived.items():
        assert torch.equal(entries["layer", "values"], state[key]["layer", "values"]), "state arrived as it was"
    return began, ended, staging.num_arrived_bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """One migration, planned and measured."""

    name: str
    migration: Migration
    all_seconds: tuple[float, ...]
    """Of every repetition."""

    @property
    def measured_seconds(self) -> float:
        """Median of the repetitions."""
        return statistics.median(self.all_seconds)

    @property
    def error_ratio(self) -> float:
        """Measured over planned, minus one."""
        return self.measured_seconds / self.migration.makespan_seconds - 1.0

    @property
    def bytes_per_second(self) -> float:
        """All bytes over the time from the first beginning to the last end."""
        return self.migration.total_bytes / self.measured_seconds


def run(members: Members, name: str, migration: Migration, repeats: int) -> Outcome:
    """Carry a migration out between those who take part in it, several times."""
    involved = sorted({worker for transfer in migration.transfers for worker in (transfer.source, transfer.target)})
    sizes: dict[tuple[int, StateKind], int] = {}
    for target in involved:
        own: dict[tuple[int, StateKind], int] = {}
        for transfer in migration.transfers:
            if transfer.target == target:
                key = transfer.layer, transfer.kind
                own[key] = own.get(key, 0) + transfer.num_bytes
        sizes |= own
    members.connect(involved)
    seconds = []
    for _ in range(repeats):
        answers = members.call(carry_out, migration, sizes, on=involved)
        assert sum(arrived for _, _, arrived in answers.values()) == migration.total_bytes
        seconds.append(max(end for _, end, _ in answers.values()) - min(begin for begin, _, _ in answers.values()))
    return Outcome(name, migration, tuple(seconds))


def report(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table."""
    lines = ["| migration | transfers | MB | planned (s) | measured (s) | all runs (s) | error | MB/s |", "|---" * 8 + "|"]
    for o in outcomes:
        runs = " ".join(f"{seconds:.3f}" for seconds in sorted(o.all_seconds))
        lines.append(
            f"| {o.name} | {len(o.migration.transfers)} | {o.migration.total_bytes / 1e6:.0f} | {o.migration.makespan_seconds:.3f} "
            f"| {o.measured_seconds:.3f} | {runs} | {o.error_ratio:+.1%} | {o.bytes_per_second / 1e6:.1f} |"
        )
    return "\n".join(lines)


def from_sources(layer_bytes: int, bytes_per_second: float, repeats: int) -> tuple[Outcome, Outcome]:
    """The same state from one source and from two, to a target whose link has room for both."""
    rates = {"a": bytes_per_second, "b": bytes_per_second, "target": 2.5 * bytes_per_second}
    with EmulatedLinks(rates) as links, Members(links) as members:
        one = run(members, "one source, one target", shared_out("a", layer_bytes, bytes_per_second), repeats)
        return one, run(members, "two sources, one target", shared_out("ab", layer_bytes, bytes_per_second), repeats)


def measured(layer_bytes: int, bytes_per_second: float, repeats: int, console: Console) -> str:
    """Everything, as text."""
    profile = profile_of(layer_bytes, bytes_per_second)
    names = [worker.id for worker in Cluster.uniform(NUM_WORKERS).workers]
    console.print("one source, then two")
    one, two = from_sources(4 * layer_bytes, bytes_per_second, repeats)
    outcomes = []
    with EmulatedLinks(dict.fromkeys(names, bytes_per_second)) as links, Members(links) as members:
        for lost in names:
            console.print(f"{lost} is lost")
            outcomes.append(run(members, f"{lost} lost, DP 4 x PP 2 to [2, 2, 3]", planned(profile, lost), repeats))
    worst = max(abs(outcome.error_ratio) for outcome in outcomes)
    return "\n".join(
        (
            report([one, two, *outcomes]),
            "",
            f"Largest error of a makespan {worst:.1%}; asked for: {ASKED_ERROR:.0%}.",
            f"One link: {one.bytes_per_second / bytes_per_second:.1%} of its rate; asked for: {ASKED_RATE_RATIO:.0%}.",
            f"Two sources: {two.bytes_per_second / one.bytes_per_second:.2f} times that; asked for: {ASKED_GAIN:g}.",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="State transfers over emulated links, measured against their plans.")
    parser.add_argument("--megabytes-per-second", type=float, default=25.0, help="of payload, of each worker's link, each way")
    parser.add_argument("--layer-megabytes", type=float, default=12.0, help="state of each of 16 layers")
    parser.add_argument("--repeats", type=int, default=5, help="of each migration, of which the median counts")
    arguments = parser.parse_args()
    if (reason := unavailable_reason()) is not None:
        print(f"Nothing was run: {reason}.")
        return
    console = Console(stderr=True, highlight=False)
    print(measured(round(arguments.layer_megabytes * 1e6), arguments.megabytes_per_second * 1e6, arguments.repeats, console))
    print(f"Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
