"""Plans from outside: those that fit are adopted as they are, with what they leave out; the others are refused by name."""

from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import IdleWorker, Policy, Schedule
from planner.adoption import adopt, fitting
from planner.legality import violations
from planner.replan import replan
from restorer.rounds import colour_rounds
from tests.builders import grid_plan, snapshot_of, transformer_profile
from tests.core.refusals import refuses

PROFILE = transformer_profile(6)
GRID = grid_plan(8, [3, 2], [6, 4])
CLUSTER = Cluster.uniform(6)


def running(plan=GRID, cluster=CLUSTER):
    return replace(snapshot_of(PROFILE, cluster, 10, plan=plan), generation=0)


def test_an_adopted_plan_is_legal_whatever_it_leaves_out():
    snapshot = running(replace(GRID, generation=7))
    decision = adopt(snapshot)
    assert violations(snapshot, decision) == ()
    assert decision.plan.pipelines == GRID.pipelines
    assert decision.plan.rounds == colour_rounds(GRID, PROFILE)
    assert [idle.worker for idle in decision.plan.idle_workers] == ["w05"]
    assert decision.estimate.reduce_seconds > 0


def test_what_was_adopted_is_adopted_as_it_is():
    first = adopt(running())
    assert adopt(running(first.plan)).plan == first.plan
    kept = replan(replace(running(first.plan), generation=1))
    assert kept.plan == replace(first.plan, generation=1), "nothing joined since"


def test_a_plan_on_workers_of_other_speeds_stays_as_it_is():
    slow, *others = CLUSTER.workers
    cluster = CLUSTER.with_workers((replace(slow, speed_ratio=0.25), *others))
    ranges = Ranges(min_dp=2, max_dp=2, min_pp=3, max_pp=3)
    asked = replan(snapshot_of(PROFILE, cluster, 10, ranges=ranges)).plan
    assert adopt(running(asked, cluster)).plan == asked


def test_a_plan_that_runs_is_adopted_where_none_would_be_found():
    """Its memory is an estimate, and the ranges are of later plans; a setting that is wrong is refused all the same."""
    snapshot = running()
    tight = replace(snapshot, profile=transformer_profile(6, memory_bytes=1_000_000_000))
    narrow = replace(snapshot, settings=replace(snapshot.settings, ranges=Ranges(min_pp=7)))
    for impossible in (tight, narrow):
        with pytest.raises(InfeasibleError):
            replan(replace(impossible, plan=None))
        decision = adopt(impossible)
        assert decision.plan == adopt(snapshot).plan
        assert 0 < decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds
    with refuses("policy", "deferred_parallelism", "has two steps"):
        adopt(replace(snapshot, settings=replace(snapshot.settings, policy=Policy.DEFERRED_PARALLELISM)))


@pytest.mark.parametrize(
    ("changes", "field", "value", "fragment"),
    [
        ({"schedule": Schedule.AUTO}, "plan.schedule", "auto", "choose one of 1f1b"),
        ({"pipelines": GRID.pipelines[:1]}, "plan", 6, "where the settings say 10"),
        ({"pipelines": grid_plan(8, [7], [10]).pipelines}, "plan.pipelines[0].stages[6].worker", "w06", "of the cluster"),
        ({"idle_workers": (IdleWorker(worker="w77", reason="?"),)}, "plan.idle_workers[0].worker", "w77", "of the cluster"),
    ],
)
def test_a_plan_that_does_not_fit_the_job_is_refused(changes, field, value, fragment):
    with refuses(field, value, fragment):
        adopt(running(replace(GRID, **changes)))


def test_a_plan_of_another_model_is_refused():
    with refuses("plan", 7, "where the profile has 8"):
        fitting(grid_plan(7, [1], [10]), PROFILE, CLUSTER)
