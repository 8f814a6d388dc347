"""What checkpoints cost a training script: copies against plain memory copies, overlapped against blocking writes.

    python -m benchmarks.checkpoints [--repeats N] [--every-steps N] [--width N]

Every repeat runs all three variants one after the other, so that a machine that slows down slows all of them; ratios are of
one repeat, with a 95 % confidence interval over repeats (Student). Goodput is steps by wall time (ECRL, equation 6).
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats
from torch import nn

from benchmarks.running import scratch, tell
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from kintsugi.runtime.checkpoints.snapshots import SnapshotPool
from kintsugi.runtime.plain import PlainRun
from kintsugi.runtime.records.audit import audit

BATCH_SIZE = 16
NUM_SAMPLES = 4_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the script that is measured."""

    width: int
    num_steps: int
    every_steps: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run."""

    wall_seconds: float
    stall_seconds: float
    num_steps: int

    @property
    def goodput(self) -> float:
        """Steps per second."""
        return self.num_steps / self.wall_seconds


def model_of(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(nn.Linear(32, width), *blocks, nn.Linear(width, 8))


def train_once(sizes: Sizes, strategy: Strategy | None) -> Outcome:
    """Train, and tell how fast; null writes no checkpoint but the last, which is not counted."""
    model = model_of(sizes.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    points = torch.randn(NUM_SAMPLES, 32, generator=torch.Generator().manual_seed(1))
    every = sizes.every_steps if strategy is not None else sizes.num_steps + 2
    options = CheckpointOptions(every_steps=every, strategy=strategy or Strategy.OVERLAPPED, max_in_flight=4)
    with scratch() as folder:
        run = PlainRun(
            folder, num_samples=NUM_SAMPLES, global_batch_size=BATCH_SIZE, num_steps=sizes.num_steps + 1, checkpoints=options
        )
        run.restore(model, optimizer)
        began = time.monotonic()
        for step in range(sizes.num_steps):
            batch = points[list(run.samples(step))]
            optimizer.zero_grad()
            loss = sum(model(batch).square().mean() for _ in range(4))
            loss.backward()
            optimizer.step()
            run.commit(step, loss)
        run.close()
        wall = time.monotonic() - began
        assert audit(folder).is_exact
    outcome = Outcome(wall, run.stall_seconds, sizes.num_steps)
    tell(_name(strategy), f"{outcome.goodput:.2f} steps/s", f"{outcome.stall_seconds:.3f} s stalled")
    return outcome


def _name(strategy: Strategy | None) -> str:
    return strategy.value if strategy is not None else "reference"


def snapshot_ratio(width: int, repeats: int) -> float:
    """Median time of a copy of a script's state over that of one memory copy of as many bytes."""
    model = model_of(width)
    parts = {"state": {f"{kind}.{name}": value.detach() for kind in "pmv" for name, value in model.state_dict().items()}}
    source = torch.zeros(sum(value.nbytes for value in parts["state"].values()), dtype=torch.uint8)
    target, pool = torch.zeros_like(source), SnapshotPool()
    pool.give_back(pool.copy(parts))
    ratios = []
    for _ in range(repeats):
        began = time.perf_counter()
        pool.give_back(pool.copy(parts))
        copied = time.perf_counter()
        target.copy_(source)
        ratios.append((copied - began) / (time.perf_counter() - copied))
    return float(np.median(ratios))


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % confidence interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{np.mean(values):+.2%} ± {half:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-steps", type=int, default=60)
    parser.add_argument("--every-steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=512)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sizes = Sizes(given.width, given.num_steps, given.every_steps)
    console = Console()
    console.print(f"copy of the state over one memory copy: {snapshot_ratio(given.width, 200):.2f} times (median of 200)")
    train_once(sizes, None)
    variants = (None, Strategy.BLOCKING, Strategy.OVERLAPPED)
    outcomes = [[train_once(sizes, strategy) for strategy in variants] for _ in range(given.repeats)]
    table = Table("variant", "steps/s", "wall s", "stall s", "stall / wall", "goodput against reference")
    for index, strategy in enumerate(variants):
        own = [row[index] for row in outcomes]
        table.add_row(
            _name(strategy),
            f"{np.median([o.goodput for o in own]):.2f}",
            f"{np.median([o.wall_seconds for o in own]):.3f}",
            f"{np.median([o.stall_seconds for o in own]):.3f}",
            f"{np.median([o.stall_seconds / o.wall_seconds for o in own]):.1%}",
            interval([row[index].goodput / row[0].goodput - 1 for row in outcomes]),
        )
    console.print(table)
    console.print("overlapped against blocking: goodput", interval([row[2].goodput / row[1].goodput - 1 for row in outcomes]))
    console.print(
        "overlapped against blocking: stall", interval([row[2].stall_seconds / row[1].stall_seconds - 1 for row in outcomes])
    )


if __name__ == "__main__":
    main()
