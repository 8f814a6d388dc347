"""Every count of workers: all are used or idle for a reason, and equal snapshots give equal decisions."""

from dataclasses import replace

import pytest

from benchmarks.counts import Runs
from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.program import compile_program
from estimator.replay import replay
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.job import Ranges
from planner.legality import violations
from planner.replan import replan
from tests.builders import snapshot_of, transformer_profile, uniform_profile

RANGES = Ranges(min_pp=4, max_pp=16)
EQUAL, TRANSFORMER = uniform_profile(40), transformer_profile(38)


def decide(profile, num_workers, **changes):
    return replan(snapshot_of(profile, Cluster.uniform(num_workers), 4 * num_workers, ranges=RANGES, **changes))


def undated(decision):
    """Everything but the time that the search took."""
    return codec.dumps(replace(decision, search=replace(decision.search, elapsed_seconds=0.0)))


@pytest.mark.parametrize("profile", [EQUAL, TRANSFORMER], ids=["equal", "transformer"])
@pytest.mark.parametrize("num_workers", [*range(8, 40), 60, 61, 63, 97, 127, 255, 509, 1021, 1024])
def test_all_workers_are_used_or_idle_for_a_reason(profile, num_workers):
    decision = decide(profile, num_workers)
    plan = decision.plan
    used, idle = set(plan.workers), {item.worker for item in plan.idle_workers}
    assert used | idle == {worker.id for worker in Cluster.uniform(num_workers).workers}
    assert not used & idle
    assert all(item.reason for item in plan.idle_workers)
    assert plan.num_microbatches == 4 * num_workers
    assert all(4 <= len(pipeline.stages) <= 16 for pipeline in plan.pipelines)
    if num_workers > 16:
        assert decision.search.gap_ratio < 0.01


@pytest.mark.parametrize("num_workers", [9, 31, 255])
def test_equal_snapshots_give_equal_decisions(num_workers):
    first = decide(TRANSFORMER, num_workers).plan
    decisions = [undated(decide(TRANSFORMER, num_workers, plan=first, lost=["w05"])) for _ in range(10)]
    assert len(set(decisions)) == 1


def test_decisions_do_not_depend_on_the_process():
    """Sets and dictionaries of names are ordered differently in each."""
    assert Runs(state=None).num_different(range(8, 33, 8), runs=3, jobs=1) == 1


@pytest.mark.parametrize("profile", [EQUAL, TRANSFORMER], ids=["equal", "transformer"])
@pytest.mark.parametrize("num_workers", [9, 17, 26, 47, 64, 77])
def test_plans_are_legal_before_and_after_a_loss(profile, num_workers):
    first = snapshot_of(profile, Cluster.uniform(num_workers), 4 * num_workers, ranges=RANGES)
    before = replan(first)
    after = snapshot_of(profile, Cluster.uniform(num_workers), 4 * num_workers, ranges=RANGES, plan=before.plan, lost=["w03"])
    assert violations(first, before) == ()
    assert violations(after, replan(after)) == ()


@pytest.mark.parametrize("num_workers", [8, 13, 31, 64])
def test_a_price_is_that_of_the_replay(num_workers):
    cluster = Cluster.uniform(num_workers)
    decision = decide(TRANSFORMER, num_workers)
    program = compile_program(decision.plan, TRANSFORMER, cluster)
    replayed = replay(program, Costs(TRANSFORMER, cluster))
    assert decision.estimate.iteration_seconds == pytest.approx(replayed.iteration_seconds, rel=1e-12)
    assert decision.estimate.iteration_seconds == estimate(decision.plan, TRANSFORMER, cluster).iteration_seconds
