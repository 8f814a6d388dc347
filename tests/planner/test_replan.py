"""Decisions: what the contract promises, and what a decision must never do."""

import gc
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from estimator.estimate import estimate
from kintsugi.core.cluster import Cluster, HostLink, Worker
from kintsugi.core.errors import InfeasibleError, InvalidInputError, StateLostError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy, Schedule
from kintsugi.core.profile import LinkCost, Recovery
from planner.placing.placement import NOT_NEEDED
from planner.policies.policy import survivable
from planner.policies.rerouting import reroute
from planner.policies.reshaping import PROVEN_IDLE
from planner.replan import replan
from restorer.rounds import colour_rounds
from tests.builders import RECOVERY, grid_plan, snapshot_of, transformer_profile, uniform_profile

PROFILE = uniform_profile(8)
SLOW_REGROUP = Recovery(regroup_seconds=2.0, restart_seconds=60.0)


def first_plan(profile=PROFILE, dp=2, pp=4, microbatches=16, cluster=None):
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp)
    return replan(snapshot_of(profile, cluster or Cluster.uniform(dp * pp), microbatches, ranges=ranges)).plan


def recover(lost, *, profile=PROFILE, workers=8, plan=None, **settings):
    plan = plan or first_plan(profile)
    return replan(snapshot_of(profile, Cluster.uniform(workers), 16, plan=plan, lost=lost, **settings))


def test_a_grid_holds_workers_pipeline_by_pipeline():
    plan = first_plan()
    assert [[stage.worker for stage in pipeline.stages] for pipeline in plan.pipelines] == [
        ["w00", "w01", "w02", "w03"],
        ["w04", "w05", "w06", "w07"],
    ]
    assert plan.policy is Policy.FAULT_FREE


@pytest.mark.parametrize("policy", [None, Policy.DATA_REROUTING])
def test_where_nothing_was_to_choose_a_reason_speaks_of_no_other_policy(policy):
    first = replan(snapshot_of(PROFILE, Cluster.uniform(8), 16, policy=policy))
    assert first.reason == f"the shortest step that was found: {first.estimate.iteration_seconds:.4g} s a step."
    kept = recover([], plan=first.plan, policy=policy)
    stays = "nothing that the plan uses was lost and nothing joined, so it stays"
    assert kept.reason == f"{stays}: {kept.estimate.iteration_seconds:.4g} s a step."


def test_equal_snapshots_give_equal_decisions():
    def decide():
        decision = recover(["w03"])
        return replace(decision, search=replace(decision.search, elapsed_seconds=0.0))

    assert decide() == decide()


@settings(deadline=None, max_examples=25)
@given(st.sets(st.integers(0, 7), min_size=1, max_size=4))
def test_every_survivor_is_used_or_idle_for_a_reason(numbers):
    lost = {f"w{n:02d}" for n in numbers}
    plan = first_plan()
    try:
        decision = recover(sorted(lost), plan=plan)
    except StateLostError:
        assert any({f"w{s:02d}", f"w{s + 4:02d}"} <= lost for s in range(4))
        return
    used = set(decision.plan.workers)
    idle = {idle.worker for idle in decision.plan.idle_workers}
    assert used | idle == {f"w{n:02d}" for n in range(8)} - lost
    assert not used & idle
    assert all(idle.reason for idle in decision.plan.idle_workers)
    assert decision.plan.num_microbatches == 16
    assert decision.plan.generation == plan.generation + 1
    assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds
    chosen = [item for item in decision.alternatives if item.policy is decision.policy]
    assert chosen[0].estimate == decision.estimate
    assert decision.estimate.goodput_samples_per_second == max(
        item.estimate.goodput_samples_per_second for item in decision.alternatives if item.estimate
    )
    again = estimate(decision.plan, PROFILE, Cluster.uniform(8))
    assert again.iteration_seconds == decision.estimate.iteration_seconds


