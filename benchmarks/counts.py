"""Every count of workers gets a legal plan, always the same: nobody claimed who is not there, nobody idle without a reason.

Each count is planned for from nothing, and again after one worker is lost; both decisions are checked without the code that
made them, every so many of them with a replay of the program. A digest over all decisions is compared with those of
processes that hash strings in other orders.

Run: python -m benchmarks.counts [--first 8] [--last 1024] [--step 1] [--runs 10] [--jobs 2] [--state FILE]
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from rich.console import Console

from benchmarks.running import LiveTable, cut_torn_line, whole_lines
from benchmarks.scaling import PROFILES, snapshot
from kintsugi.core import codec
from kintsugi.core.decision import Decision
from kintsugi.core.profile import Profile
from planner.legality import misplacements, violations
from planner.replan import replan
from planner.sources import PACKAGES, sources_digest

BLOCK = 128
"""Counts that one process plans for."""

OWN_PACKAGES = ("benchmarks", "tests")
"""That say what is asked of the planner."""

MOST_SECONDS = 3600.0
"""That one process may take."""


@dataclass
class Tally:
    """What was found over all counts."""

    counts: int = 0
    illegal: int = 0
    idle: int = 0
    """Decisions that leave somebody idle, each with a reason."""
    most_gap: float = 0.0
    seconds: float = 0.0
    """Spent planning."""


def text(decision: Decision) -> str:
    """A decision without the time that its search took."""
    return codec.dumps(replace(decision, search=replace(decision.search, elapsed_seconds=0.0)))


def digest(counts: Iterable[int]) -> str:
    """SHA-256 over the decisions for all counts and profiles, one worker lost, in hexadecimal."""
    result = hashlib.sha256()
    for count in counts:
        for profile in PROFILES.values():
            first = replan(snapshot(profile, count))
            for decision in (first, replan(snapshot(profile, count, plan=first.plan, lost=1))):
                result.update(text(decision).encode())
    return result.hexdigest()


def check(profile: Profile, counts: Iterable[int], replay_every: int) -> Tally:
    """Plan for every count, before and after a loss, and look for what is illegal; every so many with a replay."""
    tally = Tally()
    for count in counts:
        plan = None
        for lost in (0, 1):
            asked = snapshot(profile, count, plan=plan, lost=lost)
            start = time.process_time()
            decision = replan(asked)
            tally.seconds += time.process_time() - start
            plan = decision.plan
            rules = misplacements if tally.counts % replay_every else violations
            tally.illegal += bool(rules(asked, decision))
            tally.idle += bool(plan.idle_workers)
            tally.most_gap = max(tally.most_gap, decision.search.gap_ratio if lost == 0 else 0.0)
        tally.counts += 1
    return tally


@dataclass(frozen=True)
class Runs:
    """Fresh processes, each of which hashes strings in its own order and plans for a block of counts."""

    state: Path | None
    """Where digests are noted as they come, so that what was interrupted goes on; none are taken over from other code."""
    known: dict[str, str] = field(default_factory=dict)
    """Digests by code, seed and counts."""

    def num_different(self, counts: range, runs: int, jobs: int) -> int:
        """Most different digests of any block; 1 where all runs are alike. So many processes run side by side."""
        if self.state is not None:
            cut_torn_line(self.state)
            lines = whole_lines(self.state)
            self.known.update((key, digest) for key, _, digest in (line.partition(" ") for line in lines))
        blocks = [counts[start : start + BLOCK] for start in range(0, len(counts), BLOCK)]
        tasks = [(seed, block) for block in blocks for seed in range(runs)]
        with ThreadPoolExecutor(jobs) as pool:
            found = list(pool.map(lambda task: self._digest(*task), tasks))
        return max(len(set(found[start : start + runs])) for start in range(0, len(found), runs))

    def _digest(self, seed: int, block: range) -> str:
        key = f"{code_digest()}:{seed}:{block.start}:{block.stop}:{block.step}"
        if key not in self.known:
            command = [sys.executable, "-m", "benchmarks.counts", "--digest", "--first", str(block.start), "--last", str(block[-1])]
            command += ["--step", str(block.step)]
            environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=MOST_SECONDS)
            self.known[key] = done.stdout
            if self.state is not None:
                with self.state.open("a") as file:
                    file.write(f"{key} {done.stdout}\n")
        return self.known[key]


@cache
def code_digest() -> str:
    """SHA-256 over everything that decides, in hexadecimal."""
    return sources_digest(Path(__file__).parents[1], (*PACKAGES, *OWN_PACKAGES))


def main() -> None:
    """Print what was found; exit 1 where a plan is illegal or runs differ."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--first", type=int, default=8)
    arguments.add_argument("--last", type=int, default=1024)
    arguments.add_argument("--step", type=int, default=1)
    arguments.add_argument("--runs", type=int, default=10, help="fresh processes whose decisions are compared")
    arguments.add_argument("--jobs", type=int, default=1, help="fresh processes side by side")
    arguments.add_argument("--state", type=Path, help="notes finished processes in this file, and goes on from there")
    arguments.add_argument("--replay-every", type=int, default=64, help="counts from one replay to the next")
    arguments.add_argument("--digest", action="store_true", help="print the digest of the decisions and nothing else")
    options = arguments.parse_args()
    counts = range(options.first, options.last + 1, options.step)
    if options.digest:
        sys.stdout.write(digest(counts))
        return
    table = LiveTable(title=f"{counts.start} to {counts[-1]} workers in steps of {counts.step}, before and after a loss")
    for name in ("layers", "counts", "illegal", "with idle workers", "largest gap", "planning, one core"):
        table.add_column(name, justify="right")
    illegal = 0
    for name, profile in PROFILES.items():
        tally = check(profile, counts, options.replay_every)
        illegal += tally.illegal
        found = (tally.counts, tally.illegal, tally.idle, f"{tally.most_gap:.3%}", f"{tally.seconds:.1f} s")
        table.add_row(name, *map(str, found))
    different = Runs(options.state).num_different(counts, options.runs, options.jobs) if options.runs else 1
    console = Console(width=120)
    console.print(table)
    agree = "all the same plans" if different == 1 else f"{different} different results"
    console.print(f"{options.runs} processes with other hash seeds: {agree}")
    sys.exit(illegal > 0 or different > 1)


if __name__ == "__main__":
    main()
