"""Reductions after DP 4 x PP 2 lost a worker and runs as pipelines of 2, 2 and 3 stages: overlapped rounds and the serial order.

Serial: one reduction after the other in layer order, after the last backward pass. First in the estimator's replay, with a
shipped profile as it is and over links as slow as the published shares imply, beside the CP-SAT optimum; then really run:
the runtime's executor in one process per worker, computing emulated by sleeping, each process behind a link of its own in a
network namespace (as root; skipped with the reason elsewhere).

    python -m benchmarks.reductions [--profile FILE] [--steps N] [--repeats N] [--no-run]
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ortools.sat.python import cp_model
from rich.console import Console

from benchmarks.links import EmulatedLinks, unavailable_reason
from benchmarks.members import Member, Members
from benchmarks.stepping import executor_of, step_seconds
from benchmarks.validation.tables import shape_of
from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.passes import passes_of
from estimator.program import compile_program
from estimator.replay import replay
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan, Reduction
from kintsugi.core.profile import Device, LayerProfile, LinkCost, Network, Profile, Provenance, ProvenanceKind, Recovery
from kintsugi.runtime.emulation import EmulatedTimes, emulated_job
from planner.replan import replan
from restorer.rounds import fastest_rounds

DEFAULT_PROFILE = "profiles/models/llama2-7b.a100-80g.json"
LOST = "w07"
PUBLISHED_REDUCTION_LESS = 0.3535
PUBLISHED_STEP_LESS = {16: 0.1144, 32: 0.1544, 64: 0.0552}
"""By micro-batches (Chameleon, section V-C)."""
PATIENCE_SECONDS = 20.0
TICK_SECONDS = 1e-7

NUM_LAYERS, FORWARD_MILLISECONDS, WIDTH = 16, 4.0, 131_072
PAYLOAD_BYTES_PER_SECOND = 25e6
SETTLING_STEPS = 1


def mended(profile: Profile, num_microbatches: int) -> Plan:
    """The plan of pipelines of 2, 2 and 3 stages that mends the DP 4 x PP 2 grid."""
    cluster = Cluster.uniform(8)
    first = JobSettings(num_microbatches=num_microbatches, ranges=Ranges(min_dp=4, max_dp=4, min_pp=2, max_pp=2))
    grid = replan(Snapshot(profile=profile, cluster=cluster, settings=first, plan=None, alive=_names(cluster), generation=0)).plan
    alive = tuple(name for name in _names(cluster) if name != LOST)
    then = replace(first, ranges=Ranges(min_dp=3, max_dp=3, min_pp=2, max_pp=3))
    decision = replan(Snapshot(profile=profile, cluster=cluster, settings=then, plan=grid, alive=alive, generation=1))
    assert sorted(len(pipeline.stages) for pipeline in decision.plan.pipelines) == [2, 2, 3]
    return decision.plan


def _names(cluster: Cluster) -> tuple[str, ...]:
    return tuple(worker.id for worker in cluster.workers)


def in_layer_order(plan: Plan) -> Plan:
    """The same plan, one reduction a round, by ascending layers."""
    reductions = sorted((one for round_ in plan.rounds for one in round_), key=lambda reduction: reduction.layers)
    return replace(plan, rounds=tuple((reduction,) for reduction in reductions))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both orders of one plan in the replay, in seconds."""

    num_microbatches: int
    plan: Plan
    pipeline_seconds: float
    serial_seconds: float
    """All reductions one after the other, after the last backward pass."""
    serial_step_seconds: float
    reduce_seconds: float
    """What is left of the reductions after the last backward pass."""
    step_seconds: float
    optimum_seconds: float
    """The same by CP-SAT: end of the last reduction less the last backward pass."""

    @property
    def reduction_less(self) -> float:
        """Share of the serial reduction time that is saved."""
        return 1.0 - self.reduce_seconds / self.serial_seconds

    @property
    def step_less(self) -> float:
        """Share of the serial step that is saved."""
        return 1.0 - self.step_seconds / self.serial_step_seconds

    @property
    def gap_ratio(self) -> float:
        """End of the last reduction, from the first one's beginning at the earliest, over the optimum's, less one."""
        return (self.pipeline_seconds + self.reduce_seconds) / (self.pipeline_seconds + self.optimum_seconds) - 1.0


