"""The restart that the next failure makes due where a layer has one holder only."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from estimator.goodput import charged_goodput, expected_restart_seconds, restart_seconds, sole_holder_ratio
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy
from planner.policies.rerouting import reroute
from planner.replan import replan
from tests.builders import RECOVERY, grid_plan, snapshot_of, uniform_profile

CHECKPOINTED = replace(RECOVERY, checkpoint_interval_seconds=1800.0, checkpoint_read_bytes_per_second=1e9)
HEAVY_REDUCTION = {"gradient_bytes": 2_000_000_000}
"""So much that a single pipeline, which reduces nothing, has a slightly shorter step."""


def lose(lost, *, workers=4, lengths=(2, 2), recovery=CHECKPOINTED, **changes):
    profile = uniform_profile(4, recovery=recovery, layer_changes=HEAVY_REDUCTION)
    plan = grid_plan(4, lengths, [8 // len(lengths)] * len(lengths))
    return replan(snapshot_of(profile, Cluster.uniform(workers), 8, plan=plan, lost=lost, **changes))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.sets(st.integers(0, 11), max_size=5))
def test_the_ratio_counts_workers_whose_loss_leaves_a_layer_to_nobody(lengths, dead):
    plan = grid_plan(8, lengths, [4] * len(lengths))
    left = [worker for number, worker in enumerate(plan.workers) if number not in dead]
    try:
        plan, _ = reroute(plan, left, Costs(uniform_profile(8), Cluster.uniform(len(plan.workers))))
    except InfeasibleError:
        return
    fatal = [worker for worker in plan.workers if any(set(holders) <= {worker} for holders in plan.holders)]
    assert sole_holder_ratio(plan) == len(fatal) / len(plan.workers)


def test_the_excess_of_a_restart_over_the_least_recovery_is_charged_as_often_as_it_is_due():
    profile = uniform_profile(4, recovery=CHECKPOINTED)
    plan, _ = reroute(grid_plan(4, [2, 2], [4, 4]), ["w00", "w01", "w02"], Costs(profile, Cluster.uniform(4)))
    least = RECOVERY.detect_seconds + RECOVERY.regroup_seconds
    assert expected_restart_seconds(plan, profile) == pytest.approx((restart_seconds(profile) - least) / 3)


def test_what_has_no_price_is_not_charged():
    single = grid_plan(4, [4], [8])
    assert expected_restart_seconds(single, uniform_profile(4, recovery=RECOVERY)) == 0.0
    cheap = replace(CHECKPOINTED, regroup_seconds=9.0, restart_seconds=0.0, checkpoint_interval_seconds=1.0)
    cheap = replace(cheap, checkpoint_read_bytes_per_second=1e15)
    assert expected_restart_seconds(single, uniform_profile(4, recovery=cheap)) == 0.0


def test_a_shorter_step_on_sole_holders_is_taken_only_where_failures_are_rare():
    often, rarely = (lose(["w03"], mtbf_seconds=seconds) for seconds in (4000.0, 4e7))
    assert rarely.plan.dp == 1
    assert often.plan.dp > 1
    assert often.estimate.iteration_seconds > rarely.estimate.iteration_seconds
    assert sole_holder_ratio(often.plan) < sole_holder_ratio(rarely.plan) == 1.0


def test_without_checkpoints_equation_8_decides():
    assert lose(["w03"], recovery=RECOVERY, mtbf_seconds=4000.0).plan.dp == 1


def test_after_a_restart_as_well():
    decision = lose(["w02", "w03"], workers=6, lengths=(3, 3), mtbf_seconds=2000.0, stateless=["w00"])
    assert decision.policy is Policy.CHECKPOINT_RESTART
    assert decision.plan.dp > 1


def test_a_first_plan_has_the_shortest_step():
    profile = uniform_profile(4, recovery=CHECKPOINTED, layer_changes=HEAVY_REDUCTION)
    assert replan(snapshot_of(profile, Cluster.uniform(3), 8, mtbf_seconds=100.0)).plan.dp == 1


@pytest.mark.parametrize("mtbf_seconds", [1500.0, 4000.0, 20_000.0, 4e7])
def test_the_winner_is_the_best_by_what_all_are_charged(mtbf_seconds):
    decision = lose(["w03"], mtbf_seconds=mtbf_seconds, ranges=Ranges(max_dp=2))
    prices = {item.policy: item.estimate for item in decision.alternatives if item.estimate is not None}
    assert charged_goodput(prices[decision.policy], mtbf_seconds) == max(charged_goodput(p, mtbf_seconds) for p in prices.values())
    assert ("expected of a restart" in decision.reason) is any(price.expected_restart_seconds for price in prices.values())


@pytest.mark.parametrize("mtbf_seconds", [1500.0, 4000.0, 4e7])
def test_the_decision_shows_what_all_are_compared_by(mtbf_seconds):
    decision = lose(["w03"], mtbf_seconds=mtbf_seconds, ranges=Ranges(max_dp=2))
    shown = {item.policy: item.charged_goodput_samples_per_second for item in decision.alternatives if item.feasible}
    assert shown[decision.policy] == max(shown.values())
    for item in decision.alternatives:
        if item.estimate is None:
            assert item.charged_goodput_samples_per_second is None
        else:
            assert shown[item.policy] == pytest.approx(charged_goodput(item.estimate, mtbf_seconds))
            if item.policy is decision.policy and item.estimate.expected_restart_seconds:
                assert f"or {shown[item.policy]:.6g} samples/s with" in decision.reason
