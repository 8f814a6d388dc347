"""What a campaign came to: one row per run, the phases of all recoveries as a table and a picture."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from benchmarks.trouble.campaign import Growth, Kind
from benchmarks.trouble.footprint import Footprint, Growths
from kintsugi.runtime.control.recovery import RecoveryTimeline

PHASES = ("detected", "planned", "quiesced", "regrouped", "transferred", "resumed", "first_step")
JOIN = "join"
PLAIN_KILL = "kill"
PROCESSES = ("worker", "agent", "service")


@dataclass(slots=True)
class RunReport:
    """One run. Everything that is counted in `failures` must be 0."""

    name: str
    num_workers: int
    num_generations: int = 0
    num_faults: dict[Kind, int] = field(default_factory=dict)
    num_steps: int = 0
    wrong_steps: int = 0
    """Losses that differ from the uninterrupted run's, and one more where the parameters do."""
    hung: int = 0
    lost_samples: int = 0
    """Micro-batches that a committed step counted not once, and those of steps that never came."""
    orphans: int = 0
    """Processes that outlive the run."""
    missing: int = 0
    """Strikes that did not come to their end, and generations fewer than asked."""
    missed: int = 0
    """Faults whose point nobody came by, or whose victim could not be spared any more; no failure of the job."""
    largest_difference: float = 0.0
    recoveries: list[tuple[str, RecoveryTimeline]] = field(default_factory=list)
    """With what each mends."""
    growth: dict[str, Footprint | None] = field(default_factory=dict)
    """Most that any process gained, by what it is."""
    error: str = ""
    """Why the run ended early."""

    def excess(self, limit: Growth) -> list[str]:
        """What grew by more than it may."""
        return grown_beyond(self.growth, limit)

    def num_failures(self, limit: Growth) -> int:
        """What must be 0."""
        counted = self.wrong_steps + self.hung + self.lost_samples + self.orphans + self.missing
        return counted + len(self.excess(limit)) + bool(self.error)

    def line(self, limit: Growth) -> str:
        """The run in a line."""
        faults = ", ".join(f"{count} {kind.value}" for kind, count in self.num_faults.items() if count)
        grown = "; ".join(f"{process} {_growth_text(f)}" for process, f in self.growth.items())
        excess = self.excess(limit)
        return (
            f"{self.name}: {self.num_workers} workers, {self.num_generations} generations, {self.num_steps} steps; {faults}; "
            f"wrong steps {self.wrong_steps} (largest difference {self.largest_difference:.0e}), hung {self.hung}, "
            f"lost samples {self.lost_samples}, orphans {self.orphans}, missing {self.missing} (missed {self.missed}); "
            f"growth: {grown}"
            + (f"; TOO MUCH GROWTH: {', '.join(excess)}" if excess else "")
            + (f"; ERROR: {self.error}" if self.error else "")
        )


def growth_of(growths: Growths) -> dict[str, Footprint | None]:
    """Most that any process gained, by what it is; None where none was there for long enough."""
    return {process: growths.growth(process) for process in PROCESSES}


def grown_beyond(growth: Mapping[str, Footprint | None], limit: Growth) -> list[str]:
    """What grew by more than it may."""
    return [
        f"{process} {name} +{gained}"
        for process, footprint in growth.items()
        if footprint is not None
        for name in Growth.model_fields
        if (gained := getattr(footprint, name)) > getattr(limit, name)
    ]


def _growth_text(footprint: Footprint | None) -> str:
    if footprint is None:
        return "not measured"
    return (
        f"{footprint.memory_bytes / 1e6:+.1f} MB, {footprint.sockets:+d} sockets, {footprint.threads:+d} threads, "
        f"{footprint.groups:+d} groups"
    )


Cell = tuple[int, str]
"""Workers, and what the recoveries mend."""


def cells_of(reports: Iterable[RunReport]) -> dict[Cell, list[RecoveryTimeline]]:
    """All recoveries, those alike together."""
    cells: dict[Cell, list[RecoveryTimeline]] = {}
    for report in reports:
        for label, recovery in report.recoveries:
            cells.setdefault((report.num_workers, label), []).append(recovery)
    return dict(sorted(cells.items()))


def phase_table(reports: Sequence[RunReport], stopped_timeout_seconds: float) -> Table:
    """Seconds from the fault to the end of each phase: medians, and percentiles of training again."""
    table = Table(
        title="seconds from the fault (a joining: from leaving the step) to the end of each phase: medians", title_justify="left"
    )
    table.add_column("workers", justify="right")
    table.add_column("recovers from")
    for column in ("times", *(phase.replace("_", " ") for phase in PHASES), "resumed, 90th pct", "99th pct", "less timeout"):
        table.add_column(column, justify="right")
    for (num_workers, label), recoveries in cells_of(reports).items():
        medians = [_median([r.phase_seconds()[phase] for r in recoveries if phase in r.phase_seconds()]) for phase in PHASES]
        resumed = sorted(r.phase_seconds()["resumed"] for r in recoveries if r.resumed_at is not None)
        tail = [f"{_percentile(resumed, share):.3f}" for share in (0.9, 0.99)]
        froze = label.split(",")[0] in (Kind.FREEZE, Kind.WAKE)
        less = f"{statistics.median(resumed) - stopped_timeout_seconds:.3f}" if froze and resumed else ""
        table.add_row(str(num_workers), label, str(len(recoveries)), *medians, *tail, less)
    return table


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f}" if values else "-"


def _percentile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, round(share * (len(ascending) - 1)))] if ascending else float("nan")


def draw(reports: Sequence[RunReport], path: Path) -> None:
    """Boxes of each phase's end, for every kind of fault, as SVG; needs the extra `plot`."""
    from matplotlib.figure import Figure  # only who wants the picture needs it

    cells = cells_of(reports)
    figure = Figure(figsize=(11, 1.0 + 1.6 * len(cells)), layout="constrained")
    axes = figure.subplots(len(cells), 1, sharex=True, squeeze=False)[:, 0]
    for axis, ((num_workers, label), recoveries) in zip(axes, cells.items(), strict=True):
        values = [
            [r.phase_seconds()[phase] for r in recoveries if phase in r.phase_seconds()] or [float("nan")] for phase in PHASES
        ]
        axis.boxplot(values, orientation="horizontal", whis=(0, 100), tick_labels=[phase.replace("_", " ") for phase in PHASES])
        axis.invert_yaxis()
        axis.set_title(f"{num_workers} workers: {label} ({len(recoveries)} times)", loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.grid(axis="x", alpha=0.3)
    axes[-1].set_xlabel("seconds since the fault; boxes: quartiles, whiskers: least and most")
    figure.savefig(path, format="svg")
