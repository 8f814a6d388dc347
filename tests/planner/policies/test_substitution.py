"""Which dead places spare workers take, and plans that stay where a pinned policy has nothing to do."""

import itertools
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy
from kintsugi.core.profile import LinkCost
from planner.legality import violations
from planner.policies.rerouting import reroute
from planner.policies.substitution import substitute
from planner.replan import replan
from tests.builders import grid_plan, snapshot_of, uniform_profile


def filled_by_hand(plan, takers, survivors, costs):
    """The step with spares in given workers' places."""
    pipelines = tuple(
        replace(
            pipeline,
            stages=tuple(replace(stage, worker=takers.get(stage.worker, stage.worker)) for stage in pipeline.stages),
        )
        for pipeline in plan.pipelines
    )
    return reroute(replace(plan, pipelines=pipelines), {*survivors, *takers.values()}, costs)[1].iteration_seconds


def test_a_spare_goes_where_fewest_are_left():
    cluster, plan = Cluster.uniform(9), grid_plan(16, [2] * 4, [3] * 4)
    asked = snapshot_of(
        uniform_profile(16), cluster, 12, plan=plan, lost=["w00", "w03", "w05", "w07"], ranges=Ranges(min_dp=4, min_pp=2)
    )
    decision = replan(asked)
    assert violations(asked, decision) == ()
    assert decision.policy is Policy.SPARE_SUBSTITUTION
    assert "w08" in {pipeline.stages[1].worker for pipeline in decision.plan.pipelines}
    assert decision.search.lower_bound_seconds < decision.estimate.iteration_seconds


def test_no_other_places_are_better():
    chance = random.Random(2)
    for _ in range(12):
        lengths = [chance.choice([2, 3])] * 3
        workers = [f"w{n:02d}" for n in range(sum(lengths))]
        plan = grid_plan(12, lengths, [chance.randint(2, 4) for _ in lengths])
        lost = chance.sample(workers, chance.randint(2, 4))
        survivors, spares = [worker for worker in workers if worker not in lost], ["w09", "w10"][: chance.randint(1, 2)]
        if len(spares) >= len(lost) or len({plan.slots_of[worker][0].stage for worker in survivors}) < lengths[0]:
            continue
        speeds = {worker: chance.choice([1.0, 1.0, 0.5]) for worker in workers}
        uniform = Cluster.uniform(11)
        cluster = uniform.with_workers(tuple(replace(w, speed_ratio=speeds.get(w.id, 1.0)) for w in uniform.workers))
        costs = Costs(uniform_profile(12), cluster)
        found = substitute(plan, frozenset(survivors), spares, costs)[1].iteration_seconds
        choices = itertools.combinations(lost, len(spares))
        best = min(filled_by_hand(plan, dict(zip(some, spares, strict=True)), survivors, costs) for some in choices)
        assert found <= best * (1 + 1e-12)


def with_speeds(speeds):
    """A cluster of workers of these speeds."""
    uniform = Cluster.uniform(len(speeds))
    return uniform.with_workers(tuple(replace(w, speed_ratio=s) for w, s in zip(uniform.workers, speeds, strict=True)))


def test_no_other_use_of_spares_of_different_speeds_is_better():
    """Against all ways to give places spares, or nobody: a slow one may hold up more than it helps."""
    chance, num_idle = random.Random(5), 0
    for _ in range(60):
        lengths = [chance.randint(1, 3) for _ in range(chance.randint(2, 3))]
        plan = grid_plan(6, lengths, [chance.randint(1, 4) for _ in lengths])
        speeds = [
            *(chance.choice([1.0, 1.0, 0.5]) for _ in plan.workers),
            *(chance.choice([0.25, 0.5, 1.0, 2.0]) for _ in range(2)),
        ]
        costs, spares = Costs(uniform_profile(6), with_speeds(speeds)), [f"w{len(speeds) - 2:02d}", f"w{len(speeds) - 1:02d}"]
        lost = chance.sample(plan.workers, chance.randint(1, min(3, len(plan.workers) - 1)))
        survivors, ways = [worker for worker in plan.workers if worker not in lost], list[float]()
        for taken, some in itertools.product(range(1, 3), itertools.permutations(spares)):
            for places in itertools.combinations(lost, min(taken, len(lost))):
                with suppress(InfeasibleError):
                    ways.append(filled_by_hand(plan, dict(zip(places, some, strict=False)), survivors, costs))
        if not ways:
            continue
        filled, price = substitute(plan, frozenset(survivors), spares, costs)
        assert price.iteration_seconds == pytest.approx(min(ways), rel=1e-12)
        num_idle += len(set(spares) & set(filled.workers)) < min(2, len(lost))
    assert num_idle > 5


@pytest.mark.parametrize("speed", [0.2, 2.0])
def test_a_spare_that_would_hold_a_large_job_up_stays_idle(speed):
    plan = grid_plan(8, [2] * 40, [4] * 40)
    speeds = [1.0] * 80 + [speed, 1.0]
    lost = ["w00", "w02", "w05"]
    survivors = frozenset(plan.workers) - frozenset(lost)
    filled, _ = substitute(plan, survivors, ["w80", "w81"], Costs(uniform_profile(8), with_speeds(speeds)))
    assert ("w80" in filled.workers) == (speed > 1.0)


