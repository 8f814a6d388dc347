"""What processes hold of the system, from /proc, and how much more it is at the end of a run than at its beginning."""

import operator
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from kintsugi.core.plan import Plan

LISTENING = "0A"
GLOO_THREADS = 3
"""Of a group: two that carry out reductions, and one that listens to sockets."""
FEWEST_SAMPLES = 6
"""Looks at a process, each in another generation, before its growth is spoken of."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one process at one moment."""

    memory_bytes: int
    """Private."""
    sockets: int
    threads: int
    groups: int
    """Listening TCP sockets but one: each gloo group of a worker has one, and the worker itself one."""

    @classmethod
    def of(cls, pid: int, listening: frozenset[str]) -> "Footprint | None":
        """Of a process; None where it is gone. `listening`: of the whole machine."""
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
            targets = [_target(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            return None
        private = sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Private_"))
        sockets = [target for target in targets if target.startswith("socket:")]
        return cls(private, len(sockets), threads, max(0, sum(target in listening for target in sockets) - 1))


NOTHING = Footprint(0, 0, 0, 0)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def listening_sockets() -> frozenset[str]:
    """All listening TCP sockets of this machine, as descriptors name them."""
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return frozenset(f"socket:[{row[9]}]" for row in rows if row[3] == LISTENING)


def start_ticks(pid: int) -> str | None:
    """When a process was started; None where it is gone or a zombie. With its id it names a process for good."""
    try:
        fields_after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields_after_name[0] == "Z" else fields_after_name[19]


def explained_by(plan: Plan, worker: str) -> Footprint:
    """What a worker's process groups take: a socket to each other member, one to listen at, three threads of gloo's.

    And a thread to wait for the commit point, one for reductions and one for messages, where it has such.
    """
    if worker not in plan.workers:
        return NOTHING
    buckets = {bucket.workers for of_round in plan.rounds for bucket in of_round if worker in bucket.workers}
    groups = {plan.workers, *buckets}
    threads = GLOO_THREADS * len(groups) + 1 + bool(buckets) + _has_messages(plan, worker)
    return Footprint(0, sum(map(len, groups)), threads, len(groups))


def _has_messages(plan: Plan, worker: str) -> bool:
    """Whether a worker shares a chain of stages with others, as one of them or for one that is gone."""
    for index, pipeline in enumerate(plan.pipelines):
        chain = {stage.worker for stage in pipeline.stages if stage.worker is not None}
        chain |= {route.worker for route in plan.routes if route.pipeline == index}
        if len(pipeline.stages) > 1 and len(chain) > 1 and worker in chain:
            return True
    return False


class Growths:
    """Footprints of every process whenever the job is at rest.

    What a recovery puts off, as what messages between survivors still hold, is over at the last look only: growth is that of
    the processes which are there then.
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int], list[Footprint]] = defaultdict(list)
        self._latest: set[tuple[str, int]] = set()
        """Processes of the latest look."""

    def sample(self, processes: Iterable[tuple[str, int, Footprint]]) -> None:
        """Look at processes, given by name, id and what the present plan explains, which does not count."""
        listening = listening_sockets()
        self._latest.clear()
        for name, pid, explained in processes:
            if (found := Footprint.of(pid, listening)) is not None:
                self._samples[name, pid].append(Footprint(*map(operator.sub, astuple(found), astuple(explained))))
                self._latest.add((name, pid))

    def growth(self, name: str) -> Footprint | None:
        """The most that any process of a name gained until the latest look; None where none was there for long enough."""
        there = [samples for key, samples in self._samples.items() if key[0] == name and key in self._latest]
        lasting = [samples for samples in there if len(samples) >= FEWEST_SAMPLES]
        gains = [_gain(samples) for samples in lasting]
        return None if not gains else Footprint(*(max(column) for column in zip(*map(astuple, gains), strict=True)))


def _gain(samples: list[Footprint]) -> Footprint:
    """Least of the last third minus least of the first: what comes and goes, as old groups in their teardown, does not count."""
    third = max(1, len(samples) // 3)
    first, last = samples[:third], samples[-third:]
    names = [field.name for field in fields(Footprint)]
    return Footprint(*(min(getattr(s, n) for s in last) - min(getattr(s, n) for s in first) for n in names))
