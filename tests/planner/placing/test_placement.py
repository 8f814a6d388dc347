"""Placement against every placement of small clusters: what survives, what moves, who stands together."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster, HostLink, Worker
from kintsugi.core.errors import StateLostError
from kintsugi.core.plan import Plan, Policy, Schedule
from planner.arranging.arrangement import Arrangement, PipelineShape
from planner.pipelines.kinds import kind_of
from planner.placing.placement import Holdings, Layout, by_host, least_migration_seconds, place
from planner.placing.survival import exposure
from planner.policies.policy import survivable
from planner.replan import replan
from restorer.matching import missing_bytes
from restorer.migration import layer_state_bytes, plan_migration
from tests.builders import grid_plan, snapshot_of, transformer_profile, uniform_profile

NUM_LAYERS = 4
PROFILE = uniform_profile(NUM_LAYERS)
HOSTS = ("h0", "h1", "h2")
RACKS = {"h0": "rack0", "h1": "rack0", "h2": "rack1"}


def cluster_of(hosts: Sequence[str], *, racks: bool = False, speeds: Sequence[float] = ()) -> Cluster:
    workers = tuple(
        Worker(
            id=f"w{n:02d}",
            host=host,
            speed_ratio=speeds[n] if speeds else 1.0,
            failure_domains=(RACKS[host],) if racks else (),
        )
        for n, host in enumerate(hosts)
    )
    return Cluster(name="small", workers=workers)


def arrangement_of(*cuts: tuple[int, ...], kinds=None) -> Arrangement:
    return Arrangement(tuple(PipelineShape(own, 2) for own in cuts), 1.0, kinds)


def placed(
    arrangement: Arrangement,
    cluster: Cluster,
    holdings: Holdings = Holdings(None, ()),  # noqa: B008  # frozen
    layout: Layout = Layout.HELD,
) -> Plan:
    workers = [worker.id for worker in cluster.workers]
    settings_of = {"schedule": Schedule.ONE_F_ONE_B, "generation": 1, "policy": Policy.FAULT_FREE}
    return place(arrangement, workers, holdings, Costs(PROFILE, cluster), layout=layout, **settings_of)


def staged(arrangement: Arrangement, chosen: Sequence[str]) -> list[list[tuple[tuple[int, ...], str]]]:
    names = iter(chosen)
    return [[(slot, next(names)) for slot in shape.slots] for shape in arrangement.shapes]


def exposed(arrangement: Arrangement, chosen: Sequence[str], cluster: Cluster) -> float:
    return exposure(staged(arrangement, chosen), cluster, cluster.by_id)


def survives_a_host(arrangement: Arrangement, chosen: Sequence[str], cluster: Cluster) -> bool:
    """By trying: without any one host some worker is left for every layer."""
    for host in cluster.hosts:
        held = {
            layer
            for stages in staged(arrangement, chosen)
            for layers, worker in stages
            if cluster.by_id[worker].host != host
            for layer in layers
        }
        if len(held) < NUM_LAYERS:
            return False
    return True


def everything(arrangement: Arrangement, cluster: Cluster) -> Iterator[tuple[str, ...]]:
    kinds = arrangement.kinds
    for chosen in itertools.permutations(cluster.by_id, sum(shape.num_stages for shape in arrangement.shapes)):
        if kinds is None or all(
            kind_of(cluster.by_id[worker], PROFILE) == kind for worker, kind in zip(chosen, kinds, strict=True)
        ):
            yield chosen


cuts = st.sets(st.integers(1, NUM_LAYERS - 1), max_size=2).map(lambda inner: (0, *sorted(inner), NUM_LAYERS))


@st.composite
def small_cases(draw):
    """Two or three pipelines over up to six workers on up to three hosts."""
    shapes = draw(st.lists(cuts, min_size=2, max_size=3).filter(lambda shapes: sum(len(c) - 1 for c in shapes) <= 6))
    num_slots = sum(len(own) - 1 for own in shapes)
    hosts = draw(st.lists(st.sampled_from(HOSTS), min_size=num_slots, max_size=6))
    return arrangement_of(*shapes), cluster_of(hosts, racks=draw(st.booleans()))


@given(small_cases())
@settings(max_examples=120, deadline=None)
def test_a_first_plan_is_exposed_as_little_as_any_placement(case):
    arrangement, cluster = case
    plan = placed(arrangement, cluster)
    least = min(exposed(arrangement, chosen, cluster) for chosen in everything(arrangement, cluster))
    assert exposed(arrangement, plan.workers, cluster) == least
    if any(survives_a_host(arrangement, chosen, cluster) for chosen in everything(arrangement, cluster)):
        assert survivable(plan, cluster).hosts >= 1
        assert survives_a_host(arrangement, plan.workers, cluster)


@given(small_cases(), st.data())
@settings(max_examples=120, deadline=None)
def test_a_later_plan_is_exposed_as_little_and_moves_as_little_as_any_so_exposed(case, data):
    arrangement, cluster = case
    before = placed(arrangement_of(*data.draw(st.lists(cuts, min_size=1, max_size=2))), cluster_of(["h0"] * 6))
    survivors = [worker for worker in before.workers if worker in cluster.by_id and data.draw(st.booleans())]
    holdings = Holdings(before, survivors)
    plan = placed(arrangement, cluster, holdings)
    slots = [layers for stages in staged(arrangement, plan.workers) for layers, _ in stages]
    cost = missing_bytes(layer_state_bytes(PROFILE), [holdings.layers_of(worker) for worker in cluster.by_id], slots)
    rows = {worker: row for row, worker in enumerate(cluster.by_id)}

    def price(chosen: Sequence[str]) -> tuple[float, float]:
        return exposed(arrangement, chosen, cluster), sum(cost[rows[worker], slot] for slot, worker in enumerate(chosen))

    assert price(plan.workers) == min(price(chosen) for chosen in everything(arrangement, cluster))


@given(small_cases(), st.data())
@settings(max_examples=60, deadline=None)
def test_no_migration_is_shorter_than_its_bound_before_workers_are_named(case, data):
    arrangement, cluster = case
    network = replace(PROFILE.network, host_ingress_bytes_per_second=data.draw(st.sampled_from([None, 1e10, 1e12])))
    costs = Costs(replace(PROFILE, network=network), cluster)
    before = placed(arrangement_of(*data.draw(st.lists(cuts, min_size=1, max_size=2))), cluster_of(["h0"] * 6))
    survivors = [worker for worker in before.workers if worker in cluster.by_id]
    holdings = Holdings(before, survivors)
    after = placed(arrangement, cluster, holdings)
    least = least_migration_seconds(arrangement, holdings, costs)
    try:
        migration = plan_migration(before, after, costs.profile, cluster, survivors)
    except StateLostError:
        return
    assert least <= migration.makespan_seconds * (1 + 1e-9)


@given(small_cases(), st.data())
@settings(max_examples=60, deadline=None)
def test_slots_get_workers_of_the_kind_they_were_planned_for(case, data):
    arrangement, cluster = case
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0]), min_size=len(cluster.workers), max_size=len(cluster.workers)))
    cluster = cluster_of([worker.host for worker in cluster.workers], speeds=speeds)
    num_slots = sum(shape.num_stages for shape in arrangement.shapes)
    kinds = tuple(kind_of(worker, PROFILE) for worker in data.draw(st.permutations(cluster.workers))[:num_slots])
    arrangement = Arrangement(arrangement.shapes, 1.0, kinds)
    plan = placed(arrangement, cluster)
    assert tuple(kind_of(cluster.by_id[worker], PROFILE) for worker in plan.workers) == kinds
    least = min(exposed(arrangement, chosen, cluster) for chosen in everything(arrangement, cluster))
    assert exposed(arrangement, plan.workers, cluster) == least


def test_a_grid_on_equal_hosts_keeps_the_order():
    cluster = Cluster.uniform(16, workers_per_host=4)
    assert placed(arrangement_of(*[(0, 1, 2, 3, 4)] * 4), cluster).workers == tuple(cluster.by_id)


def test_neighbouring_stages_share_a_host_whatever_the_order_of_the_file():
    cluster = cluster_of(["h0", "h1", "h0", "h1"])
    plan = placed(arrangement_of((0, 2, 4), (0, 2, 4)), cluster)
    assert [[stage.worker for stage in pipeline.stages] for pipeline in plan.pipelines] == [["w00", "w02"], ["w01", "w03"]]


def test_workers_stand_by_rack_and_host():
    cluster = cluster_of(["h0", "h2", "h1", "h0", "h2"], racks=True)
    assert by_host(list(cluster.by_id), cluster) == ("w00", "w03", "w02", "w01", "w04")


def test_alike_pipelines_exchange_workers_so_that_neighbours_share_hosts():
    before = placed(arrangement_of((0, 2, 4), (0, 2, 4)), cluster_of(["h0", "h0", "h0", "h0"]))
    cluster = cluster_of(["h0", "h1", "h1", "h0"])
    plan = placed(arrangement_of((0, 2, 4), (0, 2, 4)), cluster, Holdings(before, before.workers))
    assert {stage.worker: (stage.layer_start, stage.layer_stop) for p in plan.pipelines for stage in p.stages} == {
        worker: (stage.layer_start, stage.layer_stop) for worker, (stage,) in before.stages_of.items()
    }
    hosts = [{cluster.by_id[stage.worker].host for stage in pipeline.stages} for pipeline in plan.pipelines]
    assert hosts == [{"h0"}, {"h1"}]


def test_alike_pipelines_exchange_workers_so_that_no_slow_link_is_between_neighbours():
    before = placed(arrangement_of((0, 2, 4), (0, 2, 4)), cluster_of(["h0"] * 4))
    slow = [HostLink(between=ends, alpha_seconds=0.0, beta_seconds_per_byte=1e-8) for ends in itertools.product("ad", "bc")]
    cluster = replace(cluster_of("abcd"), links=tuple(slow))
    plan = placed(arrangement_of((0, 2, 4), (0, 2, 4)), cluster, Holdings(before, before.workers))
    assert [[cluster.by_id[stage.worker].host for stage in own.stages] for own in plan.pipelines] == [["a", "d"], ["c", "b"]]


def test_who_holds_everything_stands_beside_others_of_the_host():
    cluster = cluster_of(["h0", "h1", "h1", "h1", "h2", "h2"])
    alone = grid_plan(NUM_LAYERS, [1] * 6, [1] * 6)
    plan = placed(arrangement_of((0, 1, 2, 4), (0, 2, 4)), cluster, Holdings(alone, alone.workers))
    assert [[cluster.by_id[stage.worker].host for stage in own.stages] for own in plan.pipelines] == [["h1"] * 3, ["h2"] * 2]


@pytest.mark.parametrize("racks", [False, True])
def test_replicas_are_kept_apart_although_that_moves_state(racks):
    before = placed(arrangement_of((0, 2, 4), (0, 2, 4)), cluster_of(["h0"] * 4))
    cluster = cluster_of(["h0", "h2", "h0", "h2"], racks=racks)
    plan = placed(arrangement_of((0, 2, 4), (0, 2, 4)), cluster, Holdings(before, before.workers))
    assert survivable(plan, cluster).hosts == 1
    assert survivable(plan, cluster).failure_domains == int(racks)
    assert np.isclose(exposed(arrangement_of((0, 2, 4), (0, 2, 4)), plan.workers, cluster), 0.0)


RACKS_APART = tuple(
    HostLink(between=(f"h{a:02d}", f"h{b:02d}"), alpha_seconds=1e-4, beta_seconds_per_byte=1e-8)
    for a, b in itertools.combinations(range(8), 2)
    if a % 2 != b % 2
)


@pytest.mark.parametrize("workers_per_host", [1, 2])
@pytest.mark.parametrize("layout", [Layout.PIPELINES, Layout.STAGES])
def test_pipelines_or_the_replicas_of_stages_stay_on_one_side_of_slow_links(layout, workers_per_host):
    cluster = replace(Cluster.uniform(8 * workers_per_host, workers_per_host=workers_per_host), links=RACKS_APART)
    plan = placed(arrangement_of(*[(0, 2, 4)] * 4 * workers_per_host), cluster, layout=layout)
    side = {worker.id: int(worker.host[1:]) % 2 for worker in cluster.workers}
    pipelines = [[side[stage.worker] for stage in pipeline.stages] for pipeline in plan.pipelines]
    groups = pipelines if layout is Layout.PIPELINES else list(zip(*pipelines, strict=True))
    assert sorted(set(map(frozenset, groups)), key=min) == [frozenset({0}), frozenset({1})]


@pytest.mark.parametrize("kinds", [False, True])
@pytest.mark.parametrize("layout", [Layout.WHOLE_PIPELINES, Layout.WHOLE_STAGES])
def test_what_fits_on_one_side_of_slow_links_lies_on_one_though_others_than_the_last_workers_stay_idle(layout, kinds):
    hosts = tuple(f"h{n:02d}" for n in range(7))
    cluster = replace(Cluster.uniform(7), links=tuple(link for link in RACKS_APART if set(link.between) <= set(hosts)))
    sides = ({"w00", "w02", "w04", "w06"}, {"w01", "w03", "w05"})
    own = kind_of(cluster.workers[0], PROFILE)
    arrangement = arrangement_of(*[(0, 2, 4)] * 3, kinds=(own,) * 6 if kinds else None)
    if layout is Layout.WHOLE_PIPELINES:
        arrangement = arrangement_of(*[(0, 1, 2, 4)] * 2, kinds=(own,) * 6 if kinds else None)
    plan = placed(arrangement, cluster, layout=layout)
    pipelines = [[stage.worker for stage in pipeline.stages] for pipeline in plan.pipelines]
    groups = pipelines if layout is Layout.WHOLE_PIPELINES else list(zip(*pipelines, strict=True))
    assert all(any(set(group) <= side for side in sides) for group in groups)
    assert len({idle.worker for idle in plan.idle_workers} & sides[0]) == 1


@pytest.mark.parametrize("kinds", [False, True])
@pytest.mark.parametrize("sides", [(0, 0, 1, 0, 0, 1), (1, 1, 1, 0, 0, 0)], ids=["stages", "pipelines"])
def test_workers_are_on_the_sides_that_an_arrangement_was_planned_for(sides, kinds):
    cluster = replace(Cluster.uniform(8), links=RACKS_APART)
    own = kind_of(cluster.workers[0], PROFILE)
    arrangement = replace(arrangement_of(*[(0, 1, 2, 4)] * 2, kinds=(own,) * 6 if kinds else None), sides=sides)
    plan = placed(arrangement, cluster, layout=Layout.PLANNED)
    racks = [int(stage.worker[1:]) % 2 for pipeline in plan.pipelines for stage in pipeline.stages]
    assert racks in ([*sides], [1 - side for side in sides])
    assert len(set(plan.workers)) == 6


def test_replicas_of_a_stage_on_one_side_are_on_different_hosts_of_it():
    cluster = replace(Cluster.uniform(16, workers_per_host=2), links=RACKS_APART)
    arrangement = replace(arrangement_of(*[(0, 1, 2, 4)] * 2), sides=(0, 0, 1) * 2)
    plan = placed(arrangement, cluster, layout=Layout.PLANNED)
    one, other = ([cluster.by_id[stage.worker].host for stage in pipeline.stages] for pipeline in plan.pipelines)
    assert not set(one) & set(other)


def test_what_fits_on_no_side_takes_what_is_left():
    hosts = tuple(f"h{n:02d}" for n in range(8))
    cluster = replace(Cluster.uniform(8), links=RACKS_APART)
    assert cluster.hosts == hosts
    plan = placed(arrangement_of((0, 1, 2, 4), (0, 1, 2, 4), (0, 2, 4)), cluster, layout=Layout.WHOLE_PIPELINES)
    sides = [{int(stage.worker[1:]) % 2 for stage in pipeline.stages} for pipeline in plan.pipelines]
    assert sides == [{0}, {1}, {0, 1}]


@pytest.mark.parametrize("layout", Layout)
def test_workers_of_each_kind_get_the_slots_of_their_kind_in_every_layout(layout):
    cluster = replace(cluster_of([f"h{n:02d}" for n in range(8)], speeds=(1.0, 0.5) * 4), links=RACKS_APART)
    fast, slow = (kind_of(cluster.workers[n], PROFILE) for n in (0, 1))
    plan = placed(arrangement_of(*[(0, 3, 4)] * 4, kinds=(fast, slow) * 4), cluster, layout=layout)
    assert [[cluster.by_id[stage.worker].speed_ratio for stage in own.stages] for own in plan.pipelines] == [[1.0, 0.5]] * 4


@pytest.mark.parametrize("num_racks", [2, 4])
def test_names_of_hosts_do_not_say_how_fast_a_job_on_racks_is(num_racks):
    profile, steps = transformer_profile(14), []
    for racks in (sorted(n % num_racks for n in range(24)), [n % num_racks for n in range(24)]):
        pairs = ((a, b) for a, b in itertools.combinations(range(24), 2) if racks[a] != racks[b])
        links = tuple(
            HostLink(between=(f"h{a:02d}", f"h{b:02d}"), alpha_seconds=1e-4, beta_seconds_per_byte=1e-8) for a, b in pairs
        )
        steps.append(replan(snapshot_of(profile, replace(Cluster.uniform(24), links=links), 48)).estimate.iteration_seconds)
    assert steps[0] == pytest.approx(steps[1], rel=0.01)
