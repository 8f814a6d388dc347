"""Pipelines that stay within a host where the links between hosts are slow."""

from dataclasses import replace
from pathlib import Path

import pytest

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Plan, Schedule
from kintsugi.core.profile import LinkCost, Profile
from planner.placing.placement import place
from planner.policies import reshaping
from planner.replan import replan
from restorer.migration import plan_migration
from tests.builders import snapshot_of, transformer_profile, uniform_profile

MODELS = Path(__file__).parents[3] / "profiles" / "models"
ETHERNET_OF_A_GIGABIT = LinkCost(alpha_seconds=5e-5, beta_seconds_per_byte=8e-9)


def snapshot(profile, num_workers, microbatches, *, workers_per_host, schedule=Schedule.ONE_F_ONE_B, max_pp=None):
    cluster = Cluster.uniform(num_workers, workers_per_host=workers_per_host)
    asked = snapshot_of(profile, cluster, microbatches, ranges=Ranges(max_pp=max_pp))
    return replace(asked, settings=replace(asked.settings, schedule=schedule))


@pytest.mark.parametrize(
    "schedule", [Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.INTERLEAVED]
)
@pytest.mark.parametrize(("num_workers", "per_host", "microbatches"), [(4, 2, 8), (8, 4, 2), (6, 2, 1)])
def test_a_slow_network_confines_pipelines_to_a_host(schedule, num_workers, per_host, microbatches):
    profile = uniform_profile(16, inter_host=ETHERNET_OF_A_GIGABIT)
    wide, narrow = (
        replan(snapshot(profile, num_workers, microbatches, workers_per_host=per_host, schedule=schedule, max_pp=max_pp))
        for max_pp in (None, per_host)
    )
    assert wide.estimate.iteration_seconds <= narrow.estimate.iteration_seconds * 1.002
    assert wide.search.lower_bound_seconds <= wide.estimate.iteration_seconds
    known = {*wide.plan.workers, *(idle.worker for idle in wide.plan.idle_workers)}
    assert known == {f"w{n:02d}" for n in range(num_workers)}


def test_pipelines_are_no_shorter_than_the_ranges_allow():
    profile = uniform_profile(16, inter_host=ETHERNET_OF_A_GIGABIT)
    asked = snapshot(profile, 4, 8, workers_per_host=2)
    decision = replan(replace(asked, settings=replace(asked.settings, ranges=Ranges(min_pp=3))))
    assert all(len(pipeline.stages) >= 3 for pipeline in decision.plan.pipelines)


def test_what_moves_is_looked_at_for_plans_alone_that_could_win(monkeypatch):
    moved: list[Plan] = []
    monkeypatch.setattr(reshaping, "plan_migration", lambda old, new, *rest: moved.append(new) or plan_migration(old, new, *rest))
    profile = transformer_profile(14, inter_host=ETHERNET_OF_A_GIGABIT)
    asked = snapshot(profile, 200, 400, workers_per_host=8)
    decision = replan(replace(asked, plan=replan(asked).plan, alive=asked.alive[:7] + asked.alive[8:], generation=1))
    assert decision.search.candidates > 3 * len(moved) > 0


def test_pipelines_that_cannot_win_any_more_are_not_looked_at(monkeypatch):
    named: list[Plan] = []
    monkeypatch.setattr(reshaping, "place", lambda *rest, **told: named.append(place(*rest, **told)) or named[-1])
    profile = codec.load(Profile, MODELS / "gpt2-medium.a100-80g.json")
    network = replace(profile.network, inter_host=ETHERNET_OF_A_GIGABIT)
    asked = snapshot(replace(profile, network=network), 256, 1024, workers_per_host=8)
    decision = replan(replace(asked, plan=replan(asked).plan, alive=asked.alive[:7] + asked.alive[8:], generation=1))
    assert {pipeline.num_workers for pipeline in decision.plan.pipelines} == {8}
    assert len(named) < 20
