"""The ring's protocol: visits every world of its model, or measures it over real sockets.

Run: python -m benchmarks.membership --explore [--long --processes 2 | --members 5 --faults 2 --kinds crash,cut --commits --hurries]
     python -m benchmarks.membership --latency [--members 32 --losses 1 2 3 --repeats 11]
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import at_least, some_of
from benchmarks.membership.exploration import explore
from benchmarks.membership.latency import Setting, row
from benchmarks.membership.network import Network

KINDS = ("crash", "freeze", "break", "miss", "cut", "split", "join")

EXPLORATIONS = (
    (2, 2, "crash,freeze,cut", True, False),
    (3, 1, "crash,freeze,break,cut", True, False),
    (3, 2, "crash,break,cut", True, False),
    (4, 1, "split", True, False),
    (2, 1, "crash,freeze,cut,join", True, False),
    (3, 1, "crash,join", True, False),
    (4, 2, "crash", True, False),
    (4, 2, "crash,miss", True, False),
    (5, 2, "crash", True, False),
    (5, 1, "crash,break,cut", True, False),
)
"""Members, faults, kinds of faults, whether a step is committed, whether members hurry: what is explored unless told otherwise."""

LONG_EXPLORATIONS = (
    (5, 2, "crash,cut", False, False),
    (3, 3, "crash,break,cut", True, False),
    (4, 2, "break", False, False),
    (4, 2, "cut", False, False),
    (4, 1, "freeze", False, False),
)
"""What takes minutes: the first one some thirty on a quiet core, and four gigabytes of memory."""

_PROGRESS_SECONDS = 15.0


def _explored(members: int, faults: int, kinds: str, commits: bool, hurries: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Its row of the table, and what leads to a violation; tells meanwhile how far it is."""
    can: Any = {f"can_{kind}": kind in kinds.split(",") for kind in KINDS}
    name, console, told_at = f"{members} members, {faults} faults ({kinds})", Console(stderr=True), time.monotonic()

    def told(depth: int, num_states: int, num_waiting: int) -> None:
        nonlocal told_at
        if time.monotonic() > told_at + _PROGRESS_SECONDS:
            told_at = time.monotonic()
            console.print(f"{name}: {num_states:,} worlds after {depth} events, {num_waiting:,} of them to go on from")

    report = explore(Network(members, commits=commits, hurries=hurries, **can), faults, told=told)
    commit = "yes" if commits else "no"
    found = f"{report.num_states:,}", f"{report.num_transitions:,}", f"{report.num_final:,}", str(report.depth)
    return (str(members), str(faults), kinds, commit, *found, report.violation or "none", f"{report.seconds:.1f}"), report.trace


def _explore(options: argparse.Namespace) -> bool:
    """Print what was found; whether every claim held."""
    chosen = ((options.members, options.faults, options.kinds, options.commits, options.hurries),)
    usual = LONG_EXPLORATIONS if options.long else EXPLORATIONS
    table = Table(title="Every world that can be reached")
    for name in ("members", "faults", "kinds", "commits", "states", "transitions", "final", "depth", "violations", "seconds"):
        table.add_column(name, justify="right")
    traces: list[str] = []
    with ProcessPoolExecutor(options.processes) as executor:
        explored = [executor.submit(_explored, *exploration) for exploration in (chosen if options.members else usual)]
        for future in explored:
            figures, trace = future.result()
            table.add_row(*figures)
            traces += trace
    console = Console(width=160)
    console.print(table)
    for line in traces:
        console.print(line)
    return not traces


def _latency(options: argparse.Namespace) -> None:
    table = Table(title="From the losses to the last survivor's restart, milliseconds")
    for name in ("members", "lost", "ring, median", "maximum", "coordinator, median", "maximum", "ratio"):
        table.add_column(name, justify="right")
    for losses in options.losses:
        table.add_row(*row(Setting(options.members or 32, losses), options.repeats))
    Console(width=120).print(table)


def main() -> None:
    """Do what was asked for; exit 1 where a claim does not hold."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--explore", action="store_true")
    arguments.add_argument("--latency", action="store_true")
    arguments.add_argument("--members", type=at_least(1), help="by default several sizes are explored, and 32 measured")
    arguments.add_argument("--faults", type=at_least(0), default=2, help="explored: how many crashes, freezes and cuts")
    arguments.add_argument(
        "--kinds", type=some_of(KINDS), default="crash", help=f"explored: {', '.join(KINDS)} (no fault), with commas"
    )
    arguments.add_argument("--commits", action="store_true", help="explored: a member may commit a step meanwhile")
    arguments.add_argument("--hurries", action="store_true", help="explored: members take others back at any moment")
    arguments.add_argument("--long", action="store_true", help="explored: what takes long, in place of what is explored usually")
    arguments.add_argument("--processes", type=at_least(1), default=1, help="explored: how many sizes at once")
    arguments.add_argument("--losses", type=at_least(1), nargs="+", default=[1, 2, 3], help="measured: losses at once")
    arguments.add_argument("--repeats", type=at_least(1), default=11, help="measured: of each")
    options = arguments.parse_args()
    if not options.explore and not options.latency:
        arguments.error("say what to do: --explore or --latency")
    if options.latency:
        _latency(options)
    if options.explore and not _explore(options):
        sys.exit(1)


if __name__ == "__main__":
    main()