def test_nothing_lost_and_nothing_joined_changes_nothing():
    plan = first_plan()
    decision = recover([], plan=plan)
    assert replace(decision.plan, generation=plan.generation) == plan
    assert decision.estimate.reconfiguration_seconds == 0.0


def test_rerouting_moves_nothing_and_dynamic_parallelism_does():
    rerouted, reshaped = (recover(["w03"], policy=policy) for policy in (Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM))
    assert rerouted.migration.total_bytes == 0
    assert rerouted.estimate.reconfiguration_seconds == 3.0
    assert {route.worker for route in rerouted.plan.routes} == {"w07"}
    assert len(rerouted.plan.routes) == rerouted.plan.pipelines[0].num_microbatches
    assert reshaped.plan.routes == ()
    assert reshaped.estimate.reconfiguration_seconds == pytest.approx(3.0 + reshaped.migration.makespan_seconds)


def test_the_listed_plans_are_equal_at_the_break_even():
    profile = uniform_profile(8, layer_changes={"parameter_bytes": 50_000_000_000}, memory_bytes=10**12)
    decision = recover(["w03"], profile=profile, mtbf_seconds=50_000.0)
    even = decision.break_even_mtbf_seconds
    assert decision.policy is Policy.DYNAMIC_PARALLELISM
    assert even is not None
    goodputs = [
        item.estimate.throughput_samples_per_second * (1 - item.estimate.reconfiguration_seconds / even)
        for item in decision.alternatives
        if item.estimate
    ]
    assert len(goodputs) == 2
    assert goodputs[0] == pytest.approx(goodputs[1])


def test_frequent_failures_favour_cheap_transitions():
    profile = uniform_profile(8, layer_changes={"parameter_bytes": 50_000_000_000}, memory_bytes=10**12)
    decisions = [recover(["w03"], profile=profile, mtbf_seconds=seconds) for seconds in (6.0, 40.0, 50_000.0)]
    transitions = [decision.estimate.reconfiguration_seconds for decision in decisions]
    assert transitions == sorted(transitions)
    assert decisions[0].policy is Policy.DATA_REROUTING
    assert decisions[-1].policy is Policy.DYNAMIC_PARALLELISM


def test_failures_chain():
    profile = uniform_profile(8)
    plan = first_plan(profile, dp=3, pp=2)
    cluster = Cluster.uniform(6)
    one = replan(snapshot_of(profile, cluster, 16, plan=plan, lost=["w00"], policy=Policy.DATA_REROUTING))
    two = replan(snapshot_of(profile, cluster, 16, plan=one.plan, lost=["w00", "w03"], policy=Policy.DATA_REROUTING))
    assert [slot.pipeline for slot in two.plan.dead_slots] == [0, 1]
    assert {route.worker for route in two.plan.routes if route.stage == 0} <= {"w02", "w04"}
    assert two.estimate.iteration_seconds >= one.estimate.iteration_seconds


def test_a_spare_takes_the_dead_slot():
    plan = first_plan()
    decision = recover(["w03"], workers=9, plan=plan, policy=Policy.SPARE_SUBSTITUTION)
    assert decision.plan.pipelines[0].stages[3].worker == "w08"
    assert {(t.source, t.target) for t in decision.migration.transfers} == {("w07", "w08")}


def test_a_worker_that_brings_too_little_stays_idle():
    recovery = replace(RECOVERY, regroup_seconds=5_000.0)
    profile = uniform_profile(8, recovery=recovery)
    decision = recover([], profile=profile, workers=9)
    assert [idle.worker for idle in decision.plan.idle_workers] == ["w08"]
    assert "costs more than it brings" in decision.plan.idle_workers[0].reason


def test_a_worker_that_restarted_holds_nothing():
    decision = recover([], stateless=["w00"], policy=Policy.SPARE_SUBSTITUTION)
    assert {t.target for t in decision.migration.transfers} == {"w00"}
    assert {t.source for t in decision.migration.transfers} == {"w04"}


