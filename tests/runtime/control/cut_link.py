"""Run in a network namespace of its own: cuts the link between two workers in silence while they train; prints what came of it.

Packets between the two are dropped by routing rules, on every connection that they have and on any that they may try;
both go on living, and both can talk to all others.

    python -m tests.runtime.control.cut_link agent|ring|connections ...

With `connections` those are dropped alone that members of a ring have: they may connect again. One after the other.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.options import AgentOptions, Governance, WorkerOptions
from tests.runtime.runs import gpt_request, run_struck

NUM_STEPS = 12
PAIRS = {Governance.AGENT: ("w00", "w01"), Governance.RING: ("w00", "w02")}
"""Neighbours in the first pipeline of a 2 x 2 grid; and replicas of its first stage, which are none in the ring of all four."""
ADDRESSES = {f"w{n:02d}": f"127.0.0.{n + 2}" for n in range(4)}
CONNECTIONS = "connections"
ESTABLISHED = "01"
CUTS = ("pref", "10")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def prepare_namespace() -> None:
    """Loopback alone, and the table of local addresses after the rules that cut."""
    ip("link", "set", "lo", "up")
    ip("rule", "add", "pref", "100", "lookup", "local")
    ip("rule", "del", "pref", "0")


@contextmanager
def mended() -> Iterator[None]:
    """Whatever is cut in the block is whole again behind it."""
    try:
        yield
    finally:
        while subprocess.run(["ip", "rule", "del", *CUTS], check=False, stderr=subprocess.DEVNULL).returncode == 0:
            pass


def ports_of(pid: int) -> set[tuple[int, int]]:
    """Local and remote port of every connection of a process."""
    held = set[str]()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            held.add(os.readlink(link))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {
        (int(row[1].partition(":")[2], 16), int(row[2].partition(":")[2], 16))
        for row in rows
        if row[3] == ESTABLISHED and f"socket:[{row[9]}]" in held
    }


def cut(first: int, second: int) -> int:
    """Drop everything on the connections between two processes; how many they had."""
    shared = {(local, remote) for local, remote in ports_of(first) if (remote, local) in ports_of(second)}
    for local, remote in shared:
        for sport, dport in ((local, remote), (remote, local)):
            ip("rule", "add", *CUTS, "ipproto", "tcp", "sport", str(sport), "dport", str(dport), "blackhole")
    return len(shared)


def keep_apart(first: str, second: str) -> None:
    """Drop everything between two workers' addresses."""
    for source, target in ((first, second), (second, first)):
        ip("rule", "add", *CUTS, "from", ADDRESSES[source], "to", ADDRESSES[target], "blackhole")


def outcome(way: str) -> dict[str, object]:
    """What came of a job in which the link was cut."""
    may_connect = way == CONNECTIONS
    governance = Governance.RING if may_connect else Governance(way)
    pair = PAIRS[governance]
    cuts: list[int] = []

    def strike(agent: Agent) -> None:
        cuts.append(cut(*(agent.handle(worker).pid for worker in pair)))
        if not may_connect:
            keep_apart(*pair)

    options = AgentOptions(
        governance=governance,
        worker=WorkerOptions(addresses=ADDRESSES),
        stall_timeout_seconds=1.0,
        probe_timeout_seconds=5.0,
        heartbeat_timeout_seconds=30.0,
        prepare_timeout_seconds=10.0 if may_connect else 300.0,
    )
    request = replace(gpt_request(2, 2), name="cut")
    with TemporaryDirectory() as folder, mended():
        result = run_struck(Path(folder) / "gate", NUM_STEPS, request, strike, options=options)
    lost = [recovery.lost for recovery in result.recoveries]
    return {"cuts": cuts, "lost": lost, "losses": result.losses, "workers": result.decisions[-1].plan.workers}


def main() -> None:
    prepare_namespace()
    print(json.dumps({way: outcome(way) for way in sys.argv[1:]}))


if __name__ == "__main__":
    main()
