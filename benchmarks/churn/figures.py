"""The papers' figures from our outcomes: delay by state and cluster, idle time, ablation of replication and of assignment."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.churn.baselines import Method
from benchmarks.churn.campaign import MODEL_MEBIBYTES, Record, by
from benchmarks.churn.measure import Outcome
from benchmarks.churn.summary import delay, idle, median_of
from kintsugi.reporting.pictures import pyplot

COLOURS = {
    Method.CHECKPOINT: "#7a1f1f",
    Method.SINGLE: "#e4572e",
    Method.MULTI_SOURCE: "#f2b134",
    Method.EVEN: "#9bc53d",
    Method.GREEDY: "#1f4e79",
    Method.OPTIMUM: "#8a8a8a",
}
SYSTEMS = {
    Method.CHECKPOINT: "checkpoint-restart (Pollux)",
    Method.SINGLE: "single source (Elan)",
    Method.MULTI_SOURCE: "multi-source (Autoscaling)",
    Method.GREEDY: "multi-neighbour, greedy (ours)",
}
REPLICATION = {
    Method.SINGLE: "single source",
    Method.MULTI_SOURCE: "multi-source",
    Method.EVEN: "multi-neighbour, even",
    Method.GREEDY: "multi-neighbour, greedy (ours)",
    Method.OPTIMUM: "multi-neighbour, brute force",
}
_PANEL_INCHES = (3.0, 2.9)


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write all figures as SVG; what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    own = by(records, "unequal")
    drawn = [
        ("churn-delay", delay, SYSTEMS, "scale-out delay (s)", True),
        ("churn-idle", idle, SYSTEMS, "idle time of the cluster (s)", True),
        ("churn-replication", delay, REPLICATION, "replication delay (s)", False),
    ]
    return [
        _bars(own, folder / f"{name}.svg", value, methods, title, is_log=is_log) for name, value, methods, title, is_log in drawn
    ]


def _bars(
    records: Sequence[Record],
    path: Path,
    value: Callable[[Outcome], float],
    methods: dict[Method, str],
    title: str,
    *,
    is_log: bool,
) -> Path:
    """A panel for every size of state, a group of bars for every number of nodes."""
    plot = pyplot()
    sizes = sorted({record.case.mebibytes for record in records})
    inches = (_PANEL_INCHES[0] * len(sizes) + 0.4, _PANEL_INCHES[1] + 0.6)
    figure, panels = plot.subplots(1, len(sizes), figsize=inches, layout="constrained", squeeze=False, sharey=is_log)
    for axes, size in zip(panels[0], sizes, strict=True):
        _panel(axes, [record for record in records if record.case.mebibytes == size], value, methods)
        axes.set_title(f"{MODEL_MEBIBYTES.get(size, 'state')}, {size:g} MiB", fontsize="medium")
        if is_log:
            axes.set_yscale("log")
    panels[0][0].set_ylabel(title)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(methods), fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    plot.close(figure)
    return path


def _panel(axes: Any, records: Sequence[Record], value: Callable[[Outcome], float], methods: dict[Method, str]) -> None:
    numbers = sorted({record.case.num_nodes for record in records})
    width = 0.8 / len(methods)
    for place, (method, label) in enumerate(methods.items()):
        heights = [median_of([r for r in records if r.case.num_nodes == number], method, value) for number in numbers]
        offsets = [index + (place - (len(methods) - 1) / 2) * width for index in range(len(numbers))]
        axes.bar(offsets, heights, width, color=COLOURS[method], label=label)
    axes.set_xticks(range(len(numbers)), [f"{number} to {number + 1}" for number in numbers])
    axes.set_xlabel("nodes")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