def compared(profile: Profile, plan: Plan) -> Comparison:
    """Both orders of the plan's reductions, and the optimum."""
    cluster = Cluster.uniform(8)
    costs = Costs(profile, cluster)
    plan = replace(plan, rounds=fastest_rounds(plan, costs))
    price = estimate(plan, profile, cluster)
    reductions = [reduction for round_ in plan.rounds for reduction in round_]
    serial = sum(costs.reduction_seconds(reduction) for reduction in reductions)
    return Comparison(
        num_microbatches=plan.num_microbatches,
        plan=plan,
        pipeline_seconds=price.pipeline_seconds,
        serial_seconds=serial,
        serial_step_seconds=price.iteration_seconds - price.reduce_seconds + serial,
        reduce_seconds=price.reduce_seconds,
        step_seconds=price.iteration_seconds,
        optimum_seconds=max(0.0, optimal_end_seconds(reductions, plan, costs) - price.pipeline_seconds),
    )


def optimal_end_seconds(reductions: Sequence[Reduction], plan: Plan, costs: Costs) -> float:
    """When the last reduction can end at the earliest, by CP-SAT: workers reduce one bucket at a time after their passes."""
    ready = {worker: max(ends) for worker, ends in passes_of(plan, costs).last_seconds(plan).items()}
    model = cp_model.CpModel()
    spans: list[cp_model.IntervalVar] = []
    ends: list[cp_model.LinearExprT] = []
    horizon = _ticks(max(ready.values()) + sum(map(costs.reduction_seconds, reductions))) + len(reductions)
    for reduction in reductions:
        start = model.new_int_var(_ticks(max(ready[worker] for worker in reduction.workers)), horizon, "")
        size = _ticks(costs.reduction_seconds(reduction))
        spans.append(model.new_fixed_size_interval_var(start, size, ""))
        ends.append(start + size)
    for worker in plan.workers:
        own = [span for span, reduction in zip(spans, reductions, strict=True) if worker in reduction.workers]
        model.add_no_overlap(own)
    end = model.new_int_var(0, horizon, "")
    model.add_max_equality(end, ends)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = PATIENCE_SECONDS
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value * TICK_SECONDS


def _ticks(seconds: float) -> int:
    return round(seconds / TICK_SECONDS)


def with_share(profile: Profile, plan: Plan, share: float) -> Profile:
    """The profile over links so slow that the plan's serial reductions are this share of its serial step."""
    low, high = 1e-12, 1e-6
    while high > low * 1.001:
        beta = (low * high) ** 0.5
        own = over(profile, beta)
        row = compared(own, plan)
        low, high = (beta, high) if row.serial_seconds < share * row.serial_step_seconds else (low, beta)
    return over(profile, high)


def over(profile: Profile, beta_seconds_per_byte: float) -> Profile:
    """The profile with another rate between hosts."""
    link = replace(profile.network.inter_host, beta_seconds_per_byte=beta_seconds_per_byte)
    return replace(profile, network=replace(profile.network, inter_host=link))


def emulated_profile() -> Profile:
    """What the emulated job takes, from its own settings; nothing is measured."""
    times = [EmulatedTimes.even(FORWARD_MILLISECONDS / 1e3)] * NUM_LAYERS
    size = 4 * WIDTH
    layers = tuple(
        LayerProfile(
            name=f"layer{index}",
            forward_seconds=own.forward_seconds,
            backward_input_seconds=own.backward_input_seconds if index else 0.0,
            backward_weight_seconds=own.backward_weight_seconds,
            parameter_bytes=size,
            gradient_bytes=size,
            optimizer_bytes=size,
            activation_bytes=size,
            output_bytes=size,
        )
        for index, own in enumerate(times)
    )
    link = LinkCost(alpha_seconds=5e-4, beta_seconds_per_byte=1 / PAYLOAD_BYTES_PER_SECOND)
    return Profile(
        name="emulated",
        microbatch_size=1,
        provenance=Provenance(kind=ProvenanceKind.ANALYTICAL, detail="the emulation's own settings"),
        layers=layers,
        device=Device(name="emulated", memory_bytes=10**10),
        network=Network(intra_host=link, inter_host=link),
        recovery=Recovery(detect_seconds=0.0, regroup_seconds=0.0, restart_seconds=60.0),
    )


