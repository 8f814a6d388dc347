"""The mean time between failures: estimated from a record, and what depends on it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Estimate, Migration, StateKind, Transfer
from kintsugi.core.errors import InfeasibleError, InvalidInputError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy
from kintsugi.core.reliability import FailureRecord
from planner.policies.deferral import defer
from planner.policies.policy import PREFERENCE, Candidate, break_even, choose
from planner.policies.reliability import mtbf_seconds, posterior_mtbf_seconds
from planner.replan import replan
from tests.builders import grid_plan, snapshot_of, uniform_profile

HEAVY = uniform_profile(8, layer_changes={"parameter_bytes": 50_000_000_000}, memory_bytes=10**12)
LIGHT_GRADIENTS = {"parameter_bytes": 50_000_000_000, "gradient_bytes": 1_000_000}


def record(failures, seconds):
    return FailureRecord(num_failures=failures, observed_seconds=seconds)


def decide(mtbf=10_800.0, *, profile=HEAVY, policy=None, failures=None, draining=(), **settings):
    cluster, fixed = Cluster.uniform(8), Ranges(min_dp=2, max_dp=2, min_pp=4, max_pp=4)
    plan = replan(snapshot_of(profile, cluster, 16, ranges=fixed)).plan
    snapshot = snapshot_of(profile, cluster, 16, plan=plan, lost=["w03"], mtbf_seconds=mtbf, policy=policy)
    settings = replace(snapshot.settings, **settings)
    return replan(replace(snapshot, settings=settings, failures=failures, draining=draining))


def test_without_observation_the_prior_stands():
    assert posterior_mtbf_seconds(10_800.0, 3.0, record(0, 0.0)) == 10_800.0


def test_the_posterior_is_that_of_a_grid_over_rates():
    prior, weight, seen = 1_000.0, 2.0, record(5, 1_500.0)
    rates = np.linspace(1e-7, 0.05, 400_000)
    density = rates ** (weight - 1 + seen.num_failures) * np.exp(-rates * (weight * prior + seen.observed_seconds))
    mean_rate = float((rates * density).sum() / density.sum())
    assert posterior_mtbf_seconds(prior, weight, seen) == pytest.approx(1 / mean_rate, rel=1e-6)


@given(st.floats(1.0, 1e6), st.floats(0.1, 100.0), st.integers(0, 50), st.floats(0.0, 1e7))
def test_more_failures_shorten_it_and_more_time_lengthens_it(prior, weight, failures, seconds):
    value = posterior_mtbf_seconds(prior, weight, record(failures, seconds))
    assert posterior_mtbf_seconds(prior, weight, record(failures + 1, seconds)) < value
    assert posterior_mtbf_seconds(prior, weight, record(failures, seconds + prior)) > value


def test_much_evidence_outweighs_the_prior():
    assert posterior_mtbf_seconds(10_800.0, 3.0, record(10_000, 10_000 * 60.0)) == pytest.approx(60.0, rel=0.06)


def test_a_job_that_asks_for_no_estimate_keeps_its_setting():
    settings = snapshot_of(HEAVY, Cluster.uniform(8), 16, mtbf_seconds=77.0).settings
    assert mtbf_seconds(settings, record(9, 1.0)) == 77.0


def test_before_anything_was_seen_the_setting_stands():
    assert decide(mtbf=77.0, mtbf_prior_failures=1.0).mtbf_seconds == 77.0


def test_the_decision_says_what_it_reckoned_with():
    seen = record(4, 200.0)
    estimated = decide(failures=seen, mtbf_prior_failures=1.0)
    assert estimated.mtbf_seconds == (10_800.0 + 200.0) / 5
    assert estimated.failures == seen
    told = decide(failures=seen)
    assert (told.mtbf_seconds, told.failures) == (10_800.0, None)


def test_an_estimate_decides_as_the_same_setting_does():
    estimated = decide(failures=record(19, 0.0), mtbf_seconds=120.0, mtbf_prior_failures=1.0)
    told = decide(6.0)
    assert estimated.policy is told.policy is Policy.DATA_REROUTING
    assert estimated.estimate == told.estimate
    assert decide(120.0).policy is Policy.DYNAMIC_PARALLELISM


def candidate(policy, iteration, transition, mtbf):
    throughput = 1.0 / iteration
    price = Estimate(
        iteration_seconds=iteration,
        pipeline_seconds=iteration,
        reduce_seconds=0.0,
        reconfiguration_seconds=transition,
        throughput_samples_per_second=throughput,
        goodput_samples_per_second=throughput * max(0.0, 1 - transition / mtbf),
        bubble_ratio=0.0,
        stages=(),
    )
    return Candidate(policy, grid_plan(1, [1], [1]), price, Migration(), "")


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 400)), min_size=2, max_size=4, unique=True), st.integers(1, 10_000))
def test_the_choice_among_the_listed_changes_at_the_break_even_and_not_before(prices, mtbf):
    def choice(seconds):
        return choose([candidate(policy, t, r, seconds) for policy, (t, r) in zip(PREFERENCE, prices, strict=False)], seconds)

    candidates = [candidate(policy, t, r, mtbf) for policy, (t, r) in zip(PREFERENCE, prices, strict=False)]
    chosen = choose(candidates, mtbf)
    even = break_even(chosen, candidates, mtbf)
    if chosen.estimate.goodput_samples_per_second == 0.0:
        return
    if even is None:
        first = min(candidates, key=lambda one: (one.transition_seconds, one.iteration_seconds))
        assert {choice(seconds).policy for seconds in (mtbf * 1e-3, mtbf * 1e6)} <= {chosen.policy, first.policy}
        return
    beyond, towards = (1 - 1e-6, 1 + 1e-6) if even < mtbf else (1 + 1e-6, 1 - 1e-6)
    if even == pytest.approx(mtbf, rel=1e-5):
        return
    assert choice(even * towards).policy is chosen.policy
    assert choice(even * beyond).policy is not chosen.policy


def test_where_failures_leave_no_time_who_is_through_first_is_chosen_and_then_the_shortest_step():
    slow, quick, late = (candidate(policy, t, r, 2.0) for policy, (t, r) in zip(PREFERENCE, [(7, 3), (4, 3), (1, 9)], strict=False))
    assert choose([slow, quick, late], 2.0) is quick
    assert choose([slow, late], 2.0) is slow
    assert choose([slow, quick, late], 100.0) is late


def test_deciding_anew_around_the_break_even_changes_the_plan():
    pair = Ranges(min_dp=2, max_dp=2)  # one arrangement of seven workers, whatever the time between failures
    decision = decide(10_800.0, ranges=pair)
    even = decision.break_even_mtbf_seconds
    assert decision.policy is Policy.DYNAMIC_PARALLELISM
    assert even is not None
    assert decide(even * 1.001, ranges=pair).plan == decision.plan
    assert decide(even * 0.999, ranges=pair).policy is Policy.DATA_REROUTING


def two_steps(**asked):
    profile = uniform_profile(8, layer_changes=LIGHT_GRADIENTS, memory_bytes=10**12)
    return decide(profile=profile, allows_follow_up=True, **asked)


def test_a_follow_up_is_considered_only_where_it_can_be_carried_out():
    policies = {item.policy for item in decide().alternatives}
    assert Policy.DEFERRED_PARALLELISM not in policies
    assert Policy.DEFERRED_PARALLELISM in {item.policy for item in two_steps().alternatives}
    with pytest.raises(InvalidInputError, match="allows_follow_up"):
        decide(policy=Policy.DEFERRED_PARALLELISM)


def test_two_steps_win_where_much_state_can_move_beside_the_training():
    decision = two_steps()
    assert decision.policy is Policy.DEFERRED_PARALLELISM
    assert decision.plan.routes
    assert decision.migration.total_bytes == 0
    follow_up = decision.follow_up
    assert follow_up is not None
    assert follow_up.plan.routes == ()
    assert follow_up.plan.generation == decision.plan.generation + 1
    assert follow_up.estimate.iteration_seconds < decision.estimate.iteration_seconds
    assert follow_up.after_steps * decision.estimate.iteration_seconds >= follow_up.migration.makespan_seconds


def test_nobody_waits_at_the_second_step_for_state_of_who_leaves_at_the_first():
    decision = two_steps(draining=("w03",), policy=Policy.DEFERRED_PARALLELISM)
    assert decision.follow_up.migration.transfers
    assert {transfer.source for transfer in decision.follow_up.migration.transfers} <= set(decision.plan.workers)


def test_the_goodput_of_two_steps_counts_the_samples_of_a_whole_time_between_failures():
    decision = two_steps()
    first, follow_up = decision.estimate, decision.follow_up
    assert follow_up is not None
    second, steps = follow_up.estimate, follow_up.after_steps
    left = 10_800.0 - first.reconfiguration_seconds - steps * first.iteration_seconds - second.reconfiguration_seconds
    samples = (steps + left / second.iteration_seconds) * 16 * 2
    assert first.goodput_samples_per_second == pytest.approx(samples / 10_800.0)


def test_two_steps_need_time_before_the_next_failure_and_room_for_both_stages():
    transfer = Transfer(source="w00", target="w00", layer=0, kind=StateKind.PARAMETER, num_bytes=10**9)
    rerouted = candidate(Policy.DATA_REROUTING, 2.0, 0.0, 100.0)
    moved = Migration(makespan_seconds=60.0, transfers=(transfer,))
    rearranged = replace(candidate(Policy.DYNAMIC_PARALLELISM, 1.0, 0.0, 100.0), migration=moved)
    costs = Costs(uniform_profile(1, layer_changes={"gradient_bytes": 1_000_000}, memory_bytes=10**12), Cluster.uniform(1))
    assert defer(rerouted, rearranged, costs, 100.0).follow_up.after_steps == 31
    with pytest.raises(InfeasibleError, match="after 31 steps, later than the next failure"):
        defer(rerouted, rearranged, costs, 61.0)
    tight = uniform_profile(8, layer_changes=LIGHT_GRADIENTS, memory_bytes=165_000_000_000)
    refused = next(i for i in decide(profile=tight, allows_follow_up=True).alternatives if i.policy is Policy.DEFERRED_PARALLELISM)
    assert "beside the old ones" in refused.reason


@pytest.mark.parametrize(("num_bytes", "seconds"), [(1_000, 1.0), (100_000_000, 2.0)])
def test_gradients_that_take_longer_than_a_step_are_never_caught_up(num_bytes, seconds):
    transfer = Transfer(source="w00", target="w00", layer=0, kind=StateKind.PARAMETER, num_bytes=num_bytes)
    moved = Migration(makespan_seconds=seconds, transfers=(transfer,))
    rerouted = candidate(Policy.DATA_REROUTING, 2.0, 0.0, 100.0)
    rearranged = replace(candidate(Policy.DYNAMIC_PARALLELISM, 1.0, 0.0, 100.0), migration=moved)
    with pytest.raises(InfeasibleError, match="gradients of one step take longer"):
        defer(rerouted, rearranged, Costs(uniform_profile(1), Cluster.uniform(1)), 100.0)


ARRIVING = (("w00", 0, 60_000_000), ("w00", 0, 40_000_000), ("w00", 1, 10**9), ("w01", 0, 10**9))
"""Target, layer and bytes: of no layer gradients take longer beside its state than of the first on w00."""


def two_of_two_devices(memory_bytes):
    moved = Migration(
        makespan_seconds=60.0,
        transfers=tuple(
            Transfer(source="w01", target=target, layer=layer, kind=StateKind.PARAMETER, num_bytes=num_bytes)
            for target, layer, num_bytes in ARRIVING
        ),
    )
    profile = uniform_profile(2, layer_changes={"gradient_bytes": 1_000_000}, memory_bytes=memory_bytes)
    costs = Costs(replace(profile, tensor_parallel_degree=2), Cluster.uniform(2))
    rearranged = replace(candidate(Policy.DYNAMIC_PARALLELISM, 1.0, 0.0, 1_000.0), migration=moved)
    return defer(candidate(Policy.DATA_REROUTING, 2.0, 0.0, 1_000.0), rearranged, costs, 1_000.0), costs.profile.recovery


def test_the_pause_of_two_steps_waits_for_the_gradients_that_take_longest():
    candidate, recovery = two_of_two_devices(550_000_000)
    assert candidate.follow_up.after_steps == 30 + 45  # 30 for the state, and in each 0.8 s are left to make up for 1.2 s
    assert candidate.follow_up.estimate.reconfiguration_seconds == pytest.approx(recovery.regroup_seconds + 1.2)
    assert "after 75 steps" in candidate.reason


def test_each_device_needs_room_for_its_part_of_what_comes():
    with pytest.raises(InfeasibleError, match="worker w00 lacks 1 bytes"):
        two_of_two_devices(549_999_999)


@pytest.mark.parametrize(("seconds", "num_transfers"), [(2.0, 1), (1.0, 0)])
def test_two_steps_need_a_shorter_step_and_state_that_moves(seconds, num_transfers):
    transfer = Transfer(source="w00", target="w00", layer=0, kind=StateKind.PARAMETER, num_bytes=10**9)
    moved = Migration(makespan_seconds=1.0, transfers=(transfer,) * num_transfers)
    rearranged = replace(candidate(Policy.DYNAMIC_PARALLELISM, seconds, 0.0, 100.0), migration=moved)
    with pytest.raises(InfeasibleError, match="no shorter step, or nothing has to move"):
        defer(candidate(Policy.DATA_REROUTING, 2.0, 0.0, 100.0), rearranged, Costs(uniform_profile(1), Cluster.uniform(1)), 100.0)


def test_a_plan_whose_second_step_is_open_is_decided_anew():
    decision = two_steps()
    profile = uniform_profile(8, layer_changes=LIGHT_GRADIENTS, memory_bytes=10**12)
    snapshot = snapshot_of(profile, Cluster.uniform(8), 16, plan=decision.plan, lost=["w03"])
    again = replan(replace(snapshot, settings=replace(snapshot.settings, allows_follow_up=True)))
    assert {item.policy for item in again.alternatives} >= {Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM}