def test_a_straggler_is_planned_around():
    plan = first_plan()
    workers = Cluster.uniform(8).workers
    cluster = Cluster(name="straggler", workers=(replace(workers[0], speed_ratio=0.25), *workers[1:]))
    kept = estimate(plan, PROFILE, cluster).iteration_seconds
    decision = replan(snapshot_of(PROFILE, cluster, 16, plan=plan))
    assert decision.policy is Policy.DYNAMIC_PARALLELISM
    assert decision.estimate.iteration_seconds < kept


@pytest.mark.parametrize("between", [("h07", "h00"), ("h01", "h02")])
@pytest.mark.parametrize("beta", [1e-9, 1e-8])
def test_a_slow_link_is_planned_around_while_the_job_runs_and_before(between, beta):
    """Reductions go another way around: nobody is left out, and a job that runs moves nothing."""
    profile, uniform = transformer_profile(14), Cluster.uniform(8)
    running = replan(snapshot_of(profile, uniform, 16))
    link = HostLink(between=between, alpha_seconds=1e-4, beta_seconds_per_byte=beta)
    degraded = replace(uniform, links=(link,))
    first = replan(snapshot_of(profile, degraded, 16))
    again = replan(replace(snapshot_of(profile, degraded, 16, plan=running.plan), speeds_changed=True))
    for decision in (first, again):
        assert decision.estimate.iteration_seconds < 1.001 * running.estimate.iteration_seconds
        assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds
        assert set(decision.plan.workers) == set(uniform.by_id)
    assert again.plan.pipelines == running.plan.pipelines
    assert again.migration.transfers == ()
    assert "reductions go along other links and nothing moves" in again.reason
    assert estimate(running.plan, profile, degraded).iteration_seconds > 2 * again.estimate.iteration_seconds


def test_all_links_of_a_host_become_slow():
    profile, uniform = transformer_profile(14), Cluster.uniform(8, workers_per_host=2)
    running = replan(snapshot_of(profile, uniform, 16))
    slow = (HostLink(between=(host, "h02"), alpha_seconds=1e-3, beta_seconds_per_byte=1e-8) for host in ("h00", "h01", "h03"))
    decision = replan(
        replace(snapshot_of(profile, replace(uniform, links=tuple(slow)), 16, plan=running.plan), speeds_changed=True)
    )
    assert [idle.worker for idle in decision.plan.idle_workers] == ["w04", "w05"]
    assert decision.estimate.iteration_seconds < 2 * running.estimate.iteration_seconds


def test_links_that_nobody_feels_cost_nobody_a_place():
    profile, uniform = transformer_profile(14), Cluster.uniform(8)
    fast = HostLink(between=("h01", "h02"), alpha_seconds=0.0, beta_seconds_per_byte=0.0)
    decision = replan(snapshot_of(profile, replace(uniform, links=(fast,)), 16))
    assert decision.plan.pipelines == replan(snapshot_of(profile, uniform, 16)).plan.pipelines


@pytest.mark.parametrize("speed", [0.5, 0.02])
def test_a_straggler_that_recovers_is_planned_for_anew(speed):
    """It held little of the model while it was slow, or nothing; where nobody says that speeds changed, the plan stays."""
    uniform = Cluster.uniform(8)
    slow = uniform.with_workers((replace(uniform.workers[0], speed_ratio=speed), *uniform.workers[1:]))
    around = replan(snapshot_of(PROFILE, slow, 16)).plan
    assert (around.idle_workers[0].worker == "w00") if speed == 0.02 else ("w00" in around.workers)
    snapshot = snapshot_of(PROFILE, uniform, 16, plan=around)
    assert replan(snapshot).plan.pipelines == around.pipelines
    decision = replan(replace(snapshot, speeds_changed=True))
    assert decision.estimate.iteration_seconds < 0.99 * estimate(around, PROFILE, uniform).iteration_seconds
    assert "w00" in decision.plan.workers


