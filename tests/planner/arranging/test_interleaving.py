"""Interleaved arrangements: bounds hold, memory is kept, losses are mended, and a free choice is never worse than 1F1B."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import compiled
from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.layers import LayerSums
from estimator.memory import running_bytes
from estimator.moments import worker_moments
from estimator.schedule import ORDERS
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges, Snapshot
from kintsugi.core.plan import Pipeline, Plan, Policy, Schedule, Stage
from kintsugi.core.profile import OptimizerSharding
from planner.arranging.degrees import degrees
from planner.arranging.interleaving import InterleavedSearch
from planner.arranging.problem import Problem
from planner.legality import violations
from planner.pipelines.chunks import ChunkSplitter
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.tails import no_reductions, stage_reductions
from planner.placing.links import Links
from planner.replan import replan
from restorer.rounds import colour_rounds, fastest_rounds
from tests.builders import FREE, grid_plan, layer, profile_of, snapshot_of, transformer_profile, uniform_profile

PROFILE = transformer_profile(14)
BOTH = pytest.mark.parametrize("schedule", [Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB])


def snapshot(profile, cluster, num_microbatches, schedule=Schedule.INTERLEAVED, **changes) -> Snapshot:
    base = snapshot_of(profile, cluster, num_microbatches, **changes)
    return replace(base, settings=replace(base.settings, schedule=schedule))


def interleaved_plan(profile=PROFILE, dp=2, pp=2, microbatches=8, schedule=Schedule.INTERLEAVED) -> Plan:
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp)
    return replan(snapshot(profile, Cluster.uniform(dp * pp), microbatches, schedule, ranges=ranges)).plan


def recover(plan, lost, *, profile=PROFILE, extra=0, schedule=Schedule.INTERLEAVED, **changes):
    cluster = Cluster.uniform(len(plan.workers) + extra)
    given = snapshot(profile, cluster, plan.num_microbatches, schedule, plan=plan, lost=lost, **changes)
    decision = replan(given)
    assert violations(given, decision) == ()
    return decision


@pytest.mark.parametrize("microbatches", [4, 8, 9, 16])
@pytest.mark.parametrize("workers", [1, 3, 4, 6, 7])
def test_plans_are_legal_and_no_worse_than_1f1b_where_the_schedule_is_free(workers, microbatches):
    prices = {}
    for schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB, Schedule.AUTO):
        given = snapshot(PROFILE, Cluster.uniform(workers), microbatches, schedule)
        decision = replan(given)
        assert violations(given, decision) == ()
        assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds
        prices[schedule] = decision.estimate.iteration_seconds
    assert prices[Schedule.AUTO] <= min(prices.values()) * (1 + 1e-12)


@BOTH
@pytest.mark.parametrize("memory_bytes", [2_000_000_000, 2_500_000_000, 80_000_000_000])
def test_a_worker_too_many_is_left_idle(memory_bytes, schedule):
    """Layers that fit six workers twice over may fit neither seven nor eight."""
    profile, steps = transformer_profile(10, memory_bytes=memory_bytes), []
    for workers in (6, 7, 8):
        given = snapshot(profile, Cluster.uniform(workers), 8, schedule)
        decision = replan(given)
        assert violations(given, decision) == ()
        steps.append(decision.estimate.iteration_seconds)
    assert steps == sorted(steps, reverse=True)


@BOTH
@pytest.mark.parametrize("microbatches", [3, 5, 7])
def test_a_longer_pipeline_that_keeps_reductions_waiting_is_not_made(microbatches, schedule):
    decisions = [
        replan(snapshot(uniform_profile(12), Cluster.uniform(workers), microbatches, schedule)) for workers in range(2, 11)
    ]
    steps = [decision.estimate.iteration_seconds for decision in decisions]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(steps))


@pytest.mark.parametrize(("schedule", "bubble_seconds"), [(Schedule.INTERLEAVED, 0.030), (Schedule.INTERLEAVED_ZB, 0.010)])
def test_smaller_stages_shrink_the_bubble_of_a_grid(schedule, bubble_seconds):
    ranges = Ranges(min_dp=1, max_dp=1, min_pp=4, max_pp=4)
    profile = uniform_profile(16, inter_host=FREE, intra_host=FREE)
    found = replan(snapshot(profile, Cluster.uniform(4), 8, schedule, ranges=ranges))
    assert found.plan.pipelines[0].stages_per_worker == 4
    assert found.estimate.pipeline_seconds == pytest.approx(8 * 4 * 0.030 + 3 * bubble_seconds)
    whole = replan(snapshot(profile, Cluster.uniform(4), 8, Schedule.ONE_F_ONE_B, ranges=ranges))
    assert whole.estimate.pipeline_seconds == pytest.approx((8 + 3) * 4 * 0.030)


@BOTH
def test_slow_links_call_for_fewer_stages(schedule):
    ranges = Ranges(min_dp=1, max_dp=1, min_pp=4, max_pp=4)
    slow = replace(PROFILE.network.inter_host, alpha_seconds=0.02)
    found = replan(snapshot(uniform_profile(16, inter_host=slow), Cluster.uniform(4), 8, schedule, ranges=ranges))
    assert found.plan.pipelines[0].stages_per_worker < 4


@st.composite
def any_interleaved_plans(draw) -> tuple[Plan, Cluster]:
    """Pipelines of any lengths and cuts over workers of several speeds."""
    pipelines, names = [], itertools.count()
    for _ in range(draw(st.integers(1, 3))):
        length, virtual = draw(st.integers(1, 3)), draw(st.integers(2, 4))
        inner = draw(st.lists(st.integers(1, 15), min_size=length * virtual - 1, max_size=length * virtual - 1, unique=True))
        own = [f"w{next(names):02d}" for _ in range(length)] * virtual
        cuts = zip(itertools.pairwise([0, *sorted(inner), 16]), own, strict=True)
        stages = tuple(Stage(layer_start=a, layer_stop=b, worker=worker) for (a, b), worker in cuts)
        pipelines.append(Pipeline(num_microbatches=draw(st.integers(1, 5)), stages=stages))
    speeds = draw(st.lists(st.sampled_from([0.5, 1.0]), min_size=9, max_size=9)) if draw(st.booleans()) else [1.0] * 9
    schedule = draw(st.sampled_from([Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB]))
    plan = Plan(schedule=schedule, pipelines=tuple(pipelines))
    workers = tuple(Worker(id=w, host=f"h{n}", speed_ratio=s) for n, (w, s) in enumerate(zip(plan.workers, speeds, strict=False)))
    return replace(plan, rounds=colour_rounds(plan, PROFILE)), Cluster(name="any", workers=workers)


@settings(deadline=None, max_examples=300)
@given(any_interleaved_plans())
def test_no_plan_is_faster_than_the_bound(case):
    plan, cluster = case
    costs = Costs(PROFILE, cluster)
    kinds = tuple(WorkerKind(worker.speed_ratio, 10**12) for worker in cluster.workers)
    links = Links(plan.workers, Costs(PROFILE, cluster))
    allowed = degrees(Ranges(), len(kinds), 16, plan.num_microbatches)
    search = InterleavedSearch(
        Problem(
            costs=costs,
            kinds=kinds,
            num_microbatches=plan.num_microbatches,
            allowed=allowed,
            schedule=plan.schedule,
            link=links.fastest,
            reduction_link=links.pacing,
        )
    )
    assert search.bound_seconds(plan.dp) <= estimate(plan, PROFILE, cluster).iteration_seconds * (1 + 1e-12)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_no_step_of_alike_pipelines_is_shorter_than_their_passes_reductions_and_updates(data):
    """The first layer is tied to the last one in one of two profiles: both ends of a pipeline reduce them together."""
    profile = transformer_profile(14, tied=data.draw(st.booleans()))
    workers, virtual, dp, count = (data.draw(st.integers(2, most)) for most in (3, 4, 4, 6))
    size = workers * virtual - 1
    cuts = (0, *sorted(data.draw(st.lists(st.integers(1, 15), min_size=size, max_size=size, unique=True))), 16)
    schedule = data.draw(st.sampled_from([Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB]))
    cluster = Cluster.uniform(dp * workers)
    pipelines = [
        Pipeline(
            num_microbatches=count,
            stages=tuple(
                Stage(layer_start=a, layer_stop=b, worker=f"w{p * workers + n % workers:02d}")
                for n, (a, b) in enumerate(itertools.pairwise(cuts))
            ),
        )
        for p in range(dp)
    ]
    plan = Plan(schedule=schedule, pipelines=tuple(pipelines))
    costs, link = Costs(profile, cluster), profile.network.inter_host
    plan = replace(plan, rounds=fastest_rounds(plan, costs))
    splitter, kinds = ChunkSplitter(costs.sums, schedule, link, 1), (WorkerKind(1.0, 10**12),) * workers
    split = splitter.priced(cuts, kinds, count, stage_reductions(profile, dp, workers, lambda _: link))
    step = estimate(plan, profile, cluster).iteration_seconds
    assert split.seconds + costs.commit_seconds(dp * workers) <= step * (1 + 1e-12)
    assert step <= (split.seconds + costs.commit_seconds(dp * workers)) * 1.5


@BOTH
@pytest.mark.parametrize(("workers", "virtual", "count"), [(2, 2, 4), (2, 3, 5), (3, 2, 6)])
def test_splits_are_close_to_the_best_of_all(workers, virtual, count, schedule):
    profile = transformer_profile(8)
    splitter = ChunkSplitter(Costs(profile, Cluster.uniform(workers)).sums, schedule, profile.network.inter_host, 1)
    kinds, nothing = (WorkerKind(1.0, 10**12),) * workers, no_reductions(10)
    inner = itertools.combinations(range(1, 10), workers * virtual - 1)
    everything = splitter.seconds(np.array([(0, *cuts, 10) for cuts in inner]), kinds, count, nothing)
    found = splitter.best(kinds, virtual, count, nothing)
    assert found.lacking_bytes == 0
    assert everything.min() * (1 - 1e-12) <= found.seconds <= everything.min() * 1.005


@pytest.mark.parametrize("memory_bytes", [1_000_000_000, 80_000_000_000])
def test_workers_share_updates_that_take_long(memory_bytes):
    """With room for all layers on one worker, too: passes are no sooner through on two, the update is."""
    layers = [layer(f"l{n}", optimizer_seconds=seconds, optimizer_bytes=0) for n, seconds in enumerate((0.0, 0.001, 0.05, 0.05))]
    profile = profile_of(layers, memory_bytes=memory_bytes, inter_host=FREE)
    decision = replan(snapshot(profile, Cluster.uniform(2), 1))
    assert len(decision.plan.workers) == 2
    assert decision.estimate.iteration_seconds == pytest.approx(4 * 0.03 + 0.051)


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_what_splits_lack_is_what_each_workers_own_stages_take(data):
    profile = transformer_profile(14, optimizer_sharding=data.draw(st.sampled_from(OptimizerSharding)))
    sums, workers, virtual = LayerSums(profile), data.draw(st.integers(2, 3)), data.draw(st.integers(1, 4))
    count, replicas = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    kinds = tuple(WorkerKind(1.0, data.draw(st.integers(10**9, 10**10))) for _ in range(workers))
    inner = st.lists(st.integers(1, 15), min_size=workers * virtual - 1, max_size=workers * virtual - 1, unique=True)
    options = [(0, *sorted(cuts), 16) for cuts in data.draw(st.lists(inner, min_size=1, max_size=4))]

    def lacks(cuts: tuple[int, ...], place: int) -> int:
        own = list(itertools.pairwise(cuts))[place::workers]
        moments = worker_moments(schedule, place, workers, count, virtual)
        return sums.held_bytes(own, replicas) + running_bytes(sums, own, moments) - kinds[place].usable_bytes

    schedule = data.draw(st.sampled_from([Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB]))
    splitter = ChunkSplitter(sums, schedule, profile.network.inter_host, replicas)
    found = [max(0, *(lacks(cuts, place) for place in range(workers))) for cuts in options]
    assert splitter.lacking(np.array(options), kinds, count).tolist() == found


def test_where_the_schedule_is_free_nobody_looks_for_why_one_of_them_does_not_fit(monkeypatch):
    """And what it took to find that it does not counts."""
    profile = uniform_profile(16, memory_bytes=3_200_000_000)
    with pytest.raises(InfeasibleError):
        replan(snapshot(profile, Cluster.uniform(4), 8))
    monkeypatch.setattr("planner.policies.found.shortage", None)
    ticks = itertools.count()
    monkeypatch.setattr(compiled.time, "perf_counter", lambda: next(ticks))
    decision = replan(snapshot(profile, Cluster.uniform(4), 8, Schedule.AUTO))
    assert decision.search.elapsed_seconds >= 2 * len(ORDERS) - 1


def test_memory_is_kept_and_a_model_that_does_not_fit_is_refused():
    given = snapshot(uniform_profile(16, memory_bytes=5_200_000_000), Cluster.uniform(4), 8)
    decision = replan(given)
    assert violations(given, decision) == ()
    with pytest.raises(InfeasibleError, match=r"the roomiest, of 4 workers, lacks [0-9]+ bytes"):
        replan(snapshot(uniform_profile(16, memory_bytes=2_500_000_000), Cluster.uniform(4), 8))


@pytest.mark.parametrize(
    ("memory_bytes", "workers"), [(2_500_000_000, 2), (2_500_000_000, 4), (4_000_000_000, 2), (4_800_000_000, 2)]
)
def test_the_refusal_names_stages_layers_and_how_many_workers_suffice(memory_bytes, workers):
    profile = uniform_profile(16, memory_bytes=memory_bytes)
    with pytest.raises(InfeasibleError) as caught:
        replan(snapshot(profile, Cluster.uniform(workers), 8))
    message = str(caught.value)
    assert re.search(r"on the worker that holds stage \d+ of layers \d+ to \d+ .*\(they need \d+, a worker has \d+\)", message)
    found = re.search(r"found to suffice is (\d+)", message)
    assert found is not None
    enough = int(found[1])
    given = snapshot(profile, Cluster.uniform(enough), 8)
    assert violations(given, replan(given)) == ()
    with pytest.raises(InfeasibleError):
        replan(snapshot(profile, Cluster.uniform(enough - 1), 8))


def test_the_refusal_says_where_no_number_of_workers_suffices():
    with pytest.raises(InfeasibleError, match="no number of workers that was tried suffices within the ranges"):
        replan(snapshot(uniform_profile(16, memory_bytes=2_500_000_000), Cluster.uniform(4), 8, ranges=Ranges(max_dp=1, max_pp=4)))


def test_too_few_layers_are_refused():
    ranges = Ranges(min_dp=1, max_dp=1, min_pp=4, max_pp=4)
    with pytest.raises(InfeasibleError, match="interleaved pipelines of 4 workers hold 8 stages at least; the model has 6 layers"):
        replan(snapshot(uniform_profile(6), Cluster.uniform(4), 8, ranges=ranges))


def test_workers_of_other_speeds_get_layers_by_their_speed():
    workers = tuple(Worker(id=f"w{n:02d}", host=f"h{n}", speed_ratio=0.5 if n == 3 else 1.0) for n in range(4))
    given = snapshot(uniform_profile(16), Cluster(name="mixed", workers=workers), 8, ranges=Ranges(min_dp=1, max_dp=1, min_pp=4))
    decision = replan(given)
    assert violations(given, decision) == ()
    held = {worker: len(layers) for worker, layers in decision.plan.layers_of.items()}
    assert held["w03"] < min(held[w] for w in ("w00", "w01", "w02"))


@BOTH
@pytest.mark.parametrize("lost", [["w00"], ["w03"], ["w00", "w03"]])
def test_losses_are_rerouted_to_holders_of_the_same_stages(lost, schedule):
    plan = interleaved_plan(schedule=schedule)
    decision = recover(plan, lost, schedule=schedule, policy=Policy.DATA_REROUTING)
    assert decision.plan.schedule is schedule
    assert len(decision.plan.dead_slots) == sum(len(plan.slots_of[w]) for w in lost)
    for slot in decision.plan.dead_slots:
        stage = decision.plan.pipelines[slot.pipeline].stages[slot.stage]
        takers = {route.worker for route in decision.plan.routes if (route.pipeline, route.stage) == (slot.pipeline, slot.stage)}
        assert takers
        assert all(decision.plan.holds(taker, stage) for taker in takers)
    assert decision.migration.transfers == ()


def test_a_spare_takes_all_stages_of_a_dead_worker():
    plan = interleaved_plan()
    decision = recover(plan, ["w01"], extra=1, policy=Policy.SPARE_SUBSTITUTION)
    assert decision.plan.layers_of["w04"] == plan.layers_of["w01"]
    assert decision.plan.dead_slots == ()
    assert {transfer.target for transfer in decision.migration.transfers} == {"w04"}


def test_a_worker_that_returns_takes_its_stages_back_after_rerouting():
    plan = interleaved_plan()
    rerouted = recover(plan, ["w01"], policy=Policy.DATA_REROUTING).plan
    back = recover(rerouted, [], extra=1, policy=Policy.SPARE_SUBSTITUTION).plan
    assert back.dead_slots == ()
    assert {worker: len(back.slots_of[worker]) for worker in back.workers} == dict.fromkeys(back.workers, 4)


@pytest.mark.parametrize("schedule", [Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB, Schedule.ONE_F_ONE_B])
def test_dynamic_parallelism_moves_what_is_lacking_and_keeps_what_is_held(schedule):
    plan = interleaved_plan(dp=2, pp=3, microbatches=12)
    decision = recover(plan, ["w04"], policy=Policy.DYNAMIC_PARALLELISM, schedule=schedule)
    for transfer in decision.migration.transfers:
        assert transfer.layer not in plan.layers_of.get(transfer.target, ())


def test_the_same_arrangement_moves_nothing():
    plan = interleaved_plan()
    decision = recover(plan, [], extra=1, policy=Policy.DYNAMIC_PARALLELISM, ranges=Ranges(max_dp=2, min_dp=2, min_pp=2, max_pp=2))
    assert decision.migration.total_bytes == 0
    assert decision.plan.pipelines == plan.pipelines


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_every_loss_that_leaves_the_state_is_mended_legally(data):
    kind = data.draw(st.sampled_from([Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB]))
    plan = interleaved_plan(dp=3, pp=2, microbatches=9, schedule=kind)
    lost = data.draw(st.sets(st.sampled_from(plan.workers), min_size=1, max_size=3))
    if any(set(holders) <= lost for holders in plan.holders):
        return
    schedule = data.draw(st.sampled_from([kind, Schedule.AUTO]))
    first = recover(plan, sorted(lost), schedule=schedule)
    left = [worker for worker in first.plan.workers if worker not in lost]
    more = data.draw(st.sampled_from(left))
    if all(set(holders) - {more} for holders in first.plan.holders):
        recover(
            first.plan, [more, *(w for w in plan.workers if w not in left)], extra=6 - len(first.plan.workers), schedule=schedule
        )


def test_a_pipeline_all_of_whose_workers_died_is_carried_by_the_others():
    plan = grid_plan(8, [2, 2], [3, 3], schedule=Schedule.INTERLEAVED, stages_per_worker=2)
    profile = uniform_profile(8)
    plan = replace(plan, rounds=colour_rounds(plan, profile))
    decision = recover(plan, ["w02", "w03"], profile=profile, policy=Policy.DATA_REROUTING)
    assert len(decision.plan.dead_slots) == 4


def test_promising_arrangements_that_lack_memory_do_not_hide_those_that_fit():
    given = snapshot(uniform_profile(16, memory_bytes=4_600_000_000), Cluster.uniform(40), 80)
    decision = replan(given)
    assert violations(given, decision) == ()
    assert min(pipeline.num_workers for pipeline in decision.plan.pipelines) > 2


@BOTH
def test_numbers_of_pipelines_that_divide_the_workers_are_not_crowded_out(schedule):
    """Bounds are less for many others, of which only so many are tried."""
    profile, cluster = transformer_profile(30), Cluster.uniform(24)
    free = replan(snapshot(profile, cluster, 48, schedule)).estimate.iteration_seconds
    for dp in (6, 8, 12):
        pinned = replan(snapshot(profile, cluster, 48, schedule, ranges=Ranges(min_dp=dp, max_dp=dp)))
        assert free <= pinned.estimate.iteration_seconds * (1 + 1e-9)
