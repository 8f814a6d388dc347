"""Growth and churn over slow, unequal links, measured: `python -m benchmarks.churn [--quick]`.

Nodes are processes in network namespaces (as root; elsewhere the reason is printed and nothing is run). Links of 100-1,000 Mbit/s
and 10-20 ms are drawn anew for every event; within an event every method brings the same state to the same joiner over the same
links, while the others train (computing emulated by sleeping, gradients really reduced). Sizes are the papers'.
"""

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.arguments import above_zero, at_least, folder
from benchmarks.churn import figures
from benchmarks.churn.campaign import Asked, Results, read, run
from benchmarks.churn.capacity import capacity_bits_per_second
from benchmarks.churn.summary import Figure, delay, figure_table, idle, table
from benchmarks.churn.summary import figures as asked_figures
from benchmarks.churn.testbed import unavailable_reason


def asked_of(arguments: argparse.Namespace) -> Asked:
    """What the command line asks for."""
    quick = arguments.quick
    return Asked(
        mebibytes=tuple(arguments.sizes or ((1.7, 48.0) if quick else (1.7, 178.0))),
        num_nodes=tuple(arguments.nodes or ((6,) if quick else (6, 8, 10, 12))),
        num_events=arguments.events if arguments.events is not None else 1 if quick else 8,
        num_equal_events=arguments.equal_events if arguments.equal_events is not None else 1 if quick else 30,
        num_product_events=arguments.product_events if arguments.product_events is not None else 1 if quick else 10,
        num_product_nodes=4 if quick else 6,
        seed=arguments.seed,
        rate_ratio=arguments.rate_ratio,
        compute_seconds=arguments.compute_seconds,
        gradient_bytes=arguments.gradient_bytes // 4 * 4,
    )


def as_text(results: Results, found: list[Figure], capacity: float | None) -> str:
    """Tables, in Markdown."""
    return "\n".join(
        (
            *figure_table(found),
            "",
            *table(results.records, delay, "delay (s)"),
            "",
            *table(results.records, idle, "idle time (s)"),
            "",
            *([] if capacity is None else [f"All links of a joiner at once, without shaping: {capacity / 1e9:.1f} Gbit/s."]),
            f"Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
        )
    )


def as_json(results: Results, found: list[Figure], capacity: float | None) -> str:
    """One document."""
    content = {
        "capacity_bits_per_second": capacity,
        "figures": [asdict(one) for one in found],
        **asdict(results),
    }
    return json.dumps(content, indent=2)


def parser() -> argparse.ArgumentParser:
    """The options."""
    own = argparse.ArgumentParser(prog="python -m benchmarks.churn", description=__doc__)
    own.add_argument("--quick", action="store_true", help="one small event of each kind, for a look")
    own.add_argument("--sizes", type=above_zero, nargs="+", help="of states, in MiB (default 1.7 178)")
    own.add_argument("--nodes", type=int, nargs="+", help="that train when another joins (default 6 8 10 12)")
    own.add_argument("--events", type=at_least(0), help="of every size and number of nodes (default 8)")
    own.add_argument("--equal-events", type=at_least(0), help="joiners with two equal links (default 30)")
    own.add_argument(
        "--product-events", type=at_least(0), help="joins, leaves and changes of three links of the product itself (default 10)"
    )
    own.add_argument("--seed", type=int, default=0)
    own.add_argument("--rate-ratio", type=above_zero, default=1.0, help="multiplies all rates, for machines that cannot keep up")
    own.add_argument("--compute-seconds", type=above_zero, default=0.1, help="of a step")
    own.add_argument("--gradient-bytes", type=int, default=1_782_579, help="reduced in every step (default: LoRA's 1.7 MiB)")
    own.add_argument("--results", type=Path, help="keep events in this file, and do not measure again what is in it")
    own.add_argument("--no-run", action="store_true", help="measure nothing, report all that the file of results holds")
    own.add_argument("--figures", type=folder, help="folder to draw into")
    own.add_argument("--format", choices=("table", "json"), default="table")
    return own


def main() -> None:
    own = parser()
    arguments = own.parse_args()
    if arguments.no_run and (arguments.results is None or not arguments.results.exists()):
        own.error("--no-run reports what --results holds: name a file that is there")
    reason = None if arguments.no_run else unavailable_reason()
    if reason is not None:
        print(json.dumps({"skipped": reason}) if arguments.format == "json" else f"Nothing was run: {reason}.")
        return
    console, began = Console(stderr=True, highlight=False), time.monotonic()
    if arguments.no_run:
        results, capacity = read(arguments.results), None
    else:
        capacity = capacity_bits_per_second()
        console.print(f"without shaping the machine moves {capacity / 1e9:.1f} Gbit/s to a joiner")
        results = run(asked_of(arguments), arguments.results, console)
    found = asked_figures(results, arguments.seed)
    print((as_json if arguments.format == "json" else as_text)(results, found, capacity))
    if arguments.figures is not None:
        console.print(f"pictures: {', '.join(map(str, figures.draw(results.records, arguments.figures)))}")
    console.print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
