"""Accuracy while nodes come and go, beside runs of a fixed size, as figures 12 to 15 of Chaos (multi-party).

Multi-party: every node brings its own data, and takes them along when it leaves. One owner: the data are divided anew among
the nodes that are there. Membership changes between two epochs, as the runtime changes it between two steps. This is
about accuracy, not time: one process computes what all nodes would, the mean of their gradients over batches of
equal size, which is the gradient over all those batches at once; data parallelism is exact.

    python -m benchmarks.convergence_churn [--seeds S] [--only NAME] [--picture docs/churn]
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.arguments import at_least
from benchmarks.learners import DIGITS, LEARNERS, Data, accuracy, learn
from kintsugi.reporting.pictures import pyplot, save

Membership = tuple[tuple[float, tuple[int, ...]], ...]
"""From which share of all epochs on which nodes are there."""

FOUR, FIVE, SIX = (0, 1, 2, 3), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)
FIXED: Mapping[str, Membership] = {"4 nodes": ((0.0, FOUR),), "5 nodes": ((0.0, FIVE),)}
CHANGES: Mapping[str, Membership] = {
    "one joins": ((0.0, FOUR), (0.5, FIVE)),
    "one leaves": ((0.0, FIVE), (0.5, FOUR)),
}
FOUR_EVENTS: Mapping[str, Membership] = {
    "4 nodes": FIXED["4 nodes"],
    "6 nodes": ((0.0, SIX),),
    "four events": ((0.0, FOUR), (0.2, FIVE), (0.388, (1, 2, 3, 4)), (0.58, (1, 2, 3, 4, 5)), (0.776, SIX)),
}
"""The events of figure 15: joins at epochs 50, 145 and 194 and a leave at epoch 97 of 250."""
MULTI_PARTY, ONE_OWNER = "multi-party", "one owner"
FORMATS = ("png",)
"""Of pictures of curves: as lines of text they would be long."""
OWNERS = (MULTI_PARTY, ONE_OWNER)


@dataclass(frozen=True, slots=True)
class Run:
    """One training run."""

    task: str
    owner: str
    name: str
    membership: Membership
    seed: int

    def nodes(self, epoch: int) -> tuple[int, ...]:
        """Which are there in an epoch."""
        num_epochs = LEARNERS[self.task].num_epochs
        return next(nodes for share, nodes in reversed(self.membership) if epoch >= round(share * num_epochs))


def shards(run: Run, data: Data, nodes: Sequence[int]) -> list[torch.Tensor]:
    """The samples of each node that is there."""
    if run.owner == MULTI_PARTY:
        return [data.nodes[node] for node in nodes]
    everything = torch.cat(data.nodes)
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(run.seed))
    return [everything[order[index :: len(nodes)]] for index in range(len(nodes))]


def trained(run: Run) -> list[float]:
    """Accuracy in percent before the first epoch and after each."""
    torch.set_num_threads(1)
    learner = LEARNERS[run.task]
    data, model = learner.data(run.seed), learner.model(run.seed)
    optimizer, generator = learner.optimizer(model), torch.Generator().manual_seed(run.seed)
    schedule = learner.schedule(optimizer)
    curve = [accuracy(model, data)]
    for epoch in range(learner.num_epochs):
        own = shards(run, data, run.nodes(epoch))
        for _ in range(learner.steps_per_epoch):
            chosen = [shard[torch.randint(len(shard), (learner.batch,), generator=generator)] for shard in own]
            learn(model, optimizer, data, torch.cat(chosen))
            schedule.step()
        curve.append(accuracy(model, data))
    return curve


def all_runs(tasks: Sequence[str], num_seeds: int) -> list[Run]:
    """Fixed sizes and one change in every task and for both kinds of owners; the four events for the first task."""
    kinds = [(task, owner, name, one) for task in tasks for owner in OWNERS for name, one in {**FIXED, **CHANGES}.items()]
    if DIGITS in tasks:
        kinds += [(DIGITS, MULTI_PARTY, name, FOUR_EVENTS[name]) for name in ("6 nodes", "four events")]
    return [Run(*kind, seed) for kind in kinds for seed in range(num_seeds)]


Curves = Mapping[tuple[str, str, str], list[list[float]]]
"""By task, owner and name: a curve for each seed."""


def curves_of(runs: Sequence[Run], console: Console) -> Curves:
    """Train all runs, on all cores."""
    result: dict[tuple[str, str, str], list[list[float]]] = {}
    with ProcessPoolExecutor() as pool:
        for run, curve in zip(runs, pool.map(trained, runs), strict=True):
            result.setdefault((run.task, run.owner, run.name), []).append(curve)
            console.print(f"{run.task}, {run.owner}, {run.name}, seed {run.seed}: {curve[-1]:.1f} %")
    return result


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Mean over seeds. Shape [epochs + 1]."""
    return [statistics.fmean(values) for values in zip(*curves, strict=True)]


def report(curves: Curves) -> str:
    """A Markdown table: accuracy in the end, how far it ever fell, and what the epochs after a change of membership did."""
    header = ("task", "data", "run", "accuracy (%)", "spread over seeds", "deepest fall (points)", "change around events (points)")
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for (task, owner, name), of_seeds in curves.items():
        last = [curve[-1] for curve in of_seeds]
        fall = max(deepest_fall(curve) for curve in of_seeds)
        figures = (f"{statistics.fmean(last):.1f}", f"{statistics.pstdev(last):.1f}", f"{fall:.1f}", _around(task, name, of_seeds))
        lines.append(f"| {' | '.join((task, owner, name, *figures))} |")
    return "\n".join(lines)