@settings(deadline=None, max_examples=20)
@given(st.sets(st.integers(0, 11), min_size=1, max_size=3))
def test_rerouting_is_never_worse_than_the_even_spread(numbers):
    plan = grid_plan(8, [4, 4, 4], [7, 6, 5])
    plan = replace(plan, rounds=colour_rounds(plan, PROFILE))
    living = [worker for worker in plan.workers if int(worker[1:]) not in numbers]
    try:
        rerouted, price = reroute(plan, living, Costs(PROFILE, Cluster.uniform(12)))
    except InfeasibleError:
        assert any({s, s + 4, s + 8} <= numbers for s in range(4))
        return
    for slot in rerouted.dead_slots:
        routed = [route for route in rerouted.routes if (route.pipeline, route.stage) == (slot.pipeline, slot.stage)]
        assert [route.microbatch for route in routed] == list(rerouted.microbatches_of(slot.pipeline))
    step = estimate(rerouted, PROFILE, Cluster.uniform(12)).iteration_seconds
    assert step == price.iteration_seconds
    assert step >= 18 * 8 * 0.030 / len(living) * (1 - 1e-9)


def test_a_pinned_policy_that_is_impossible_says_why():
    with pytest.raises(InfeasibleError, match="no living worker is idle"):
        recover(["w03"], policy=Policy.SPARE_SUBSTITUTION)
    with pytest.raises(InfeasibleError, match="policy: is the policy of a first plan"):
        recover(["w03"], policy=Policy.FAULT_FREE)


def test_lost_state_restarts_from_a_checkpoint_where_there_is_one():
    with pytest.raises(StateLostError) as caught:
        recover(["w03", "w07"])
    assert caught.value.layers == (6, 7)
    assert "names no checkpoints" in caught.value.message
    recovery = replace(RECOVERY, checkpoint_interval_seconds=600.0, checkpoint_read_bytes_per_second=1e9)
    profile = uniform_profile(8, recovery=recovery)
    assert recover(["w03", "w07"], profile=profile).policy is Policy.CHECKPOINT_RESTART
    with pytest.raises(StateLostError, match="8 are needed for min_dp 2 and min_pp 4, 6 are there; add some"):
        recover(["w03", "w07"], profile=profile, ranges=Ranges(min_dp=2, min_pp=4))


def test_too_little_memory_says_what_would_do():
    with pytest.raises(InfeasibleError, match=r"stage \d+ lacks \d+ bytes.*smallest sufficient number of workers is 5"):
        replan(snapshot_of(uniform_profile(8, memory_bytes=1_500_000_000), Cluster.uniform(2), 4))


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from((Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.ZB_H1, Schedule.ZB_H2)),
    st.integers(2, 12),
    st.integers(9, 20),
)
def test_the_number_of_workers_that_would_do_is_the_smallest(schedule, microbatches, tenths):
    profile = uniform_profile(6, memory_bytes=tenths * 100_000_000, layer_changes={"activation_bytes": 250_000_000})

    def enough(workers):
        job = snapshot_of(profile, Cluster.uniform(workers), microbatches)
        try:
            replan(replace(job, settings=replace(job.settings, schedule=schedule)))
        except InfeasibleError as error:
            told = re.search(r"smallest sufficient number of workers is (\d+)", str(error))
            return int(told[1]) if told else None
        return workers

    told = enough(1)
    assert [enough(workers) for workers in range(1, told + 1)] == [told] * told


@pytest.mark.parametrize(
    ("ranges", "microbatches", "error"),
    [
        (Ranges(min_dp=5), 4, InvalidInputError),
        (Ranges(min_dp=3, min_pp=3), 16, InfeasibleError),
        (Ranges(min_pp=9), 16, InvalidInputError),
    ],
)
def test_contradictory_ranges_are_refused(ranges, microbatches, error):
    with pytest.raises(error):
        replan(snapshot_of(PROFILE, Cluster.uniform(8), microbatches, ranges=ranges))


