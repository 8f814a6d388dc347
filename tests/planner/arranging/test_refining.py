"""Plans for workers and links that differ, against all plans there are."""

import itertools
import random
from dataclasses import replace

import pytest

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster, HostLink, Worker
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy, Schedule
from kintsugi.core.profile import LinkCost
from planner.arranging.refining import Refinery
from planner.arranging.request import Request
from planner.legality import violations
from planner.placing.placement import Holdings
from planner.replan import replan
from tests.builders import layer, profile_of, snapshot_of, uniform_profile
from tests.planner.oracle import best_named_seconds

FREE_GRADIENTS = {"gradient_bytes": 0, "optimizer_seconds": 0.0, "output_bytes": 10_000_000}
LINK = LinkCost(alpha_seconds=0.0, beta_seconds_per_byte=1e-10)
FAR = LinkCost(alpha_seconds=1e-5, beta_seconds_per_byte=1e-9)


def cluster_of(speeds, slow):
    """One worker on each host, and slow links by the places of their ends."""
    workers = tuple(Worker(id=f"w{n:02d}", host=f"h{n:02d}", speed_ratio=speed) for n, speed in enumerate(speeds))
    links = tuple(
        HostLink(between=(f"h{a:02d}", f"h{b:02d}"), alpha_seconds=0.0, beta_seconds_per_byte=beta) for (a, b), beta in slow.items()
    )
    return Cluster(name="mixed", workers=workers, links=links)


def instance(chance):
    """A random small job: layers, cluster and micro-batches."""
    num_workers, num_layers = chance.randint(2, 4), chance.randint(2, 6)
    times = [0.01] * num_layers if chance.random() < 0.5 else [chance.uniform(0.002, 0.02) for _ in range(num_layers)]
    profile = profile_of(
        [layer(f"l{n}", forward_seconds=t, backward_weight_seconds=t, **FREE_GRADIENTS) for n, t in enumerate(times)],
        inter_host=LINK,
    )
    speeds = [chance.choice([1.0, 1.0, 0.8, 0.5, 0.25]) for _ in range(num_workers)]
    pairs = itertools.combinations(range(num_workers), 2)
    slow = {pair: chance.choice([1e-9, 5e-9]) for pair in pairs if chance.random() < 0.3}
    return profile, cluster_of(speeds, slow), chance.randint(1, 6)


def test_small_jobs_get_the_best_plan_nearly_always():
    chance, ratios = random.Random(3), []
    for _ in range(80):
        profile, cluster, microbatches = instance(chance)
        asked = snapshot_of(profile, cluster, microbatches)
        decision = replan(asked)
        assert violations(asked, decision) == ()
        best = best_named_seconds(profile, cluster, microbatches)
        assert decision.search.lower_bound_seconds <= best * (1 + 1e-9)
        ratios.append(decision.estimate.pipeline_seconds / best)
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) < 1.15
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 78


def test_lanes_that_memory_is_too_tight_for_are_passed_over():
    profile = uniform_profile(
        6,
        layer_changes={"activation_bytes": 10**9, "parameter_bytes": 0, "optimizer_bytes": 0},
        memory_bytes=9 * 10**9,
    )
    asked = snapshot_of(profile, cluster_of([1.0, 1.0, 1.0, 0.3], {}), 4)
    asked = replace(asked, settings=replace(asked.settings, schedule=Schedule.GPIPE))
    decision = replan(asked)
    assert not violations(asked, decision)


def test_a_slow_link_is_avoided():
    profile = uniform_profile(6, layer_changes=FREE_GRADIENTS, inter_host=LINK)
    plan = replan(snapshot_of(profile, cluster_of([1.0, 0.9, 1.0, 0.9], {(0, 2): 5e-9}), 1)).plan
    neighbours = {tuple(sorted((a.worker, b.worker))) for p in plan.pipelines for a, b in itertools.pairwise(p.stages)}
    assert ("w00", "w02") not in neighbours


def on_hosts(*hosts):
    """Equal workers, one for each host named."""
    return Cluster(name="shared", workers=tuple(Worker(id=f"w{n:02d}", host=host) for n, host in enumerate(hosts)))


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2])
def test_neighbours_are_on_one_host_where_the_others_are_far(schedule):
    profile = profile_of([layer("first", output_bytes=10**8, gradient_bytes=10**10), layer("second")], inter_host=FAR)
    asked = snapshot_of(profile, on_hosts("h00", "h01", "h01"), 4)
    plan = replan(replace(asked, settings=replace(asked.settings, schedule=schedule))).plan
    assert set(plan.workers) == {"w01", "w02"}


def test_pipelines_over_shared_hosts_are_the_best_ones_nearly_always():
    chance, ratios = random.Random(4), []
    for _ in range(100):
        sizes = [chance.choice([10**6, 10**7, 10**8]) for _ in range(chance.randint(2, 6))]
        profile = profile_of(
            [layer(f"l{n}", **{**FREE_GRADIENTS, "output_bytes": size}) for n, size in enumerate(sizes)], inter_host=FAR
        )
        cluster = on_hosts(*(chance.choice(["h00", "h01", "h02"]) for _ in range(chance.randint(2, 4))))
        asked = snapshot_of(profile, cluster, chance.randint(1, 6))
        asked = replace(asked, settings=replace(asked.settings, ranges=Ranges(max_dp=1)))
        seconds = replan(asked).estimate.pipeline_seconds
        ratios.append(seconds / best_named_seconds(profile, cluster, asked.settings.num_microbatches, max_dp=1))
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) < 1.35
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 95


@pytest.mark.parametrize("speed", [0.01, 0.02])
def test_a_worker_that_would_hold_all_others_up_is_left_out(speed):
    profile = uniform_profile(6, layer_changes=FREE_GRADIENTS, inter_host=LINK)
    plan = replan(snapshot_of(profile, cluster_of([1.0, speed, 1.0, 1.0], {}), 6)).plan
    assert [idle.worker for idle in plan.idle_workers] == ["w01"]
    assert all(idle.reason for idle in plan.idle_workers)


def test_other_names_for_the_same_pipelines_are_not_tried_where_nothing_moves():
    profile, cluster = uniform_profile(8), cluster_of([0.5] + [1.0] * 7, {})
    asked = snapshot_of(profile, cluster, 16)
    decision, workers = replan(asked), tuple(worker.id for worker in cluster.workers)
    request = Request(Costs(profile, cluster), asked.settings, workers, Holdings(None, ()), 0, Policy.FAULT_FREE)
    tried = []
    refinery = Refinery(request)
    refinery.refined(decision.plan, request.worth(decision.estimate) * 0.99, lambda plan, least: tried.append((plan, least)))
    assert len(tried) == 6
    refinery.refined(decision.plan, request.worth(decision.estimate), lambda *tried: pytest.fail(f"{tried} is no better"))