UNSETTLED_RATIO = 1 / 3
"""Share of all epochs in which accuracy still jumps, whoever is there; falls count after it, as do all events but the first."""


def deepest_fall(curve: Sequence[float]) -> float:
    """By how much accuracy was ever below the best before, in points, once the run has settled: at whatever time it fell."""
    settled = curve[round(UNSETTLED_RATIO * (len(curve) - 1)) :]
    return max(best - value for best, value in zip(itertools.accumulate(settled, max), settled, strict=True))


def _events(task: str, name: str) -> list[int]:
    """Epochs before which membership changes."""
    membership = {**FIXED, **CHANGES, **FOUR_EVENTS}[name]
    return [round(share * LEARNERS[task].num_epochs) for share, _ in membership[1:]]


def _around(task: str, name: str, of_seeds: Sequence[Sequence[float]]) -> str:
    """Accuracy two epochs after each event less that just before it; the mean over seeds."""
    mean = mean_curve(of_seeds)
    return ", ".join(f"{mean[min(event + 2, len(mean) - 1)] - mean[event]:+.1f}" for event in _events(task, name)) or "none"


COLOURS = {"4 nodes": "#1f4e79", "5 nodes": "#f2b134", "6 nodes": "#4b8b3b", "one joins": "#4b8b3b", "one leaves": "#4b8b3b"}


def draw(curves: Curves, path: Path) -> list[Path]:
    """Curves of one change beside fixed sizes, a row for each kind of owner; and those of the four events."""
    plot = pyplot()
    tasks = list(dict.fromkeys(task for task, _, _ in curves))
    figure, panels = plot.subplots(4, len(tasks), figsize=(4.2 * len(tasks), 11), layout="constrained", squeeze=False, sharex="col")
    for column, task in enumerate(tasks):
        for row, (owner, change) in enumerate((owner, change) for owner in OWNERS for change in CHANGES):
            _draw_panel(panels[row][column], curves, task, owner, ("4 nodes", "5 nodes", change))
            panels[row][column].set_title(f"{task}\n{owner}, {change}", fontsize="medium")
        panels[-1][column].set_xlabel("epoch")
    written = save(figure, path, FORMATS)
    plot.close(figure)
    if (DIGITS, MULTI_PARTY, "four events") in curves:
        written += _draw_four_events(plot, curves, path.with_name(f"{path.name}-four-events"))
    return written


def _draw_panel(axes: Any, curves: Curves, task: str, owner: str, names: Sequence[str]) -> None:
    for name in names:
        of_seeds = curves[task, owner, name]
        mean = mean_curve(of_seeds)
        colour = "#e4572e" if name == "four events" else COLOURS[name]
        axes.plot(mean, color=colour, label=name, linewidth=1.4)
        axes.fill_between(range(len(mean)), *_range(of_seeds), color=colour, alpha=0.12, linewidth=0)
        for event in _events(task, name):
            axes.axvline(event, color="grey", linestyle=":", linewidth=1)
    start = mean_curve(curves[task, owner, names[0]])
    axes.set_ylim(bottom=start[len(start) // 10])
    axes.set_ylabel("accuracy (%)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")


def _range(of_seeds: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Least and largest over seeds, by epoch."""
    by_epoch = list(zip(*of_seeds, strict=True))
    return [min(values) for values in by_epoch], [max(values) for values in by_epoch]


def _draw_four_events(plot: Any, curves: Curves, path: Path) -> list[Path]:
    """Accuracy, and what the run with events has over the one with four nodes."""
    figure, (top, bottom) = plot.subplots(2, 1, figsize=(8.0, 6.0), sharex=True, height_ratios=(2, 1), layout="constrained")
    _draw_panel(top, curves, DIGITS, MULTI_PARTY, tuple(FOUR_EVENTS))
    base = mean_curve(curves[DIGITS, MULTI_PARTY, "4 nodes"])
    for name, colour in (("6 nodes", COLOURS["6 nodes"]), ("four events", "#e4572e")):
        mean = mean_curve(curves[DIGITS, MULTI_PARTY, name])
        bottom.plot([value - other for value, other in zip(mean, base, strict=True)], color=colour, label=name)
    for event in _events(DIGITS, "four events"):
        bottom.axvline(event, color="grey", linestyle=":", linewidth=1)
    bottom.set_ylabel("gain over 4 nodes (points)")
    bottom.set_xlabel("epoch (a node joins, one leaves, one joins, one joins)")
    bottom.grid(alpha=0.3)
    bottom.legend(fontsize="small")
    written = save(figure, path, FORMATS)
    plot.close(figure)
    return written


def main() -> int:
    """Train, print and draw; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=at_least(1), default=5, help="runs of each kind (default 5)")
    parser.add_argument("--only", choices=list(LEARNERS), action="append", help="this task; several may be given")
    parser.add_argument("--picture", type=Path, help="to write, without .png")
    arguments = parser.parse_args()
    began = time.monotonic()
    curves = curves_of(all_runs(arguments.only or list(LEARNERS), arguments.seeds), Console(stderr=True, highlight=False))
    print(report(curves))
    if arguments.picture is not None:
        print(f"\nPictures: {', '.join(map(str, draw(curves, arguments.picture)))}")
    print(f"\n{arguments.seeds} seeds; {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
