"""Puts what happened to a policy, under canonical names, and remembers the answers.

Where all workers are equal and each is alone on its host, exchanging the names of workers, or two pipelines that are alike,
maps the job onto itself. So the simulated job is free to name its workers by the slots they hold, and to take, of all
pipelines that are alike, the first ones as those that were hit: the policy is then asked exactly the question whose answer
is used. Policies are pure functions of a snapshot, so an answer may be kept; nothing about it is approximate.
Where workers differ in speed or share hosts they keep their names, and only the very same question is answered from memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kintsugi.core.cluster import Cluster, worker_name
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import Plan
from kintsugi.simulator.job import Job
from kintsugi.simulator.naming import Twins, renamed_plan
from kintsugi.simulator.running import Response, Running, Strategy


@dataclass(frozen=True)
class Held:
    """What runs, and who plays whom: the plan's names of the workers that live."""

    running: Running
    name_of: Mapping[str, str]
    cluster: Cluster | None
    """That the plan was decided for; null where all workers are equal."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A response, and who plays whom under it."""

    response: Response
    name_of: Mapping[str, str]
    cluster: Cluster | None

    @property
    def held(self) -> Held:
        """What runs once the transition is over."""
        return Held(self.response.running, self.name_of, self.cluster)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Under canonical names: the response, and each name's new one."""

    response: Response
    renamed: Mapping[str, str]


@dataclass(frozen=True)
class Fleet:
    """Living workers, in the order in which they came, and how fast and where they are."""

    alive: tuple[str, ...]
    cluster: Cluster | None
    """Null where all workers are equal and alone on their hosts."""


class Adviser:
    """One policy's answers for one job."""

    def __init__(self, strategy: Strategy, job: Job) -> None:
        self.strategy, self.job = strategy, job
        self._answers: dict[object, _Answer | InfeasibleError] = {}
        self._plans: dict[Plan, Plan] = {}
        self._twins: dict[int, Twins] = {}
        self.num_asked = self.num_computed = 0

    def start(self, fleet: Fleet) -> Held:
        """The first plan.

        Raises:
            InfeasibleError: these workers cannot run the job.
        """
        names = self._first_names(fleet)
        cluster = fleet.cluster or _uniform(len(names))
        answer = self._answer(
            ("start", len(names), fleet.cluster, fleet.alive if fleet.cluster else None),
            lambda: Response(
                running=self.strategy.start(self._snapshot(cluster, None, tuple(names.values()), ())), pause_seconds=0.0
            ),
            fleet.cluster,
        )
        return Held(answer.response.running, _composed(names, answer.renamed), fleet.cluster)

    def respond(self, held: Held, fleet: Fleet) -> Advice:
        """What to do after the fleet changed; workers that `held` does not know have no state.

        Raises:
            InfeasibleError: the workers that are left cannot run the job.
        """
        plan = held.running.plan
        living = {worker: held.name_of[worker] for worker in fleet.alive if worker in held.name_of}
        fresh = [worker for worker in fleet.alive if worker not in living]
        if fleet.cluster is None:
            return self._respond_equal(plan, living, fresh)
        snapshot = self._snapshot(fleet.cluster, plan, fleet.alive, tuple(worker for worker in fresh if worker in plan.slots_of))
        changed = held.cluster is not None and not fleet.cluster.is_as_fast_as(held.cluster, fleet.alive)
        snapshot = replace(snapshot, speeds_changed=changed)
        key = plan, fleet.alive, snapshot.stateless, fleet.cluster, changed
        answer = self._answer(key, lambda: self.strategy.respond(snapshot), fleet.cluster)
        return Advice(answer.response, {worker: worker for worker in fleet.alive}, fleet.cluster)

    def answers(self) -> tuple[Response, ...]:
        """Every response so far, each once."""
        return tuple(answer.response for answer in self._answers.values() if isinstance(answer, _Answer))

    def _respond_equal(self, plan: Plan, living: Mapping[str, str], fresh: Sequence[str]) -> Advice:
        here = set(living.values())
        lost = tuple(name for name in plan.workers if name not in here)
        twins = self._twins_of(plan)
        swap = twins.exchange(lost)
        gone = frozenset(swap.get(name, name) for name in lost)
        idle = [idle.worker for idle in plan.idle_workers]
        kept = sum(name in here for name in idle)
        key = id(plan), gone, kept, len(fresh)

        def compute() -> Response:
            names = (*plan.workers, *idle)
            cluster = _uniform(len(names) + len(fresh))
            known = plan.amended(idle_workers=plan.idle_workers[:kept])
            new = (worker_name(len(names) + number) for number in range(len(fresh)))
            alive = (*(name for name in plan.workers if name not in gone), *idle[:kept], *new)
            return self.strategy.respond(self._snapshot(cluster, known, alive, ()))

        answer = self._answer(key, compute, None)
        first = len(plan.workers) + len(idle)
        ranks = dict(zip((name for name in idle if name in here), idle, strict=False))
        names = {worker: ranks.get(swapped := swap.get(name, name), swapped) for worker, name in living.items()}
        names |= {worker: worker_name(first + number) for number, worker in enumerate(fresh)}
        return Advice(answer.response, _composed(names, answer.renamed), None)

    def _answer(self, key: object, compute: Callable[[], Response], cluster: Cluster | None) -> _Answer:
        self.num_asked += 1
        if key not in self._answers:
            self.num_computed += 1
            try:
                self._answers[key] = self._kept(compute(), cluster)
            except InfeasibleError as error:
                self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, InfeasibleError):
            raise answer
        return answer

    def _kept(self, response: Response, cluster: Cluster | None) -> _Answer:
        """The response with workers named by their slots, and with the one copy of its plan that there is."""
        plan = response.running.plan
        names = (*plan.workers, *(idle.worker for idle in plan.idle_workers))
        renamed = {name: worker_name(number) for number, name in enumerate(names)} if cluster is None else {n: n for n in names}
        own = renamed_plan(plan.amended(generation=0), renamed)
        own = self._plans.setdefault(own, own)
        return _Answer(replace(response, running=replace(response.running, plan=own)), renamed)

    def _twins_of(self, plan: Plan) -> Twins:
        if id(plan) not in self._twins:
            self._twins[id(plan)] = Twins(plan)
        return self._twins[id(plan)]

    def _snapshot(self, cluster: Cluster, plan: Plan | None, alive: tuple[str, ...], stateless: tuple[str, ...]) -> Snapshot:
        return Snapshot(
            profile=self.job.profile,
            cluster=cluster,
            settings=self.job.settings_for(len(alive)),
            plan=plan,
            alive=alive,
            generation=0 if plan is None else plan.generation + 1,
            stateless=stateless,
        )

    @staticmethod
    def _first_names(fleet: Fleet) -> dict[str, str]:
        if fleet.cluster is not None:
            return {worker: worker for worker in fleet.alive}
        return {worker: worker_name(number) for number, worker in enumerate(fleet.alive)}


def _composed(first: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str]:
    """Names after both; workers that have none in the end hold nothing and are named when they are needed."""
    return {worker: then[name] for worker, name in first.items() if name in then}


@lru_cache(4096)
def _uniform(num_workers: int) -> Cluster:
    return Cluster.uniform(num_workers)
