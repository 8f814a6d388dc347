"""Workers and hosts that join or return are planned for, and ignored when moving costs more than it brings."""

from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from estimator.estimate import estimate
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy, Schedule
from kintsugi.core.profile import Profile, Recovery
from planner.arranging.refining import Refinery
from planner.arranging.sided import SidedSearch
from planner.legality import violations
from planner.placing.survival import plan_exposure
from planner.policies.options import JOINED
from planner.replan import replan
from tests.builders import snapshot_of, uniform_profile

DEAR = Recovery(detect_seconds=1.0, regroup_seconds=5_000.0, restart_seconds=60.0)
CHEAP = Recovery(detect_seconds=1.0, regroup_seconds=2.0, restart_seconds=60.0)
GRID = Ranges(min_dp=2, max_dp=2, min_pp=4, max_pp=4)
MODELS = Path(__file__).parents[2] / "profiles" / "models"
CLUSTER = Cluster.uniform(12, workers_per_host=4)
HOST = CLUSTER.workers_on("h02")


def running(recovery, lost=()):
    """A 2 x 4 grid on the first two hosts, after `lost` was rerouted around."""
    profile = uniform_profile(8, recovery=recovery)
    plan = replan(snapshot_of(profile, CLUSTER, 16, ranges=GRID, lost=HOST)).plan
    if lost:
        plan = replan(snapshot_of(profile, CLUSTER, 16, plan=plan, lost=(*HOST, *lost), policy=Policy.DATA_REROUTING)).plan
    return profile, plan


def join(recovery, *, absent=(), lost=(), stateless=(), **settings):
    profile, plan = running(recovery, lost)
    return replan(snapshot_of(profile, CLUSTER, 16, plan=plan, lost=absent, stateless=stateless, **settings)), plan


@pytest.mark.parametrize("absent", [HOST[1:], ()], ids=["worker", "host"])
def test_who_brings_more_than_the_move_costs_is_used(absent):
    decision, before = join(CHEAP, absent=absent)
    joined = set(HOST) - set(absent)
    assert decision.policy is Policy.DYNAMIC_PARALLELISM
    assert joined <= set(decision.plan.workers)
    rerouting = next(item.estimate for item in decision.alternatives if item.policy is Policy.DATA_REROUTING)
    assert decision.estimate.iteration_seconds < rerouting.iteration_seconds
    assert {transfer.source for transfer in decision.migration.transfers} <= set(before.workers)


@pytest.mark.parametrize("absent", [HOST[1:], ()], ids=["worker", "host"])
def test_who_costs_more_than_it_brings_stays_idle_and_the_plan_stays(absent):
    decision, before = join(DEAR, absent=absent)
    assert decision.plan.pipelines == before.pipelines
    assert decision.estimate.reconfiguration_seconds == 0.0
    assert decision.migration.total_bytes == 0
    joined = [worker for worker in HOST if worker not in absent]
    assert [(idle.worker, idle.reason) for idle in decision.plan.idle_workers] == [(worker, JOINED) for worker in joined]


def test_who_was_ignored_is_not_asked_about_again():
    decision, _ = join(DEAR)
    again = replan(snapshot_of(uniform_profile(8, recovery=DEAR), CLUSTER, 16, plan=decision.plan))
    assert again.plan.pipelines == decision.plan.pipelines
    assert len(again.alternatives) == 1


def test_the_break_even_says_when_the_newcomer_would_be_used():
    rarely, _ = join(DEAR, absent=HOST[1:], ranges=Ranges(min_dp=2, max_dp=2))
    even = rarely.break_even_mtbf_seconds
    assert even is not None
    assert even > 10_800.0
    above, _ = join(DEAR, absent=HOST[1:], ranges=Ranges(min_dp=2, max_dp=2), mtbf_seconds=even * 1.01)
    assert HOST[0] in above.plan.workers