def train(member: Member, plan: Plan, num_steps: int) -> list[float]:
    """Seconds of every step of the runtime's own executor on one worker."""
    cluster, profile = Cluster.uniform(8), emulated_profile()
    program = compile_program(plan, profile, cluster)
    times = [EmulatedTimes.even(FORWARD_MILLISECONDS / 1e3)] * NUM_LAYERS
    job = emulated_job(times, num_microbatches=plan.num_microbatches, num_steps=num_steps, width=WIDTH)
    return step_seconds(executor_of(member, job, plan, program), num_steps)


def run(members: Members, plan: Plan, num_steps: int) -> list[float]:
    """The slowest worker's time of every step that counts, in seconds."""
    groups = [plan.workers, *dict.fromkeys(reduction.workers for round_ in plan.rounds for reduction in round_)]
    members.connect(plan.workers, groups)
    answers = members.call(train, plan, SETTLING_STEPS + num_steps, on=plan.workers)
    return [max(step) for step in zip(*answers.values(), strict=True)][SETTLING_STEPS:]


def replayed(profile: Profile) -> list[str]:
    """Rows of the replay."""
    lines = [
        "| links | micro-batches | layers per stage | passes (s) | serial reductions (s) | left of them (s) | less | asked "
        "| serial step (s) | step (s) | less | asked | over CP-SAT |",
        "|---" * 13 + "|",
    ]
    for num_microbatches, asked in PUBLISHED_STEP_LESS.items():
        share = asked / PUBLISHED_REDUCTION_LESS
        plan = mended(profile, num_microbatches)
        slow = with_share(profile, plan, share)
        for links, own in (("as profiled", profile), (f"{share:.0%} of the serial step", slow)):
            row = compared(own, plan)
            lines.append(
                f"| {links} | {num_microbatches} | {shape_of(row.plan)} | {row.pipeline_seconds:.3f} | {row.serial_seconds:.4f} "
                f"| {row.reduce_seconds:.4f} | {row.reduction_less:.2%} | {PUBLISHED_REDUCTION_LESS:.2%} "
                f"| {row.serial_step_seconds:.3f} | {row.step_seconds:.3f} | {row.step_less:.2%} | {asked:.2%} "
                f"| {row.gap_ratio:+.2%} |"
            )
    return lines


def really_run(num_steps: int, repeats: int, console: Console) -> list[str]:
    """Rows of what was run, both orders in turn: predicted, median and least step."""
    profile, cluster = emulated_profile(), Cluster.uniform(8)
    costs = Costs(profile, cluster)
    lines = [
        "| micro-batches | layers per stage | order | predicted (s) | median (s) | least (s) |",
        "|---" * 6 + "|",
    ]
    with EmulatedLinks(dict.fromkeys(_names(cluster), PAYLOAD_BYTES_PER_SECOND)) as links, Members(links) as members:
        for num_microbatches in PUBLISHED_STEP_LESS:
            console.print(f"training with {num_microbatches} micro-batches")
            plan = mended(profile, num_microbatches)
            plans = {"layers in turn": in_layer_order(plan), "overlapped rounds": plan}
            measured: dict[str, list[float]] = {name: [] for name in plans}
            for _ in range(repeats):
                for name, own in plans.items():
                    measured[name] += run(members, own, num_steps)
            kept = []
            for name, own in plans.items():
                predicted = replay(compile_program(own, profile, cluster), costs).iteration_seconds
                kept.append((predicted, statistics.median(measured[name]), min(measured[name])))
                times = " | ".join(f"{seconds:.3f}" for seconds in kept[-1])
                lines.append(f"| {num_microbatches} | {shape_of(plan)} | {name} | {times} |")
            less = " | ".join(f"{1 - after / before:.2%}" for before, after in zip(*kept, strict=True))
            lines.append(f"| {num_microbatches} | | less | {less} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Overlapped rounds of reductions against the serial order.")
    parser.add_argument("--profile", type=Path, default=Path(DEFAULT_PROFILE))
    parser.add_argument("--steps", type=int, default=4, help="steps that count in each run")
    parser.add_argument("--repeats", type=int, default=2, help="runs of either order")
    parser.add_argument("--no-run", action="store_true", help="only the replay")
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    print("\n".join(replayed(codec.load(Profile, arguments.profile))))
    reason = "asked not to" if arguments.no_run else unavailable_reason()
    if reason is not None:
        print(f"\nNothing was run: {reason}.")
        return
    print("\n" + "\n".join(really_run(arguments.steps, arguments.repeats, console)))
    print(f"\nLoad of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
