"""DP 4 x PP 2 loses a worker and goes on as pipelines of 2, 2 and 3: what moves, for how long, and what memory it takes.

Run: python -m benchmarks.placement [--layers 4 8 16] [--profile FILE]

Each of the eight possible failures, for a model of equal layers. The baseline is identity placement: survivors in rank order into
slots in row-major order, each piece of state from the first survivor that holds it; one column gives that placement our
sources. Recovery is regrouping and transfer, where regrouping takes what the published figures leave for it: transfers that
are 32.35 % shorter made recoveries 26.79 % shorter (11.2 s to 8.2 s), so 17.2 % of the baseline's recovery did not move state.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.running import tell
from estimator.costs import Costs
from estimator.estimate import estimate
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Migration, Transfer
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan, Policy, Schedule
from kintsugi.core.profile import Profile
from planner.arranging.arrangement import Arrangement, PipelineShape
from planner.placing.placement import Holdings, place
from planner.replan import replan
from restorer.makespan import makespan_seconds
from restorer.migration import plan_migration
from restorer.needs import needs_of

NUM_MICROBATCHES, NUM_WORKERS = 16, 8
PUBLISHED_TRANSFER, PUBLISHED_RECOVERY = 0.3235, 0.2679
REMAINDER = 1 - PUBLISHED_RECOVERY / PUBLISHED_TRANSFER
"""Share of the baseline's published recovery that moved no state."""

GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class Loss:
    """One failure and the migrations that mend it."""

    lost: str
    ours: Migration
    resourced: Migration
    """Identity placement with our sources."""
    identity_bytes: int
    identity_seconds: float
    peak_bytes: tuple[Mapping[str, int], Mapping[str, int]]
    """Peak memory of every worker, before and after."""


def equal_layers(profile: Profile, num_layers: int) -> Profile:
    """A model of so many of the profile's second layer, a block; the first and the last often are not."""
    block = profile.layers[1]
    return replace(profile, layers=tuple(replace(block, name=f"block{index}") for index in range(num_layers)))


def losses(profile: Profile) -> list[Loss]:
    """Each of the eight failures, told as it is planned."""
    cluster = Cluster.uniform(NUM_WORKERS)
    settings = JobSettings(num_microbatches=NUM_MICROBATCHES, ranges=Ranges(min_dp=4, max_dp=4, min_pp=2, max_pp=2))
    alive = tuple(cluster.by_id)
    grid = replan(Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=alive, generation=0)).plan
    return [_loss(profile, cluster, grid, lost) for lost in grid.workers]


def _loss(profile: Profile, cluster: Cluster, grid: Plan, lost: str) -> Loss:
    survivors = [worker for worker in cluster.by_id if worker != lost]
    costs, holdings = Costs(profile, cluster), Holdings(grid, survivors)
    shapes = tuple(PipelineShape(cuts, count) for cuts, count in zip(_cuts(profile.num_layers), (5, 5, 6), strict=True))
    after = place(
        Arrangement(shapes, 1.0),
        survivors,
        holdings,
        costs,
        schedule=Schedule.ONE_F_ONE_B,
        generation=1,
        policy=Policy.DYNAMIC_PARALLELISM,
    )
    identity = _in_rank_order(after, survivors)
    naive = _from_the_first(grid, identity, profile, survivors)
    peaks = [{s.worker: s.peak_memory_bytes for s in estimate(plan, profile, cluster).stages} for plan in (grid, after)]
    loss = Loss(
        lost=lost,
        ours=plan_migration(grid, after, profile, cluster, survivors),
        resourced=plan_migration(grid, identity, profile, cluster, survivors),
        identity_bytes=sum(transfer.num_bytes for transfer in naive),
        identity_seconds=makespan_seconds(naive, profile, cluster),
        peak_bytes=(peaks[0], peaks[1]),
    )
    tell(lost, *_cells(loss))
    return loss


