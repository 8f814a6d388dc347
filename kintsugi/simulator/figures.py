"""Pictures of runs: workers, throughput and samples over time, where the time went, and what varied values do."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kintsugi.reporting.pictures import SIZE, new_axes, pyplot, save
from kintsugi.simulator.ledger import Account
from kintsugi.simulator.outcome import Outcome
from kintsugi.simulator.policies import ALL, KINTSUGI
from kintsugi.simulator.rows import Row

HOUR = 3600.0
TIME = "time (h)"
PANELS = 3
"""Beside each other."""
MOST_TICKS = 12
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
    """A panel for each policy, with the first one's throughput behind the others'."""
    columns = min(PANELS, len(runs))
    rows = -(-len(runs) // columns)
    height = 1.4 + 1.6 * rows
    figure, grid = plot.subplots(
        rows, columns, figsize=(SIZE[0] + 2, height), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    panels = [axes for line in grid for axes in line]
    for axes, run in zip(panels, runs, strict=False):
        axes.stairs(*_rates(run, size), color=_style(run.policy)["color"], fill=True, alpha=0.35)
        axes.stairs(*_rates(run, size), color=_style(run.policy)["color"], linewidth=1, baseline=None)
        axes.stairs(*_rates(runs[0], size), color="black", linewidth=0.7, alpha=0.7, baseline=None)
        axes.set_title(f"{run.policy}: {run.samples_per_second:.4g} samples/s", fontsize="small")
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=0)
    for axes in panels[len(runs) :]:
        axes.set_visible(False)
    figure.supxlabel(TIME, fontsize="medium")
    figure.supylabel(f"samples/s; black: {runs[0].policy}", fontsize="medium")
    return figure


def _rates(run: Outcome, size: int) -> tuple[list[float], list[float]]:
    """Samples per second, and the moments between which they hold."""
    rates = [span.microbatches_per_second * size for span in run.spans]
    return rates, [span.start_seconds / HOUR for span in run.spans] + [run.spans[-1].stop_seconds / HOUR]


def _samples(plot: Any, runs: Sequence[Outcome], size: int) -> Any:
    """Samples that count: what a rollback takes away is deducted. The policy that ends highest stands first."""
    figure, axes = new_axes(plot, TIME, "samples trained")
    for run in sorted(runs, key=lambda run: -run.num_samples):
        moments, counts = zip(*run.trained, strict=True)
        axes.plot([at / HOUR for at in moments], [count * size for count in counts], label=run.policy, **_style(run.policy))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def _style(policy: str) -> dict[str, Any]:
    """The same in every picture."""
    index = list(ALL).index(policy)
    return {
        "color": f"C{index % 10}",
        "linestyle": ("solid", "dashed")[index // 10 % 2],
        "linewidth": 2.2 if policy == KINTSUGI else 1.2,
    }


def _accounts(plot: Any, rows: Sequence[Row]) -> Any:
    figure, axes = new_axes(plot, "share of the time", "", size=(SIZE[0], 1.2 + 0.32 * len(rows)))
    names = [row.policy for row in reversed(rows)]
    left = [0.0] * len(names)
    for account in Account:
        shares = [row.shares[account.value] for row in reversed(rows)]
        axes.barh(names, shares, left=left, label=account.value, color=COLOURS[account])
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set_xlim(0, 1)
    axes.set_axisbelow(True)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    figure.legend(loc="outside upper center", ncols=len(Account), fontsize="small", columnspacing=1.0, handlelength=1.0)
    return figure


def _variations(plot: Any, rows: Sequence[Row]) -> Any:
    """Samples per second against the first value that is varied; the others at their first values, named above."""
    names = list(rows[0].values)
    others = {name: rows[0].values[name] for name in names[1:]}
    figure, axes = new_axes(plot, names[0], "samples/s")
    axes.set_title(", ".join(f"{name} = {value}" for name, value in others.items()), fontsize="small")
    shown = [row for row in rows if all(row.values[name] == value for name, value in others.items())]
    numbers = {value for row in shown if isinstance(value := row.values[names[0]], int | float)}
    is_number = all(row.values[names[0]] in numbers for row in shown)
    for policy in dict.fromkeys(row.policy for row in shown):
        own = [row for row in shown if row.policy == policy]
        axes.errorbar(
            [row.values[names[0]] if is_number else str(row.values[names[0]]) for row in own],
            [row.samples_per_second.mean for row in own],
            yerr=[row.samples_per_second.margin or 0.0 for row in own] if own[0].num_runs > 1 else None,
            label=policy,
            marker=".",
            capsize=2,
            **_style(policy),
        )
    if is_number and len(numbers) <= MOST_TICKS:
        axes.set_xticks(sorted(numbers))
    figure.legend(loc="outside right upper", fontsize="small")
    return figure