@pytest.mark.parametrize(("recovery", "is_used"), [(CHEAP, True), (DEAR, False)])
def test_a_worker_that_returns_without_state_is_a_newcomer(recovery, is_used):
    decision, _ = join(recovery, absent=HOST, lost=["w05"], mtbf_seconds=6_000.0)
    assert ("w05" in decision.plan.workers) is is_used
    assert all(transfer.source != "w05" for transfer in decision.migration.transfers)
    if is_used:
        assert {transfer.target for transfer in decision.migration.transfers} >= {"w05"}
    else:
        assert decision.estimate.reconfiguration_seconds == 0.0


@pytest.mark.parametrize("recovery", [CHEAP, DEAR], ids=["cheap", "dear"])
def test_a_worker_reborn_in_its_own_slot_computes_only_once_it_has_the_state_of_a_replica(recovery):
    decision, _ = join(recovery, absent=HOST, stateless=["w05"])
    assert all(transfer.source != "w05" for transfer in decision.migration.transfers)
    reached = {transfer.target for transfer in decision.migration.transfers}
    assert "w05" not in decision.plan.workers or "w05" in reached


@pytest.mark.parametrize(
    "schedule",
    [Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2],
    ids=lambda item: item.value,
)
@pytest.mark.parametrize("output_bytes", [10**6, 5 * 10**7])
def test_another_worker_never_lengthens_a_first_plans_step(schedule, output_bytes):
    """Nor does one that would only make a pipeline longer whose messages then keep the others waiting."""
    profile = uniform_profile(6, layer_changes={"gradient_bytes": 5 * 10**8, "output_bytes": output_bytes})
    for microbatches in (1, 3, 5):
        steps = []
        for workers in range(1, 9):
            snapshot = snapshot_of(profile, Cluster.uniform(workers), microbatches)
            snapshot = replace(snapshot, settings=replace(snapshot.settings, schedule=schedule))
            steps.append(replan(snapshot).estimate.iteration_seconds)
        assert all(after <= before * (1 + 1e-9) for before, after in pairwise(steps)), (microbatches, steps)


def on_racks(num_workers, num_racks, workers_per_host):
    """Hosts dealt out to racks in turn, with slow links between these."""
    cluster = Cluster.uniform(num_workers, workers_per_host=workers_per_host)
    links = tuple(
        HostLink(between=(cluster.hosts[a], cluster.hosts[b]), alpha_seconds=5e-5, beta_seconds_per_byte=8e-10)
        for a, b in combinations(range(len(cluster.hosts)), 2)
        if a % num_racks != b % num_racks
    )
    return replace(cluster, links=links)


@pytest.mark.parametrize(
    ("name", "num_racks", "workers_per_host", "counts"),
    [
        ("llama2-7b.a100-80g", 3, 2, (12, 13, 17, *range(18, 28))),
        ("llama2-7b.a100-80g", 2, 4, (9, 10, *range(22, 28))),
        ("gpt2-medium.a100-80g", 3, 2, (18, 19, 20, 21, 25, 26, 27)),
    ],
)
def test_another_worker_of_a_rack_never_lengthens_a_first_plans_step(name, num_racks, workers_per_host, counts):
    """Though racks are no longer equally large then: any worker may stay idle, and pipelines be as long as racks are large."""
    profile = codec.load(Profile, MODELS / f"{name}.json")
    steps = []
    for workers in counts:
        decision = replan(snapshot_of(profile, on_racks(workers, num_racks, workers_per_host), 64))
        assert decision.survivable.hosts >= min(1, decision.plan.dp - 1)
        steps.append(decision.estimate.iteration_seconds)
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(steps)), steps


