"""Every policy's own best plan: a restart's, for which nothing moves, and any where failures leave no goodput to compare."""

from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Alternative, Decision
from kintsugi.core.job import Ranges, Snapshot
from kintsugi.core.plan import Policy
from kintsugi.core.profile import LinkCost
from planner.replan import replan
from tests.builders import FREE, RECOVERY, snapshot_of, uniform_profile


def of(decision: Decision, policy: Policy) -> Alternative:
    return next(alternative for alternative in decision.alternatives if alternative.policy is policy)


def after_a_loss(worker: str, **changes) -> Snapshot:
    """Nine workers on links so slow that layers take minutes to move, while storage is fast; one of them is lost."""
    recovery = replace(RECOVERY, checkpoint_interval_seconds=60.0, checkpoint_read_bytes_per_second=1e10)
    profile = uniform_profile(
        8,
        layer_changes={"parameter_bytes": 10**9, "gradient_bytes": 10**5, "optimizer_bytes": 4 * 10**8, "output_bytes": 1000},
        inter_host=LinkCost(alpha_seconds=1e-5, beta_seconds_per_byte=1e-7),
        recovery=recovery,
    )
    cluster = Cluster.uniform(9)
    first = replan(snapshot_of(profile, cluster, 8))
    return snapshot_of(profile, cluster, 8, plan=first.plan, lost=[worker], **changes)


@pytest.mark.parametrize("pinned", [None, Policy.CHECKPOINT_RESTART])
def test_a_restart_is_onto_the_best_arrangement_of_all_where_it_may_win(pinned):
    """A new arrangement keeps its pipelines so that little moves: its step is over half as long again as that of single ones."""
    snapshot = after_a_loss("w04", mtbf_seconds=600.0)
    decision = replan(replace(snapshot, settings=replace(snapshot.settings, policy=pinned)))
    step = replan(replace(snapshot, plan=None)).estimate.iteration_seconds
    assert of(decision, Policy.DYNAMIC_PARALLELISM).estimate.iteration_seconds > 1.5 * step
    assert decision.policy is Policy.CHECKPOINT_RESTART
    assert decision.estimate.iteration_seconds == step
    assert decision.search.gap_ratio == pytest.approx(0.0, abs=1e-9)


def test_a_restart_that_cannot_win_is_told_by_the_arrangement_that_is_known():
    """Nothing is searched for it."""
    decision = replan(after_a_loss("w04", mtbf_seconds=60.0))
    steps = [of(decision, policy).estimate.iteration_seconds for policy in (Policy.DYNAMIC_PARALLELISM, Policy.CHECKPOINT_RESTART)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("mtbf_seconds", [0.5, 20.0, 31.0])
def test_where_failures_come_before_any_transition_is_over_the_step_is_as_short_as_where_they_come_later(mtbf_seconds):
    """Every transition takes 31 s here."""
    recovery = replace(RECOVERY, regroup_seconds=30.0)
    profile, cluster = uniform_profile(4, inter_host=FREE, recovery=recovery), Cluster.uniform(12)
    first = replan(snapshot_of(profile, cluster, 8))
    found = [
        of(
            replan(snapshot_of(profile, cluster, 8, plan=first.plan, lost=["w00"], mtbf_seconds=seconds)),
            Policy.DYNAMIC_PARALLELISM,
        )
        for seconds in (mtbf_seconds, 40.0)
    ]
    assert [one.estimate.iteration_seconds for one in found] == [found[1].estimate.iteration_seconds] * 2
    assert [one.charged_goodput_samples_per_second > 0 for one in found] == [False, True]
    assert found[0].estimate.goodput_samples_per_second == 0.0


def test_where_a_restart_at_the_next_failure_leaves_no_goodput_the_step_is_as_short_as_where_failures_are_rare():
    """One pipeline is all that fits, and checkpoints are taken every eight hours, of which a loss costs half."""
    recovery = replace(RECOVERY, checkpoint_interval_seconds=28_800.0, checkpoint_read_bytes_per_second=1e9)
    profile, cluster = uniform_profile(10, memory_bytes=5 * 10**9, recovery=recovery), Cluster.uniform(8)
    ranges = Ranges(max_dp=1)
    first = replan(snapshot_of(profile, cluster, 12, ranges=ranges))
    worker = first.plan.workers[0]
    found = []
    for mtbf_seconds in (10_800.0, 1e9):
        snapshot = snapshot_of(profile, cluster, 12, plan=first.plan, lost=[worker], ranges=ranges, mtbf_seconds=mtbf_seconds)
        found.append(of(replan(replace(snapshot, draining=(worker,))), Policy.DYNAMIC_PARALLELISM))
    assert found[0].charged_goodput_samples_per_second == 0.0
    assert found[0].estimate.iteration_seconds == found[1].estimate.iteration_seconds
    assert found[0].estimate.goodput_samples_per_second > 0
