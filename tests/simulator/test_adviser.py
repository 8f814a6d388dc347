"""Answers from memory are the answers that the policy gives to the very question."""

import random
from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Policy
from kintsugi.simulator import planned
from kintsugi.simulator.adviser import Adviser, Fleet, Held
from kintsugi.simulator.faults import Faults, draw
from kintsugi.simulator.naming import renamed_plan
from kintsugi.simulator.planned import Memory, Planned
from kintsugi.simulator.scenario import Grid
from kintsugi.simulator.simulate import simulate
from planner.replan import replan
from tests.builders import grid_plan, snapshot_of, uniform_profile
from tests.simulator.fakes import job

WORKERS = tuple(f"node{n}" for n in range(9))


def planned_job(**changes):
    settings = JobSettings(num_microbatches=12, ranges=Ranges(max_pp=4))
    return job(uniform_profile(6), first=Grid(dp=3, pp=3), settings=settings, **changes)


def asked_directly(case, held: Held, alive):
    """The planner's answer under the names of the workers themselves, whoever of alike pipelines was hit."""
    back = {name: worker for worker, name in held.name_of.items()}
    plan = held.running.plan
    names = {name: back.get(name, f"gone-{name}") for name in (*plan.workers, *(idle.worker for idle in plan.idle_workers))}
    everybody = dict.fromkeys((*names.values(), *alive))
    cluster = Cluster(name="named", workers=tuple(Worker(id=worker, host=f"h-{worker}") for worker in everybody))
    snapshot = Snapshot(
        profile=case.profile,
        cluster=cluster,
        settings=case.settings_for(len(alive)),
        plan=renamed_plan(plan, names),
        alive=tuple(worker for worker in everybody if worker in alive),
        generation=1,
    )
    return replan(snapshot)


@pytest.mark.parametrize("seed", range(12))
def test_canonical_names_describe_the_same_job(seed):
    """The planner breaks ties by names, so its price under other names may differ, but hardly."""
    chance, case = random.Random(seed), planned_job()
    adviser, alive = Adviser(Planned(case), case), list(WORKERS)
    held = adviser.start(Fleet(tuple(alive), None))
    for _ in range(3):
        alive = [worker for worker in alive if worker not in chance.sample(alive, chance.choice([1, 1, 2]))]
        held = replace(held, name_of={worker: name for worker, name in held.name_of.items() if worker in alive})
        advice = adviser.respond(held, Fleet(tuple(alive), None))
        direct = asked_directly(case, held, alive)
        assert advice.response.running.price.iteration_seconds == pytest.approx(direct.estimate.iteration_seconds, rel=5e-3)
        assert advice.response.running.plan.num_microbatches == direct.plan.num_microbatches
        held = advice.held
        assert set(held.name_of) == set(alive)
        assert len(set(held.name_of.values())) == len(alive)


def test_answers_are_those_to_the_very_question_that_was_put():
    case, questions = planned_job(), []

    class Recording(Planned):
        def respond(self, snapshot):
            questions.append(snapshot)
            return super().respond(snapshot)

    adviser = Adviser(Recording(case), case)
    held = adviser.start(Fleet(WORKERS, None))
    alive = tuple(worker for worker in WORKERS if worker != "node7")
    first, again = (adviser.respond(held, Fleet(alive, None)) for _ in range(2))
    assert len(questions) == 1
    assert first.response is again.response
    decision = replan(questions[0])
    assert first.response.pause_seconds == decision.estimate.reconfiguration_seconds
    assert first.response.running.price.iteration_seconds == pytest.approx(decision.estimate.iteration_seconds, rel=1e-12)
    lost = set(questions[0].plan.workers) - set(questions[0].alive)
    assert {questions[0].plan.slots_of[worker][0].stage for worker in lost} == {1}


def test_alike_pipelines_are_asked_about_once_and_their_workers_keep_apart():
    case = planned_job()
    adviser = Adviser(Planned(case), case)
    held = adviser.start(Fleet(WORKERS, None))
    for lost in ("node1", "node4", "node7"):
        alive = tuple(worker for worker in WORKERS if worker != lost)
        advice = adviser.respond(held, Fleet(alive, None))
        assert set(advice.name_of) == set(alive)
        assert len(set(advice.name_of.values())) == 8
    assert adviser.num_computed == 2


def test_a_run_does_not_depend_on_what_was_asked_before():
    case = planned_job(faults=Faults(worker_mtbf_seconds=7200.0, repair_seconds=1800.0))
    cluster = Cluster.uniform(9)
    used = Adviser(Planned(case), case)
    for seed in (3, 1):
        incidents = draw(case.faults, cluster, 14_400.0, seed)
        fresh = Adviser(Planned(case), case)
        runs = [simulate(adviser, cluster, incidents, duration_seconds=14_400.0, seed=seed) for adviser in (used, fresh)]
        assert runs[0] == runs[1]
    assert used.num_computed < used.num_asked


def test_unequal_workers_keep_their_names():
    case = planned_job(faults=Faults(worker_mtbf_seconds=7200.0, straggler_mtbf_seconds=7200.0))
    adviser = Adviser(Planned(case), case)
    cluster = Cluster.uniform(9)
    slow = cluster.with_workers(tuple(replace(w, speed_ratio=0.5) if w.id == "w04" else w for w in cluster.workers))
    held = adviser.start(Fleet(tuple(cluster.by_id), cluster))
    assert held.name_of == {worker: worker for worker in cluster.by_id}
    advice = adviser.respond(held, Fleet(tuple(slow.by_id), slow))
    assert advice.response.running.price.iteration_seconds >= held.running.price.iteration_seconds


def test_a_plan_for_a_slow_worker_is_left_once_that_is_as_fast_as_the_others():
    case = planned_job(faults=Faults(straggler_mtbf_seconds=7200.0))
    adviser = Adviser(Planned(case), case)
    cluster = Cluster.uniform(9)
    slow = cluster.with_workers(tuple(replace(w, speed_ratio=0.2) if w.id == "w04" else w for w in cluster.workers))
    names = tuple(cluster.by_id)
    before = adviser.start(Fleet(names, cluster))
    meanwhile = adviser.respond(before, Fleet(names, slow)).held
    after = adviser.respond(meanwhile, Fleet(names, cluster)).held
    assert meanwhile.running.plan.pipelines != before.running.plan.pipelines
    assert after.running.price.iteration_seconds == pytest.approx(before.running.price.iteration_seconds, rel=0.01)


@pytest.mark.parametrize("policy", [None, Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM])
def test_what_the_planner_said_to_a_free_job_is_what_it_says_to_a_pinned_one(policy):
    plan = grid_plan(6, [3, 3, 3], [4, 4, 4])
    free = snapshot_of(uniform_profile(6), Cluster.uniform(9), 12, plan=plan, lost=["w04"])
    asked = replace(free, settings=replace(free.settings, policy=policy))
    memory = Memory()
    unpinned = memory.decided(free)
    answer, decision = memory.decided(asked), replan(asked)
    assert (answer.policy, answer.plan) == (decision.policy, decision.plan)
    assert answer.reconfiguration_seconds == decision.estimate.reconfiguration_seconds
    assert len(memory.known) == (1 if policy in (None, unpinned.policy) else 2)


def test_the_oldest_decisions_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(planned, "MOST_REMEMBERED", 20)
    snapshots = [snapshot_of(uniform_profile(6), Cluster.uniform(9), 12, mtbf_seconds=1000.0 + n) for n in range(3)]
    memory = Memory()
    for snapshot in snapshots:
        memory.decided(snapshot)
    assert list(memory.known) == snapshots[1:]
    assert memory.num_workers == 18
