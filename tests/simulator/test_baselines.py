"""Every baseline against cases that are reckoned by hand: 2 x 2 stages of 20 ms forward and 40 ms backward, 8 micro-batches."""

from dataclasses import replace
from itertools import product

import pytest

from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.interval import expected_run_seconds
from estimator.pipeline import rerouted_seconds
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import IdleWorker, Stage
from kintsugi.core.profile import LinkCost, OptimizerSharding, Recovery
from kintsugi.simulator.baselines.bamboo import Bamboo, redundant_seconds, taken_over
from kintsugi.simulator.baselines.chameleon import Chameleon, equation_13_seconds
from kintsugi.simulator.baselines.checkpoint_restart import CheckpointRestart
from kintsugi.simulator.baselines.hot_spares import HotSpares
from kintsugi.simulator.baselines.oobleck import Oobleck, regrouped
from kintsugi.simulator.baselines.parcae import Parcae, expected_pipelines
from kintsugi.simulator.baselines.recycle import ReCycle, staggered_seconds
from kintsugi.simulator.baselines.templates import distributed, pipeline_seconds
from kintsugi.simulator.baselines.varuna import Varuna
from kintsugi.simulator.scenario import Grid
from kintsugi.simulator.transitions import fastest_grid, grid_seconds
from planner.policies.rerouting import reroute
from restorer.rounds import fastest_rounds
from tests.builders import grid_plan, uniform_profile
from tests.simulator.fakes import FREE, free_profile, job

GRID_SECONDS = (2 + 4 - 1) * 0.06
DETECT, REGROUP, RESTART = 1.0, 2.0, 60.0
RECOVERY = Recovery(
    detect_seconds=DETECT,
    regroup_seconds=REGROUP,
    restart_seconds=RESTART,
    checkpoint_interval_seconds=600.0,
    checkpoint_read_bytes_per_second=1e9,
)
READ = 4 * 0.5  # four layers of 100 MB of parameters and 400 MB of optimizer state, at 1 GB/s
CASE = job(free_profile(recovery=RECOVERY), checkpoint_pause_seconds=2.0)


def snapshot(plan, alive, case=CASE, workers=20):
    cluster = Cluster.uniform(workers)
    return Snapshot(
        profile=case.profile,
        cluster=cluster,
        settings=case.settings_for(len(alive)),
        plan=plan,
        alive=tuple(alive),
        generation=0 if plan is None else 1,
    )


def started(policy, workers=4, case=CASE):
    return policy.start(snapshot(None, [f"w{n:02d}" for n in range(workers)], case))


def after_losing(policy, *lost, workers=4, case=CASE):
    """The response to a loss of workers in the policy's first plan."""
    plan = started(policy, workers, case).plan
    gone = [plan.pipelines[p].stages[s].worker for p, s in lost]
    return policy.respond(snapshot(plan, [w for w in (f"w{n:02d}" for n in range(workers)) if w not in gone], case))


@pytest.mark.parametrize("policy", [Chameleon, Oobleck, ReCycle, Varuna, Parcae, CheckpointRestart])
def test_all_begin_with_the_scenarios_grid(policy):
    running = started(policy(CASE))
    assert [len(pipeline.stages) for pipeline in running.plan.pipelines] == [2, 2]
    assert running.price.iteration_seconds == pytest.approx(GRID_SECONDS)
    assert running.price.compute_seconds == pytest.approx(4 * 0.06)


@pytest.mark.parametrize("policy", [Varuna, CheckpointRestart])
def test_restarting_policies_take_the_fastest_grid_from_a_checkpoint(policy):
    response = after_losing(policy(CASE), (0, 1))
    # Three workers: 3 x 1 with shares of 3, 3 and 2 takes 3 * 0.12; 1 x 3 and 1 x 2 take longer.
    assert response.running.price.iteration_seconds == pytest.approx(3 * 0.12)
    assert response.rolls_back
    assert response.pause_seconds == pytest.approx(DETECT + RESTART + READ)