def _cuts(num_layers: int) -> tuple[tuple[int, ...], ...]:
    """Even pipelines of 2, 2 and 3 stages; what does not divide goes to the last stages, which hold the fewest activations."""
    lengths = (2, 2, 3)
    return tuple(tuple(num_layers * stage // length for stage in range(length + 1)) for length in lengths)


def _in_rank_order(plan: Plan, survivors: Sequence[str]) -> Plan:
    """The same slots, taken row by row by survivors in the order of their ranks."""
    names = iter(survivors)
    pipelines = tuple(
        replace(pipeline, stages=tuple(replace(stage, worker=next(names)) for stage in pipeline.stages))
        for pipeline in plan.pipelines
    )
    return replace(plan, pipelines=pipelines, rounds=())


def _from_the_first(before: Plan, after: Plan, profile: Profile, survivors: Sequence[str]) -> list[Transfer]:
    """Everything that is lacking, each piece whole from the first survivor in rank order that has it."""
    return [
        Transfer(
            source=min(need.sources, key=survivors.index),
            target=need.target,
            layer=need.layer,
            kind=need.kind,
            num_bytes=need.device_bytes * profile.tensor_parallel_degree,
        )
        for need in needs_of(before, after, profile, survivors)
    ]


def shorter(ours: float, baseline: float) -> float:
    """By which part ours is shorter."""
    return 1 - ours / baseline if baseline else 0.0


def recovery_shorter(transfer: float) -> float:
    """By which part a recovery is shorter whose transfer is, with the published rest."""
    return transfer * (1 - REMAINDER)


def memory(rows: Sequence[Loss], num_layers: int) -> Table:
    """Peak memory of every worker before any failure and after each."""
    result = Table(title=f"{num_layers} layers: peak memory per worker, in GB", title_justify="left")
    before = rows[0].peak_bytes[0]
    for name in ("lost", *before):
        result.add_column(name, justify="left" if name == "lost" else "right")
    for lost, peaks in [("none", before), *((row.lost, row.peak_bytes[1]) for row in rows)]:
        result.add_row(lost, *(f"{peaks[worker] / GIGABYTE:.2f}" if worker in peaks else "-" for worker in before))
    return result


def transfers(rows: Sequence[Loss], num_layers: int) -> Table:
    """Bytes and times of each failure, and the means."""
    result = Table(title=f"{num_layers} layers: bytes moved and transfer time", title_justify="left")
    for name in ("lost", "moved", "identity", "less", "transfer", "bound", "identity's", "with our sources", "shorter"):
        result.add_column(name, justify="left" if name == "lost" else "right")
    for row in rows:
        result.add_row(row.lost, *_cells(row))
    num_bytes = [shorter(row.ours.total_bytes, row.identity_bytes) for row in rows]
    seconds = [shorter(row.ours.makespan_seconds, row.identity_seconds) for row in rows]
    blank = [""] * 2
    result.add_row("mean", *blank, f"{statistics.mean(num_bytes):.2%}", *blank, *blank, f"{statistics.mean(seconds):.2%}")
    recovery = recovery_shorter(statistics.mean(seconds))
    result.caption = f"mean recovery {recovery:.2%} shorter"
    if num_layers == 16:
        result.caption += f"; published: transfer {PUBLISHED_TRANSFER:.2%}, recovery {PUBLISHED_RECOVERY:.2%}"
    return result


def _cells(row: Loss) -> list[str]:
    ours = row.ours
    return [
        f"{ours.total_bytes / GIGABYTE:.2f} GB",
        f"{row.identity_bytes / GIGABYTE:.2f} GB",
        f"{shorter(ours.total_bytes, row.identity_bytes):.1%}",
        f"{ours.makespan_seconds:.4f} s",
        f"{ours.lower_bound_seconds:.4f} s",
        f"{row.identity_seconds:.4f} s",
        f"{row.resourced.makespan_seconds:.4f} s",
        f"{shorter(ours.makespan_seconds, row.identity_seconds):.1%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 8, 16])
    default = Path(__file__).parent.parent / "profiles" / "models" / "llama2-7b.a100-80g.json"
    parser.add_argument("--profile", type=Path, default=default)
    arguments = parser.parse_args()
    console = Console(width=132)
    for num_layers in arguments.layers:
        rows = losses(equal_layers(codec.load(Profile, arguments.profile), num_layers))
        console.print(transfers(rows, num_layers))
        console.print(memory(rows, num_layers))


if __name__ == "__main__":
    main()
