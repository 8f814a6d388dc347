"""Pictures of runs: workers, throughput and samples over time, where the time went, and what varied values do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kintsugi.reporting.pictures import new_axes, pyplot, save
from kintsugi.simulator.ledger import Account
from kintsugi.simulator.outcome import Outcome
from kintsugi.simulator.summary import Row

HOUR = 3600.0
TIME = "time (h)"
COLOURS = {
    Account.COMPUTE: "#2a7f62",
    Account.REDUNDANT: "#9bc53d",
    Account.BUBBLE: "#f2c14e",
    Account.REDUCTION: "#5b8fb9",
    Account.CHECKPOINT: "#8d6cab",
    Account.TRANSITION: "#e4572e",
    Account.LOST: "#7a1f1f",
    Account.STOPPED: "#b0b0b0",
}


def draw(folder: Path, runs: Sequence[Outcome], rows: Sequence[Row], samples_per_microbatch: int) -> tuple[Path, ...]:
    """Write every picture that the data allow, as PNG and SVG.

    Args:
        folder: to write to.
        runs: one per policy, with the same seed and with what happened over time.
        rows: the summary; those of one combination make the picture of accounts, all of them that of varied values.
        samples_per_microbatch: of the job.

    Raises:
        InvalidInputError: matplotlib is not installed.
    """
    plot = pyplot()
    written = []
    if runs:
        written += save(_live(plot, runs[0]), folder / "workers")
        written += save(_throughput(plot, runs, samples_per_microbatch), folder / "throughput")
        written += save(_samples(plot, runs, samples_per_microbatch), folder / "samples")
    first = [row for row in rows if row.values == rows[0].values]
    written += save(_accounts(plot, first), folder / "time")
    if rows[0].values and len(rows) > len(first):
        written += save(_variations(plot, rows), folder / "varied")
    plot.close("all")
    return tuple(written)


def _live(plot: Any, run: Outcome) -> Any:
    figure, axes = new_axes(plot, TIME, "living workers")
    moments = [moment / HOUR for moment, _ in run.live] + [run.duration_seconds / HOUR]
    numbers = [number for _, number in run.live]
    axes.step(moments, [*numbers, numbers[-1]], where="post", color="black")
    axes.set_ylim(bottom=0)
    return figure


def _throughput(plot: Any, runs: Sequence[Outcome], size: int) -> Any:
    figure, axes = new_axes(plot, TIME, "throughput (samples/s)")
    for run in runs:
        moments = [span.start_seconds / HOUR for span in run.spans] + [run.duration_seconds / HOUR]
        rates = [span.microbatches_per_second * size for span in run.spans]
        axes.step(moments, [*rates, rates[-1]], where="post", label=run.policy, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="x-small", ncols=2)
    return figure


def _samples(plot: Any, runs: Sequence[Outcome], size: int) -> Any:
    """What was trained up to each moment; what is lost in a rollback is not deducted from the line."""
    figure, axes = new_axes(plot, TIME, "samples trained, repeated ones included")
    for run in runs:
        moments, total, sums = [0.0], 0.0, [0.0]
        for span in run.spans:
            total += (span.stop_seconds - span.start_seconds) * span.microbatches_per_second * size
            moments.append(span.stop_seconds / HOUR)
            sums.append(total)
        axes.plot(moments, sums, label=run.policy, linewidth=1)
    axes.legend(fontsize="x-small", ncols=2)
    return figure


def _accounts(plot: Any, rows: Sequence[Row]) -> Any:
    figure, axes = new_axes(plot, "share of the time", "")
    names = [row.policy for row in reversed(rows)]
    left = [0.0] * len(names)
    for account in Account:
        shares = [row.shares[account.value] for row in reversed(rows)]
        axes.barh(names, shares, left=left, label=account.value, color=COLOURS[account])
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set_xlim(0, 1)
    figure.legend(loc="outside upper center", ncols=len(Account), fontsize="x-small")
    return figure


def _variations(plot: Any, rows: Sequence[Row]) -> Any:
    """Samples per second against the first value that is varied; the others at their first values."""
    names = list(rows[0].values)
    others = {name: rows[0].values[name] for name in names[1:]}
    figure, axes = new_axes(plot, names[0], "samples/s")
    for policy in dict.fromkeys(row.policy for row in rows):
        own = [r for r in rows if r.policy == policy and all(r.values[name] == value for name, value in others.items())]
        values = [
            row.values[names[0]] if isinstance(row.values[names[0]], int | float) else str(row.values[names[0]]) for row in own
        ]
        margins = [row.samples_per_second.margin or 0.0 for row in own]
        axes.errorbar(values, [row.samples_per_second.mean for row in own], yerr=margins, label=policy, linewidth=1, capsize=2)
    axes.legend(fontsize="x-small", ncols=2)
    return figure