@pytest.mark.parametrize(("policy", "saves"), [(Varuna, True), (CheckpointRestart, True), (Parcae, False)])
def test_what_grows_by_way_of_a_checkpoint_keeps_it(policy, saves):
    response = policy(CASE).respond(snapshot(started(policy(CASE)).plan, [f"w{n:02d}" for n in range(8)]))
    assert response.pause_seconds == pytest.approx(2.0 + DETECT + RESTART + READ if saves else DETECT + REGROUP)
    assert response.saves is saves
    assert not response.rolls_back


LAYERS = {"gradient_bytes": 10**8}


@pytest.mark.parametrize("num_workers", [1, 4, 7, 12])
@pytest.mark.parametrize("beta", [4e-11, 1e-9, 1e-8])
@pytest.mark.parametrize(("num_microbatches", "sharding"), [(16, OptimizerSharding.NONE), (5, OptimizerSharding.ZERO1)])
def test_the_fastest_grid_is_the_fastest_of_all(num_workers, beta, num_microbatches, sharding):
    """Where links are slow, more pipelines than one reduce for longer than they compute less."""
    profile = uniform_profile(6, layer_changes=LAYERS, inter_host=LinkCost(alpha_seconds=2e-5, beta_seconds_per_byte=beta))
    case = job(replace(profile, optimizer_sharding=sharding), settings=JobSettings(num_microbatches=num_microbatches))
    grids = [(dp, pp) for pp in range(1, 7) for dp in range(1, min(num_microbatches, num_workers // pp) + 1)]
    seconds = {grid: grid_seconds(case.profile, case.settings, *grid) for grid in grids}
    best = min(value for value in seconds.values() if value is not None)
    assert seconds[fastest_grid(case, num_workers)] == pytest.approx(best, rel=1e-12)


def test_the_fastest_grid_is_found_where_only_shards_of_many_replicas_fit_memory():
    """Two layers fit one worker where at least three replicas share their optimizer's state; shares are 2 micro-batches for all."""
    layers = {"activation_bytes": 1, "temporary_bytes": 1, "gradient_bytes": 10**8, "optimizer_bytes": 3 * 10**9}
    slow = LinkCost(alpha_seconds=2e-5, beta_seconds_per_byte=1e-9)
    profile = uniform_profile(2, layer_changes=layers, memory_bytes=3_000_000_000, inter_host=slow)
    settings = JobSettings(num_microbatches=6, ranges=Ranges(max_pp=1))
    case = job(replace(profile, optimizer_sharding=OptimizerSharding.ZERO1), settings=settings)
    assert [grid_seconds(case.profile, settings, dp, 1) is None for dp in (2, 3, 4)] == [True, False, False]
    assert fastest_grid(case, 4) == (3, 1)


def test_checkpoints_come_at_the_interval_that_loses_least():
    interval = started(CheckpointRestart(CASE)).checkpoint_interval_seconds
    best = min(range(5, 400), key=lambda t: expected_run_seconds(1.0, t, 2.0, RESTART, 3600.0))
    assert interval == pytest.approx(best, abs=1)


def test_parcae_moves_state_live_and_counts_on_preemptions():
    response = after_losing(Parcae(CASE), (0, 1))
    assert not response.rolls_back
    assert response.pause_seconds == pytest.approx(DETECT + REGROUP)  # free links
    assert expected_pipelines(8, 2, 4, 0) == 2
    assert expected_pipelines(8, 2, 4, 1) == 1
    assert expected_pipelines(9, 2, 4, 1) == 2  # the idle worker stands in
    assert expected_pipelines(8, 4, 2, 2) == pytest.approx(4 * 0.75**2)
    assert expected_pipelines(4, 1, 4, 1) == 0


@pytest.mark.parametrize(("lost_at_once", "dp"), [(1.0, 6), (2.0, 5), (4.0, 4)])
def test_parcae_leaves_workers_idle_for_as_many_as_it_expects_to_lose(lost_at_once, dp):
    case = job(fixed_mtbf_seconds=Parcae(CASE).look_ahead_seconds, workers_per_failure=lost_at_once)
    # Of 7 workers 4 to 7 pipelines of one take 2 * 0.12 s; the more of them wait, the more losses they make good.
    assert Parcae(case).chosen(7) == (dp, 1)


def test_recycle_reroutes_to_the_one_peer_that_is_left():
    response = after_losing(ReCycle(CASE), (0, 1))
    assert response.pause_seconds == pytest.approx(DETECT + REGROUP)
    assert not response.running.plan.idle_workers
    # The peer passes all 8 micro-batches: 8 * 60 ms at least; the synchronous step is longer by what comes before and after.
    synchronous = estimate(response.running.plan, CASE.profile, Cluster.uniform(8)).iteration_seconds
    assert 0.48 - 1e-9 <= response.running.price.iteration_seconds <= synchronous


def test_recycle_fills_dead_slots_and_restarts_only_when_a_stage_is_gone():
    policy = ReCycle(CASE)
    plan = after_losing(policy, (0, 1)).running.plan
    joined = policy.respond(snapshot(plan, [*plan.workers, "w07"]))
    assert not joined.running.plan.dead_slots
    assert joined.running.price.iteration_seconds == pytest.approx(GRID_SECONDS)
    assert after_losing(policy, (0, 1), (1, 1)).rolls_back


def test_staggering_gains_nothing_while_nobody_failed():
    plan = grid_plan(4, [2, 2], [4, 4])
    costs = Costs(CASE.profile, Cluster.uniform(4))
    assert staggered_seconds(plan, costs) == pytest.approx(GRID_SECONDS)


def test_recycle_hides_one_failure_of_its_papers_example():
    """3 pipelines of 4 stages with 6 micro-batches each and equal forward, input and weight parts: 27 slots without failures."""
    profile = uniform_profile(4, layer_changes={"gradient_bytes": 0, "optimizer_seconds": 0.0}, inter_host=FREE, intra_host=FREE)
    cluster, plan = Cluster.uniform(12), grid_plan(4, [4, 4, 4], [6, 6, 6])
    costs, slot = Costs(profile, cluster), 0.010
    assert estimate(plan, profile, cluster).pipeline_seconds == pytest.approx(27 * slot)
    living = [worker for worker in plan.workers if worker != "w06"]
    rerouted, price = reroute(plan, living, costs)
    assert price.iteration_seconds <= 31 * slot
    assert staggered_seconds(rerouted, costs) <= 27 * slot * 1.10


def test_oobleck_takes_the_template_of_the_new_length():
    response = after_losing(Oobleck(CASE), (0, 1))
    assert [len(pipeline.stages) for pipeline in response.running.plan.pipelines] == [1, 2]
    # m on one worker take m * 0.12, on two (m + 1) * 0.06: 3 and 5 give 0.36 both.
    assert [pipeline.num_microbatches for pipeline in response.running.plan.pipelines] == [3, 5]
    assert response.running.price.iteration_seconds == pytest.approx(0.36)
    assert response.pause_seconds == pytest.approx(DETECT + REGROUP)


@pytest.mark.parametrize(("num_microbatches", "memory_bytes"), [(4, 4_900_000_000), (8, 5_100_000_000)])
def test_oobleck_has_templates_that_fit_any_share_of_the_micro_batches(num_microbatches, memory_bytes):
    """Stages of two layers fit with 4 pipelines' share, not with 3 pipelines'; of one and three layers they fit with either."""
    layers = {"activation_bytes": 10**9, "temporary_bytes": 1}
    profile = uniform_profile(4, layer_changes=layers, memory_bytes=memory_bytes, recovery=RECOVERY)
    settings = JobSettings(num_microbatches=num_microbatches, ranges=Ranges(min_pp=2))
    case = job(profile, first=Grid(dp=4, pp=2), settings=settings)
    response = after_losing(Oobleck(case), (0, 1), (1, 1), workers=8, case=case)
    assert not response.rolls_back
    assert [len(pipeline.stages[0].layers) for pipeline in response.running.plan.pipelines] == [1, 1, 1]


def test_oobleck_gives_idle_workers_to_the_shortest_crew_that_was_hit():
    case = job(free_profile(12), first=None, settings=JobSettings(num_microbatches=14, ranges=Ranges(min_pp=2)))
    plan = grid_plan(12, [5, 2], [8, 6]).amended(idle_workers=(IdleWorker(worker="w07", reason="over"),))
    lost = plan.pipelines[0].stages[1].worker
    response = Oobleck(case).respond(snapshot(plan, [w for w in (*plan.workers, "w07") if w != lost], case))
    first, second = (tuple(stage.worker for stage in pipeline.stages) for pipeline in response.running.plan.pipelines)
    assert (len(first), first[-1]) == (5, "w07")
    assert second == tuple(stage.worker for stage in plan.pipelines[1].stages)


def test_oobleck_borrows_then_merges_then_gives_up():
    lengths = range(3, 7)
    assert regrouped([["a", "b"], ["c", "d", "e", "f", "g"]], lengths) == [["a", "b", "g"], ["c", "d", "e", "f"]]
    assert regrouped([["a", "b"], ["c", "d", "e"], []], lengths) == [["c", "d", "e", "a", "b"]]
    assert regrouped([["a", "b"], list("cdefgh")], range(7, 8)) == [list("cdefghab")[:7]]
    with pytest.raises(InfeasibleError):
        regrouped([["a"], ["b"]], lengths)


@pytest.mark.parametrize(("lengths", "total"), [((2, 1), 9), ((3, 2), 11), ((4, 2, 1), 8), ((3, 3, 2), 16)])
def test_oobleck_spreads_micro_batches_as_well_as_can_be(lengths, total):
    settings = JobSettings(num_microbatches=total)
    profile = free_profile(12)
    costs = Costs(profile, Cluster.uniform(2))
    cuts = [tuple(range(0, 13, 12 // length)) for length in lengths]

    def longest(shares):
        return max(pipeline_seconds(own, share, settings, costs, "w00") for own, share in zip(cuts, shares, strict=True))

    best = min(longest(s) for s in product(range(1, total), repeat=len(lengths)) if sum(s) == total)
    assert longest(distributed(cuts, settings, costs, "w00")) == pytest.approx(best)


def stages(*places):
    return tuple(Stage(layer_start=a, layer_stop=b, worker=w) for a, b, w in places)


def test_bamboos_predecessor_takes_over_and_a_second_loss_ends_the_pipeline():
    whole = stages((0, 1, "a"), (1, 2, "b"), (2, 3, "c"), (3, 4, "d"))
    assert taken_over(whole, frozenset("abd"), 4) == stages((0, 1, "a"), (1, 3, "b"), (3, 4, "d"))
    assert taken_over(whole, frozenset("bcd"), 4) == stages((0, 2, "b"), (2, 3, "c"), (3, 4, "d"))
    assert taken_over(whole, frozenset("ac"), 4) == stages((0, 2, "a"), (2, 4, "c"))
    assert taken_over(whole, frozenset("ad"), 4) is None
    assert taken_over(stages((0, 1, "a"), (1, 3, "b"), (3, 4, "d")), frozenset("ab"), 4) is None


def test_bamboo_pays_for_redundant_passes_that_do_not_fit_into_bubbles():
    plan = grid_plan(4, [2], [4])
    price = estimate(plan, CASE.profile, Cluster.uniform(2))
    # The first stage: 4 * 60 ms of its own and 4 * 20 ms for its successor, in a pipeline of 300 ms.
    assert redundant_seconds(price) == pytest.approx(0.02)
    deep = job(free_profile(6, recovery=RECOVERY), first=Grid(dp=2, pp=2))
    assert Bamboo(deep).depth == 3
    running = started(Bamboo(deep), workers=6, case=deep)
    assert [len(pipeline.stages) for pipeline in running.plan.pipelines] == [3, 3]


def ranged(**ranges):
    return job(free_profile(recovery=RECOVERY), first=None, settings=JobSettings(num_microbatches=8, ranges=Ranges(**ranges)))


@pytest.mark.parametrize("policy", [Chameleon, Oobleck, ReCycle, Bamboo, Varuna, Parcae, CheckpointRestart, HotSpares])
def test_all_keep_to_the_jobs_numbers_of_pipelines(policy):
    case = ranged(max_dp=2)
    assert started(policy(case), 20, case).plan.dp <= 2
    case = ranged(min_dp=5, max_dp=5)
    assert started(policy(case), 20, case).plan.dp == 5
    with pytest.raises(InfeasibleError):
        started(policy(case), 4 if policy is not Bamboo else 2, case)


def test_oobleck_does_not_merge_below_the_jobs_number_of_pipelines():
    case = ranged(min_dp=3, min_pp=2)
    assert [len(pipeline.stages) for pipeline in started(Oobleck(case), 6, case).plan.pipelines] == [2, 2, 2]
    with pytest.raises(InfeasibleError):
        after_losing(Oobleck(case), (0, 1), workers=6, case=case)


def test_bamboos_pipelines_are_deeper_and_therefore_fewer():
    case = ranged(min_dp=2, min_pp=2, max_pp=2)
    policy = Bamboo(case)
    assert [len(pipeline.stages) for pipeline in started(policy, 6, case).plan.pipelines] == [3, 3]
    assert [len(pipeline.stages) for pipeline in started(policy, 5, case).plan.pipelines] == [3]
    assert [len(p.stages) for p in after_losing(policy, (0, 1), workers=6, case=case).running.plan.pipelines] == [2, 3]
    case = ranged(min_dp=5)
    assert Bamboo(case).chosen(4) == (2, 2), "fewer workers than pipelines that the job asks for"


def test_hot_spares_stand_in_until_they_are_used_up():
    case = job(free_profile(recovery=RECOVERY), num_spares=1, checkpoint_pause_seconds=2.0)
    policy = HotSpares(case)
    response = after_losing(policy, (0, 1), workers=5, case=case)
    assert not response.rolls_back
    assert response.running.price.iteration_seconds == pytest.approx(GRID_SECONDS)
    plan = response.running.plan
    lost = policy.respond(snapshot(plan, [w for w in plan.workers if w != plan.pipelines[1].stages[0].worker], case))
    assert lost.rolls_back
    first = started(HotSpares(CASE)).plan
    assert (first.dp, len(first.idle_workers)) == (1, 2)  # without spares of the scenario a pipeline waits


@pytest.mark.parametrize("workers", [1, 2])
def test_hot_spares_begin_even_where_there_are_no_more_workers_than_spares(workers):
    case = job(free_profile(recovery=RECOVERY), num_spares=2)
    plan = started(HotSpares(case), workers, case).plan
    assert (len(plan.workers), len(plan.idle_workers)) == (1, workers - 1)


def test_equation_13_is_the_papers_for_equal_pipelines():
    profile = free_profile(4)
    cluster, plan = Cluster.uniform(12), grid_plan(4, [4, 4, 4], [6, 6, 6])
    costs = Costs(profile, cluster)
    rerouted, _ = reroute(plan, [worker for worker in plan.workers if worker not in ("w01", "w05", "w11")], costs)
    assert equation_13_seconds(rerouted, costs) == pytest.approx(rerouted_seconds([0, 2, 0, 1], 6, 3, 0.010, 0.020))


def test_chameleon_stays_within_one_pipeline_and_prefers_what_its_estimates_favour():
    case = job(
        free_profile(8, recovery=RECOVERY),
        first=Grid(dp=4, pp=2),
        settings=JobSettings(num_microbatches=16, ranges=Ranges(max_pp=8)),
    )
    response = after_losing(Chameleon(case), (0, 1), workers=8, case=case)
    assert response.running.plan.dp in (3, 4, 5)
    anew = response.running.plan
    # Rerouted by equation 13: (2 + 4 - 1 + 4 / 3) * 0.12 = 0.76 s; seven workers in pipelines do better.
    assert not anew.dead_slots
    assert estimate(anew, case.profile, Cluster.uniform(8)).pipeline_seconds < 0.76
    assert anew.rounds == fastest_rounds(anew, Costs(case.profile, Cluster.uniform(8)))