def test_survivable_losses():
    decision = recover([], plan=first_plan())
    assert (decision.survivable.workers, decision.survivable.hosts, decision.survivable.failure_domains) == (1, 1, 0)


def test_who_is_in_no_failure_domain_is_lost_with_none():
    """Stage 0 is held by workers of no rack, stage 1 by one of each: only both racks together take a layer."""
    racks = {"w01": ("rack0",), "w03": ("rack1",)}
    workers = tuple(Worker(id=name, host=name, failure_domains=racks.get(name, ())) for name in ("w00", "w01", "w02", "w03"))
    plan = grid_plan(4, (2, 2), (4, 4))
    assert survivable(plan, Cluster(name="racks", workers=workers)).failure_domains == 1
    assert survivable(plan, Cluster.uniform(4)).failure_domains == 0


def test_a_plan_that_is_kept_is_not_said_to_be_the_best_there_is():
    kept = replan(snapshot_of(PROFILE, Cluster.uniform(4), 16, plan=grid_plan(8, (2, 2), (12, 4))))
    best = replan(snapshot_of(PROFILE, Cluster.uniform(4), 16))
    assert kept.search.gap_ratio > 0
    assert kept.search.lower_bound_seconds <= best.estimate.iteration_seconds < kept.estimate.iteration_seconds


@pytest.mark.parametrize(("workers_per_host", "is_told"), [(1, False), (2, True), (8, False)])
def test_a_first_plan_says_where_replicas_are_kept_apart(workers_per_host, is_told):
    decision = replan(snapshot_of(PROFILE, Cluster.uniform(8, workers_per_host=workers_per_host), 16, ranges=Ranges(min_dp=2)))
    assert ("replicas of every layer on different hosts" in decision.reason) is is_told


def test_transformers_survive_too():
    profile = transformer_profile(6)
    plan = first_plan(profile)
    decision = replan(snapshot_of(profile, Cluster.uniform(8), 16, plan=plan, lost=["w02"]))
    assert decision.policy in (Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM)


def test_auto_takes_the_better_schedule():
    profile = uniform_profile(8, inter_host=LinkCost(alpha_seconds=0.02, beta_seconds_per_byte=0.0))
    ranges = Ranges(min_dp=1, max_dp=1, min_pp=4, max_pp=4)
    steps = {}
    for schedule in (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.AUTO):
        snapshot = snapshot_of(profile, Cluster.uniform(4), 8, ranges=ranges)
        decision = replan(replace(snapshot, settings=replace(snapshot.settings, schedule=schedule)))
        steps[schedule] = decision.estimate.iteration_seconds
    assert steps[Schedule.AUTO] <= min(steps[Schedule.ONE_F_ONE_B], steps[Schedule.GPIPE])


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_collected_afterwards_as_before(is_enabled):
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        replan(snapshot_of(uniform_profile(4), Cluster.uniform(2), 4))
        with pytest.raises(InfeasibleError):
            replan(snapshot_of(uniform_profile(4, memory_bytes=30_000_000), Cluster.uniform(2), 4))
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize(("num_layers", "microbatches", "is_proven"), [(1, 1, True), (4, 1, True), (4, 2, False)])
def test_an_idle_worker_is_said_to_be_useless_only_where_that_is_proven(num_layers, microbatches, is_proven):
    decision = replan(snapshot_of(uniform_profile(num_layers), Cluster.uniform(5), microbatches))
    assert (decision.search.gap_ratio == 0.0) is is_proven
    assert decision.plan.idle_workers
    assert {idle.reason for idle in decision.plan.idle_workers} == {PROVEN_IDLE if is_proven else NOT_NEEDED}
