"""Micro-batches of dead slots go where the step is shortest, as far as there is time to look."""

import math
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings

from estimator.costs import Costs
from estimator.estimate import overfull, priced
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan, Policy
from planner.legality import violations
from planner.policies import options
from planner.policies.diverting import FEWEST_TRIED, MOST_PASSES, MOST_TRIED, divert
from planner.policies.rerouting import reroute, with_routes
from planner.replan import replan
from tests.builders import grid_plan, uniform_profile
from tests.planner.policies.test_rerouting import failures, mended


def lost(dp: int, pp: int, microbatches: int, dead: list[str]) -> tuple[Plan, list[str], Costs]:
    """A grid of equal stages, who is left of it, and its costs."""
    plan = grid_plan(pp, [pp] * dp, [microbatches] * dp)
    costs = Costs(uniform_profile(pp), Cluster.uniform(dp * pp))
    return plan, [worker for worker in plan.workers if worker not in dead], costs


def crews(plan: Plan) -> list[list[str]]:
    """Everybody who could take the micro-batch of each route."""
    return [[w for w in plan.workers if plan.holds(w, plan.pipelines[r.pipeline].stages[r.stage])] for r in plan.routes]


@pytest.mark.parametrize(
    ("dp", "pp", "microbatches", "dead"),
    [
        (3, 2, 2, ["w03", "w04"]),
        (4, 2, 1, ["w00", "w05", "w06"]),
        (3, 3, 2, ["w00", "w01", "w05"]),
        (3, 4, 2, ["w02", "w04", "w11"]),
        (4, 2, 3, ["w03", "w04"]),
        (4, 3, 2, ["w05", "w07"]),
        (5, 2, 2, ["w01", "w04"]),
    ],
)
def test_what_loads_alone_do_not_show_is_found(dp, pp, microbatches, dead):
    """All ways to share out are priced; those by load alone are 7 to 17 % longer."""
    plan, living, costs = lost(dp, pp, microbatches, dead)
    by_load = reroute(plan, living, costs)
    found, price = divert(*by_load, costs)
    ways = (
        tuple(replace(route, worker=worker) for route, worker in zip(found.routes, workers, strict=True))
        for workers in product(*crews(found))
    )
    best = min(with_routes(found, routes, costs)[1].iteration_seconds for routes in ways)
    assert price.iteration_seconds == pytest.approx(best)
    assert by_load[1].iteration_seconds > 1.06 * best
    assert price == priced(found, costs)


@given(failures())
@settings(max_examples=60, deadline=None)
def test_never_worse_than_before(failure):
    plan, costs, living = failure
    before = mended(plan, living, costs)
    found, price = divert(before, priced(before, costs), costs)
    assert price.iteration_seconds <= priced(before, costs).iteration_seconds * (1 + 1e-9)
    assert not overfull(price, costs) or overfull(priced(before, costs), costs)
    assert (found.pipelines, found.workers) == (before.pipelines, before.workers)
    assert divert(before, priced(before, costs), costs)[0] == found


def test_what_is_not_rerouted_stays():
    plan, _, costs = lost(2, 2, 4, [])
    assert divert(plan, priced(plan, costs), costs)[0] is plan


def test_of_a_large_plan_no_changes_are_tried():
    num_passes = MOST_PASSES // FEWEST_TRIED
    plan, living, costs = lost(2, 4, num_passes // 8 + 1, ["w01"])
    before = reroute(plan, living, costs)
    assert before[0].num_microbatches * 4 > num_passes
    assert divert(*before, costs)[0] is before[0]
    assert math.prod(map(len, crews(before[0]))) <= MOST_TRIED, "else it would be one of few ways all the same"


@pytest.mark.parametrize("speeds", [(1.0, 1.0, 1.0, 1.0), (1.0, 0.5, 0.8, 1.0), (0.3, 1.0, 0.9, 0.7)])
def test_without_stages_load_says_it_all(speeds):
    plan = grid_plan(2, [1] * 4, [2] * 4)
    workers = tuple(Worker(id=w, host=w, speed_ratio=speed) for w, speed in zip(plan.workers, speeds, strict=True))
    costs = Costs(uniform_profile(2), Cluster(name="mixed", workers=workers))
    found, price = divert(*reroute(plan, ["w00", "w01", "w02"], costs), costs)
    ways = (
        tuple(replace(route, worker=worker) for route, worker in zip(found.routes, taken, strict=True))
        for taken in product(*crews(found))
    )
    assert price.iteration_seconds == pytest.approx(min(with_routes(found, way, costs)[1].iteration_seconds for way in ways))


def after(plan: Plan, living: list[str], costs: Costs, refused: tuple[Policy, ...] = (), **changes) -> Snapshot:
    return Snapshot(
        profile=costs.profile,
        cluster=costs.cluster,
        settings=JobSettings(num_microbatches=plan.num_microbatches, ranges=Ranges(), **changes),
        plan=plan,
        alive=tuple(living),
        generation=1,
        refused_policies=refused,
    )


@pytest.mark.parametrize(
    ("dp", "pp", "dead", "changes"),
    [
        (5, 2, ["w01", "w04"], {}),
        (3, 3, ["w03", "w08"], {"policy": Policy.DATA_REROUTING}),
        (3, 3, ["w03", "w08"], {"refused": (Policy.DYNAMIC_PARALLELISM,)}),
        (3, 3, ["w03", "w08"], {"allows_follow_up": True}),
    ],
    ids=["the best", "pinned", "the best is refused", "a first step"],
)
def test_decisions_reroute_so(dp, pp, dead, changes):
    plan, living, costs = lost(dp, pp, 2, dead)
    shortest = divert(*reroute(plan, living, costs), costs)[1].iteration_seconds
    snapshot = after(plan, living, costs, **changes)
    decision = replan(snapshot)
    assert not violations(snapshot, decision)
    rerouted = next(other.estimate for other in decision.alternatives if other.policy is Policy.DATA_REROUTING)
    assert rerouted.iteration_seconds == pytest.approx(shortest)


@pytest.mark.parametrize("dead", [["w05"], ["w05", "w06"]], ids=["a loss", "a loss more than spares"])
@pytest.mark.parametrize("changes", [{"policy": Policy.DYNAMIC_PARALLELISM}, {"mtbf_seconds": 1e9}])
def test_nobody_looks_where_another_policy_wins_anyway(dead, changes, monkeypatch):
    plan, living, costs = lost(2, 4, 16, dead)
    spares = ["w08"] * (len(dead) - 1)
    with_spare = Costs(costs.profile, Cluster.uniform(8 + len(spares)))
    monkeypatch.setattr(options, "divert", lambda *_: pytest.fail("looked"))
    assert replan(after(plan, living + spares, with_spare, **changes)).policy is Policy.DYNAMIC_PARALLELISM


def test_spares_leave_rerouted_micro_batches_where_the_step_is_shortest():
    plan, living, costs = lost(4, 2, 3, ["w03", "w04", "w06"])
    with_spare = Costs(costs.profile, Cluster.uniform(9))
    filled = replan(after(plan, [*living, "w08"], with_spare, policy=Policy.SPARE_SUBSTITUTION))
    assert filled.policy is Policy.SPARE_SUBSTITUTION
    assert filled.plan.dead_slots
    by_load = reroute(filled.plan, filled.plan.workers, with_spare)
    assert filled.estimate.iteration_seconds == divert(*by_load, with_spare)[1].iteration_seconds
    assert filled.estimate.iteration_seconds < by_load[1].iteration_seconds
