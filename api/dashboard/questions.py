"""What-if studies as a page asks them: who is dead, slow or back, in the address, and the decision that would follow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from api.dashboard.grid import Grid, grid_of
from api.dashboard.scene import Scene, buried
from api.records import Records
from api.schemas import WhatIf
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InfeasibleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Who is dead, slow or back."""

    fail: tuple[str, ...] = ()
    fail_hosts: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    join: tuple[str, ...] = ()
    speed_ratio: float = 0.5
    """Of those that are slow."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked."""
        return not (self.fail or self.fail_hosts or self.slow or self.join)

    def study(self, job: str) -> WhatIf:
        """The question as the service takes it.

        Raises:
            InvalidInputError: a name stands twice, or the speed is none.
        """
        failing = set(self.fail)
        slow = {worker: self.speed_ratio for worker in self.slow if worker not in failing}
        return WhatIf(job=job, fail=self.fail, fail_hosts=self.fail_hosts, join=self.join, slow=slow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One number, now and then."""

    name: str
    now: float
    then: float
    filter: str
    """Which of the templates' filters shows it."""

    @property
    def ratio(self) -> float | None:
        """Relative change; null where it was nothing, or is relative itself."""
        return self.then / self.now - 1 if self.now and self.filter != "percent" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The decision that would follow, or why there would be none."""

    scene: Scene | None = None
    grid: Grid | None = None
    changes: tuple[Change, ...] = ()
    problem: Mapping[str, Any] | None = None


def replied(question: Question, scene: Scene, records: Records, decide: Callable[[WhatIf], Decision]) -> Reply:
    """What would be decided.

    Raises:
        NotFoundError: no such worker or host.
        InvalidInputError: a worker is named twice, or is not alive.
    """
    try:
        decision = decide(question.study(scene.summary.id))
    except InfeasibleError as error:
        return Reply(problem=error.as_dict())
    after = replace(
        scene,
        decision=decision,
        cluster=_cluster(scene, question),
        alive=(*decision.plan.workers, *(idle.worker for idle in decision.plan.idle_workers)),
        draining=_draining(scene, question),
        buried=buried(records, scene.summary.id, decision),
    )
    return Reply(scene=after, grid=grid_of(after), changes=_changes(scene.decision, decision))


def _cluster(scene: Scene, question: Question) -> Cluster:
    slow = set(question.slow)
    workers = tuple(replace(w, speed_ratio=question.speed_ratio) if w.id in slow else w for w in scene.cluster.workers)
    return scene.cluster.with_workers(workers)


def _draining(scene: Scene, question: Question) -> tuple[str, ...]:
    return tuple(w for w in scene.draining if scene.cluster.by_id[w].host not in question.fail_hosts)


def _changes(now: Decision, then: Decision) -> tuple[Change, ...]:
    old, new = now.estimate, then.estimate
    rows = (
        ("Step time", "seconds", old.iteration_seconds, new.iteration_seconds),
        ("Throughput", "rate", old.throughput_samples_per_second, new.throughput_samples_per_second),
        ("Goodput", "rate", old.goodput_samples_per_second, new.goodput_samples_per_second),
        ("Idle share", "percent", old.bubble_ratio, new.bubble_ratio),
        ("Peak memory", "size", _peak(now), _peak(then)),
    )
    return tuple(Change(name=name, filter=shown, now=before, then=after) for name, shown, before, after in rows)


def _peak(decision: Decision) -> int:
    return max(stage.peak_memory_bytes for stage in decision.estimate.stages)


def hosts_of(scene: Scene) -> Sequence[tuple[str, tuple[str, ...]]]:
    """Hosts with more than one living worker, and those workers; a host of one worker fails as that worker does."""
    alive = set(scene.alive)
    living = ((host, tuple(w for w in scene.cluster.workers_on(host) if w in alive)) for host in scene.cluster.hosts)
    return [(host, workers) for host, workers in living if len(workers) > 1]