def on_uneven_racks(num_workers, speed):
    """Hosts of two workers on three racks, of which the first has as many hosts as both others and the second twice the third's.

    Args:
        num_workers: of the cluster.
        speed: of a worker by its rack.
    """
    cluster = Cluster.uniform(num_workers, workers_per_host=2)
    racks = [(0, 1, 0, 2, 1, 0)[place % 6] for place in range(len(cluster.hosts))]
    links = tuple(
        HostLink(between=(cluster.hosts[a], cluster.hosts[b]), alpha_seconds=5e-5, beta_seconds_per_byte=8e-10)
        for a, b in combinations(range(len(cluster.hosts)), 2)
        if racks[a] != racks[b]
    )
    workers = [replace(own, speed_ratio=speed(racks[number // 2])) for number, own in enumerate(cluster.workers)]
    return replace(cluster.with_workers(tuple(workers)), links=links)


@pytest.mark.parametrize(
    ("speed", "counts"),
    [
        (lambda _: 1.0, (20, 21, 27, 28)),
        (lambda rack: 0.6 if rack == 1 else 1.0, (18, 19, 20, 21, 24, 25, 26)),
    ],
    ids=["as fast as each other", "a slow rack"],
)
def test_another_worker_hardly_ever_lengthens_the_step_of_a_first_plan_for_racks_of_three_sizes(speed, counts):
    """By half a percent at most: plans are bettered change by change, which ends elsewhere for other workers."""
    profile = codec.load(Profile, MODELS / "llama2-7b.a100-80g.json")
    steps = [replan(snapshot_of(profile, on_uneven_racks(count, speed), 64)).estimate.iteration_seconds for count in counts]
    assert all(after <= before * 1.005 for before, after in pairwise(steps)), steps


@pytest.mark.parametrize(
    ("is_slow", "speed", "counts"),
    [
        (lambda number: number % 2, 0.5, (17, 18, 19, 20, 21)),
        (lambda number: number % 2, 0.5, (24, 25, 26, 27)),
        (lambda number: number in {3, 8}, 0.7, (12, 13)),
    ],
)
def test_another_worker_of_a_rack_with_slow_ones_never_lengthens_a_first_plans_step(is_slow, speed, counts):
    profile = codec.load(Profile, MODELS / "llama2-7b.a100-80g.json")
    steps = []
    for count in counts:
        uniform = on_racks(count, 3, 2)
        workers = [replace(own, speed_ratio=speed if is_slow(number) else 1.0) for number, own in enumerate(uniform.workers)]
        decision = replan(snapshot_of(profile, uniform.with_workers(tuple(workers)), 64))
        steps.append(decision.estimate.iteration_seconds)
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(steps)), steps


@pytest.mark.parametrize(("counts", "most_seconds"), [((17, 18, 19, 20, 21), 1.03), ((29, 30, 31), 0.72), ((40,), 1.0)])
def test_pipelines_within_racks_are_split_and_put_in_order_for_reductions_from_rack_to_rack(counts, most_seconds):
    """Every second worker is slow, and no rack is a multiple of another: 15 percent more before they were looked for."""
    profile, steps = codec.load(Profile, MODELS / "gpt2-medium.a100-80g.json"), []
    for count in counts:
        uniform = on_racks(count, 3, 2)
        workers = [replace(own, speed_ratio=0.5 if number % 2 else 1.0) for number, own in enumerate(uniform.workers)]
        asked = snapshot_of(profile, uniform.with_workers(tuple(workers)), 64)
        decision = replan(asked)
        assert violations(asked, decision) == ()
        assert decision.survivable.hosts >= 1
        steps.append(decision.estimate.iteration_seconds)
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(steps)), steps
    assert steps[0] <= most_seconds


@pytest.mark.parametrize("count", [8, 9])
def test_arrangements_by_sides_of_slow_links_take_no_plan_away_that_is_bettered_worker_by_worker(monkeypatch, count):
    profile = codec.load(Profile, MODELS / "gpt2-medium.a100-80g.json")
    uniform = on_racks(count, 3, 2)
    workers = [replace(own, speed_ratio=0.5 if number % 2 else 1.0) for number, own in enumerate(uniform.workers)]
    asked = snapshot_of(profile, uniform.with_workers(tuple(workers)), 64)
    beside = replan(asked).estimate.iteration_seconds
    monkeypatch.setattr(SidedSearch, "arrangements", lambda *_: ())
    assert beside <= replan(asked).estimate.iteration_seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "is_slow", "count"),
    [
        ("llama2-7b.a100-80g", lambda number: number in {3, 8}, 20),
        ("gpt2-medium.a100-80g", lambda number: number % 2, 20),
        ("llama2-7b.a100-80g", lambda number: number % 2, 48),
    ],
    ids=["few slow", "every other slow", "many"],
)
def test_the_best_plan_over_links_that_differ_is_bettered_worker_by_worker_in_larger_jobs(monkeypatch, name, is_slow, count):
    profile, uniform = codec.load(Profile, MODELS / f"{name}.json"), on_racks(count, 3, 2)
    workers = [replace(own, speed_ratio=0.5 if is_slow(number) else 1.0) for number, own in enumerate(uniform.workers)]
    asked = snapshot_of(profile, uniform.with_workers(tuple(workers)), 64)
    monkeypatch.setattr(Refinery, "descended", lambda *_: None)
    decision = replan(asked)
    assert violations(asked, decision) == ()
    assert decision.search.lower_bound_seconds <= decision.estimate.iteration_seconds
    assert decision.estimate.iteration_seconds == pytest.approx(
        estimate(decision.plan, profile, asked.cluster).iteration_seconds, rel=1e-12
    )
    monkeypatch.setattr(Refinery, "refined", lambda _, plan, *__: plan)
    monkeypatch.setattr(Refinery, "continued", lambda _, plan, *__: plan)
    assert decision.estimate.iteration_seconds < replan(asked).estimate.iteration_seconds


