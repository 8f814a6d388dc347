"""Whole lives of small jobs: losses, returns without state, and plans on top of plans."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Plan, Policy
from planner.legality import violations
from planner.replan import replan
from tests.builders import snapshot_of, uniform_profile

POLICIES = st.sampled_from([None, None, Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM, Policy.SPARE_SUBSTITUTION])


@settings(max_examples=150, deadline=None)
@given(data=st.data(), num_workers=st.integers(2, 8), num_layers=st.integers(2, 6), num_microbatches=st.integers(1, 10))
def test_every_plan_of_a_life_is_legal(data, num_workers, num_layers, num_microbatches):
    profile, cluster = uniform_profile(num_layers), Cluster.uniform(num_workers)
    everyone = [worker.id for worker in cluster.workers]
    alive = set(everyone)
    try:
        plan: Plan = replan(snapshot_of(profile, cluster, num_microbatches)).plan
        for _ in range(4):
            lost = set(data.draw(st.lists(st.sampled_from(sorted(alive)), max_size=2, unique=True))) if len(alive) > 2 else set()
            back = {worker for worker in everyone if worker not in alive and data.draw(st.booleans())}
            alive = (alive - lost) | back
            snapshot = snapshot_of(
                profile,
                cluster,
                num_microbatches,
                plan=plan,
                lost=[worker for worker in everyone if worker not in alive],
                stateless=sorted(back & set(plan.workers)),
                policy=data.draw(POLICIES),
            )
            decision = replan(snapshot)
            plan = decision.plan
            assert violations(snapshot, decision) == ()
    except InfeasibleError:
        return


def test_a_spare_fills_one_of_two_dead_slots_and_the_other_is_rerouted():
    profile, cluster = uniform_profile(6), Cluster.uniform(7)
    first = replan(snapshot_of(profile, cluster, 5)).plan
    second = replan(snapshot_of(profile, cluster, 5, plan=first, lost=["w00"], policy=Policy.DATA_REROUTING)).plan
    third = replan(snapshot_of(profile, cluster, 5, plan=second, lost=["w01", "w02"], stateless=["w00"])).plan
    assert "w00" in {*third.workers, *(idle.worker for idle in third.idle_workers)}
