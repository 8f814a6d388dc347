"""Results for people and for programs: a table, CSV and JSON."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from kintsugi.core import codec
from kintsugi.reporting.files import write_rows
from kintsugi.reporting.intervals import Interval
from kintsugi.simulator.ledger import Account
from kintsugi.simulator.rows import Row
from kintsugi.simulator.sweep import Result

SHOWN = (
    Account.COMPUTE,
    Account.REDUNDANT,
    Account.BUBBLE,
    Account.REDUCTION,
    Account.CHECKPOINT,
    Account.TRANSITION,
    Account.LOST,
)


def table_of(rows: Sequence[Row], title: str) -> Table:
    """One line per policy and combination; the most samples of each combination stand out."""
    names = list(rows[0].values)
    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in (*names, "policy", "samples/s", *(account.value for account in SHOWN), "stopped", "moves", "rollbacks"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        best = max(other.samples_per_second.mean for other in rows if other.values == row.values)
        rate = _rate(row.samples_per_second)
        table.add_row(
            *(str(row.values[name]) for name in names),
            row.policy,
            Text(rate, style="bold" if row.samples_per_second.mean == best else ""),
            *(f"{row.shares[account.value]:.1%}" for account in (*SHOWN, Account.STOPPED)),
            f"{row.num_transitions:.1f}",
            f"{row.num_rollbacks:.1f}",
        )
    table.caption = "\n".join(_standing_still(rows))
    return table


def _standing_still(rows: Sequence[Row]) -> Iterator[str]:
    """Why policies never trained, one line for those with the same reason."""
    policies: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        if row.stopped_because is not None and not any(row.shares[account.value] for account in SHOWN):
            policies[row.stopped_because][row.policy] = None
    for why, names in policies.items():
        yield f"never trained ({', '.join(names)}): {why}"


def _rate(value: Interval) -> str:
    return f"{value.mean:.4g}" if value.margin is None else f"{value.mean:.4g} ± {value.margin:.2g}"


def document(scenario: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The summary as one JSON document."""
    return {"scenario": scenario, "rows": codec.encode(rows)}


def write_runs(results: Sequence[Result], path: Path) -> None:
    """One CSV line per run; times in seconds."""
    names = [name for name, _ in results[0].values]
    header = ["policy", "seed", "samples_per_second", "num_samples", "num_transitions", "num_rollbacks"]
    lines: list[list[Any]] = [[*names, *header, *(f"{account.value}_seconds" for account in Account)]]
    for result in results:
        run = result.outcome
        figures = [run.policy, run.seed, run.samples_per_second, run.num_samples, run.num_transitions, run.num_rollbacks]
        lines.append([*(value for _, value in result.values), *figures, *(run.seconds[a.value] for a in Account)])
    write_rows(path, lines)


def write_summary(rows: Sequence[Row], path: Path) -> None:
    """One CSV line per policy and combination."""
    shares = [f"{account.value}_ratio" for account in Account]
    lines: list[list[Any]] = [[*rows[0].values, "policy", "num_runs", "samples_per_second", "margin", *shares]]
    for row in rows:
        rate = row.samples_per_second
        own = [row.shares[account.value] for account in Account]
        lines.append([*row.values.values(), row.policy, row.num_runs, rate.mean, rate.margin, *own])
    write_rows(path, lines)
