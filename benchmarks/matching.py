"""Who takes which slot: matching by kinds of layers against scipy's assignment worker by worker, at equal cost.

Run: python -m benchmarks.matching [--workers 256 1024 2048] [--repeats 7]

A job of DP x PP pipelines loses some workers and is rearranged; both sides get the same survivors and slots. Times are
medians of calls in turn, so that whatever else the machine does slows both; scipy's includes its N x N matrix of costs.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.running import LiveTable
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Plan
from restorer.matching import Crew, Layers, match, match_layers, missing_bytes
from restorer.proximity import Proximity
from tests.builders import grid_plan, transformer_profile

ASKED_SECONDS, SCIPY_SECONDS = 0.020, 0.450
NUM_LAYERS, PIPELINE_LENGTH, WORKERS_PER_HOST = 80, 8, 8
PROFILE = transformer_profile(NUM_LAYERS - 2, tied=False)
LAYER_BYTES = [layer.parameter_bytes + layer.optimizer_bytes for layer in PROFILE.layers]


def rearranged(num_workers: int, lost: int) -> tuple[Plan, Plan, list[str]]:
    """Even pipelines, those that take one worker more where the survivors do not divide, and the survivors."""
    before = grid_plan(NUM_LAYERS, [PIPELINE_LENGTH] * (num_workers // PIPELINE_LENGTH), [1] * (num_workers // PIPELINE_LENGTH))
    gone = set(random.Random(lost).sample(before.workers, lost))
    survivors = [worker for worker in before.workers if worker not in gone]
    num_pipelines = len(survivors) // (PIPELINE_LENGTH + 1)
    base, longer = divmod(len(survivors), num_pipelines)
    lengths = [base + (index < longer) for index in range(num_pipelines)]
    return before, grid_plan(NUM_LAYERS, lengths, [1] * num_pipelines), survivors


def in_turn(calls: Sequence[Callable[[], Any]], repeats: int) -> list[list[float]]:
    """Seconds of each call, one after the other, `repeats` times."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for own, call in zip(seconds, calls, strict=True):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return seconds


def rows(num_workers: int, lost: int, workers_per_host: int, repeats: int) -> list[str]:
    before, after, survivors = rearranged(num_workers, lost)
    cluster = Cluster.uniform(num_workers, workers_per_host=workers_per_host)
    held: list[Layers] = [before.layers_of[worker] for worker in survivors]
    wanted = [tuple(stage.layers) for pipeline in after.pipelines for stage in pipeline.stages]

    def ours(with_ties: bool = True) -> tuple[int, ...] | None:
        proximity = Proximity(cluster, PROFILE.network) if with_ties else None
        return match_layers(LAYER_BYTES, Crew(names=survivors, held=held), wanted, proximity=proximity)

    def scipy() -> tuple[int, ...]:
        return match(missing_bytes(LAYER_BYTES, held, wanted).astype(np.float64))

    costs, columns = missing_bytes(LAYER_BYTES, held, wanted), np.arange(len(wanted))
    found = [ours(), ours(with_ties=False), scipy()]
    moved = {int(costs[list(rows), columns].sum()) for rows in found if rows is not None}
    assert len(moved) == 1, f"costs differ: {moved}"
    seconds = in_turn([ours, lambda: ours(with_ties=False), scipy], repeats)
    medians = [statistics.median(own) for own in seconds]
    ratio = statistics.median(theirs / mine for mine, theirs in zip(seconds[0], seconds[2], strict=True))
    times = [f"{median * 1e3:.1f} ms" for median in medians]
    return [f"{num_workers:,}", f"{lost}", f"{workers_per_host}", *times, f"{ratio:.0f} x", f"{moved.pop() / 1e9:,.1f} GB"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    asked = f"asked for 2,048: {ASKED_SECONDS * 1e3:.0f} ms, where scipy takes {SCIPY_SECONDS * 1e3:.0f} ms"
    table = LiveTable(title=f"{asked}; both move equally many bytes")
    for name in ("workers", "lost", "on a host", "ours", "without ties", "scipy", "median ratio", "moved"):
        table.add_column(name, justify="right")
    for num_workers in arguments.workers:
        for lost in (1, num_workers // 64):
            for workers_per_host in (1, WORKERS_PER_HOST):
                table.add_row(*rows(num_workers, lost, workers_per_host, arguments.repeats))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