@pytest.mark.parametrize("hosts", [("h00", "h02", "h01", "h00"), ("h00", "h02", "h00", "h01")])
def test_a_spare_beside_who_leaves_is_taken(hosts):
    """It fetches the state within the host, where the step is the same."""
    far, plan = LinkCost(alpha_seconds=1e-5, beta_seconds_per_byte=1e-8), grid_plan(4, [2], [3])
    workers = tuple(Worker(id=f"w{n:02d}", host=host) for n, host in enumerate(hosts))
    asked = snapshot_of(uniform_profile(4, inter_host=far), Cluster(name="shared", workers=workers), 3, plan=plan, lost=["w00"])
    asked = replace(asked, draining=("w00",), settings=replace(asked.settings, ranges=Ranges(min_pp=2)))
    decision = replan(asked)
    assert violations(asked, decision) == ()
    assert set(decision.plan.workers) == {"w01", f"w{hosts.index('h00', 1):02d}"}
    assert decision.migration.makespan_seconds < 0.1


def test_a_spare_that_has_too_little_memory_stays_idle():
    plan, (first, *others) = grid_plan(4, [2, 2], [2, 2]), Cluster.uniform(6).workers
    cluster = Cluster(name="mixed", workers=(first, *others[:3], replace(others[3], memory_bytes=10**9), others[4]))
    asked = snapshot_of(uniform_profile(4), cluster, 4, plan=plan, lost=["w00"], policy=Policy.SPARE_SUBSTITUTION)
    decision = replan(asked)
    assert violations(asked, decision) == ()
    assert set(decision.plan.workers) == {"w01", "w02", "w03", "w05"}


def test_many_spares_for_more_places_are_given_out_by_need():
    plan = grid_plan(8, [2] * 12, [2] * 12)
    lost = [f"w{n:02d}" for n in (0, 2, 4, 6, 1, 3, 5, 7, 9, 11, 13, 15)]  # 4 of stage 0, 8 of stage 1
    survivors = [worker for worker in plan.workers if worker not in lost]
    cluster = Cluster.uniform(28)
    filled, _ = substitute(plan, frozenset(survivors), ["w24", "w25", "w26", "w27"], Costs(uniform_profile(8), cluster))
    assert all(filled.slots_of[worker][0].stage == 1 for worker in ("w24", "w25", "w26", "w27"))


def test_spares_are_spread_over_stages_that_need_them_alike():
    plan = grid_plan(8, [2] * 12, [2] * 12)
    lost = [f"w{n:02d}" for n in (0, 2, 4, 6, 8, 11, 13, 15, 17, 19)]  # 5 of either stage
    survivors = frozenset(plan.workers) - frozenset(lost)
    spares = ["w24", "w25", "w26", "w27"]
    filled, _ = substitute(plan, survivors, spares, Costs(uniform_profile(8), Cluster.uniform(28)))
    assert sorted(filled.slots_of[worker][0].stage for worker in spares) == [0, 0, 1, 1]


def test_the_fastest_of_many_spares_is_taken():
    plan, speeds = grid_plan(8, [2] * 40, [4] * 40), [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    spares = [f"w{n:02d}" for n in range(80, 86)]
    filled, _ = substitute(
        plan, frozenset(plan.workers) - {"w00"}, spares, Costs(uniform_profile(8), with_speeds([1.0] * 80 + speeds))
    )
    assert set(filled.workers) & set(spares) == {"w85"}


def test_a_spare_may_take_the_place_of_who_stood_in_for_another():
    costs, plan = Costs(uniform_profile(4), Cluster.uniform(7)), grid_plan(4, [2, 2, 2], [2, 2, 2])
    rerouted, _ = reroute(plan, frozenset(plan.workers) - {"w00"}, costs)
    assert {route.worker for route in rerouted.routes} == {"w02", "w04"}
    filled, price = substitute(rerouted, frozenset(plan.workers) - {"w00", "w02"}, ["w06"], costs)
    assert "w06" in filled.workers
    assert {route.worker for route in filled.routes} <= {"w04", "w06"}
    assert price.iteration_seconds == filled_by_hand(plan, {"w00": "w06"}, frozenset(plan.workers) - {"w00", "w02"}, costs)


@pytest.mark.parametrize("policy", [Policy.SPARE_SUBSTITUTION, Policy.CHECKPOINT_RESTART])
@pytest.mark.parametrize("happened", ["slow", "joined", "idle lost"])
def test_a_pinned_policy_that_has_nothing_to_do_leaves_the_plan(policy, happened):
    profile, plan = uniform_profile(8), grid_plan(8, [2, 2], [4, 4])
    workers = 5 if happened == "joined" else 4
    cluster = Cluster.uniform(workers)
    if happened == "slow":
        cluster = cluster.with_workers((replace(cluster.workers[0], speed_ratio=0.5), *cluster.workers[1:]))
    asked = snapshot_of(profile, cluster, 8, plan=plan, policy=policy)
    decision = replan(replace(asked, speeds_changed=happened == "slow"))
    assert decision.plan.pipelines == plan.pipelines
    assert [idle.worker for idle in decision.plan.idle_workers] == (["w04"] if happened == "joined" else [])
    assert "stays" in decision.reason