def test_the_best_first_plan_is_bettered_by_its_times_alone_and_no_less_apart(monkeypatch):
    profile, cluster = codec.load(Profile, MODELS / "llama2-7b.a100-80g.json"), on_racks(64, 3, 2)
    asked = snapshot_of(profile, cluster, 64)
    decision = replan(asked)
    assert violations(asked, decision) == ()
    monkeypatch.setattr(Refinery, "continued", lambda _, plan, *__: plan)
    plain = replan(asked)
    assert decision.estimate.iteration_seconds < plain.estimate.iteration_seconds
    assert plan_exposure(decision.plan, cluster, asked.alive) <= plan_exposure(plain.plan, cluster, asked.alive)


def test_growth_and_loss_at_once_are_one_decision():
    decision, before = join(CHEAP, absent=("w01", *HOST[1:]))
    assert HOST[0] in decision.plan.workers
    assert "w01" not in decision.plan.workers
    assert decision.plan.generation == before.generation + 1


def test_what_costs_no_transition_is_the_very_plan_that_runs():
    """Where a straggler makes other routes better, taking them is a transition as well."""
    profile, cluster = uniform_profile(6, recovery=CHEAP), Cluster.uniform(9)
    grid = Ranges(min_dp=3, max_dp=3, min_pp=3, max_pp=3)
    first = replan(snapshot_of(profile, cluster, 24, ranges=grid)).plan
    pinned = {"lost": ["w00"], "policy": Policy.DATA_REROUTING}
    running = replan(snapshot_of(profile, cluster, 24, plan=first, **pinned)).plan
    slow = replace(cluster, workers=tuple(replace(w, speed_ratio=0.25 if w.id == "w03" else 1.0) for w in cluster.workers))
    now = replan(snapshot_of(profile, slow, 24, plan=running, **pinned))
    assert now.plan.routes != running.routes
    assert now.estimate.reconfiguration_seconds == 3.0
    seldom = replan(snapshot_of(profile, slow, 24, plan=running, mtbf_seconds=4.0, **pinned))
    assert seldom.plan.routes == running.routes
    assert seldom.estimate.reconfiguration_seconds == 0.0
