"""Workers that leave and still serve: they get no slot, and what they alone hold comes from them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.errors import InvalidInputError, StateLostError
from kintsugi.core.job import Ranges, Snapshot
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.plan import Policy
from kintsugi.core.profile import LinkCost
from planner.contingency import fingerprint
from planner.legality import violations
from planner.replan import replan
from tests.builders import grid_plan, snapshot_of, uniform_profile

PROFILE = uniform_profile(8)


def running(dp: int, pp: int, num_workers: int) -> Snapshot:
    """DP x PP of more workers than it uses, and nothing lost."""
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp)
    plan = replan(snapshot_of(PROFILE, Cluster.uniform(dp * pp), 16, ranges=ranges)).plan
    return snapshot_of(PROFILE, Cluster.uniform(num_workers), 16, plan=plan, lost=[])


def without(base: Snapshot, *draining: str, lost: tuple[str, ...] = ()) -> Snapshot:
    alive = tuple(worker for worker in base.alive if worker not in (*draining, *lost))
    return replace(base, alive=alive, draining=draining)


def test_what_one_worker_alone_holds_comes_from_it_when_it_leaves():
    base = running(1, 4, 5)
    with pytest.raises(StateLostError):
        replan(without(base, lost=("w02",)))
    snapshot = without(base, "w02")
    decision = replan(snapshot)
    assert "w02" not in decision.plan.workers
    assert "w02" in {transfer.source for transfer in decision.migration.transfers}
    assert not list(violations(snapshot, decision))


@pytest.mark.parametrize(("hosts", "taker"), [(("h2", "h1", "h2"), "w02"), (("h0", "h2", "h1", "h0"), "w03")])
def test_who_stands_beside_it_takes_its_slot(hosts, taker):
    """Whoever takes it fetches all of it: over the host's own link, or over one that is a hundred times slower."""
    far = LinkCost(alpha_seconds=1e-5, beta_seconds_per_byte=1e-8)
    cluster = Cluster(name="shared", workers=tuple(Worker(id=f"w{n:02d}", host=host) for n, host in enumerate(hosts)))
    length = len(hosts) - 2
    base = snapshot_of(
        uniform_profile(8, inter_host=far),
        cluster,
        3,
        plan=grid_plan(8, [length], [3]),
        ranges=Ranges(min_pp=length, max_pp=length),
        policy=Policy.DYNAMIC_PARALLELISM,
    )
    decision = replan(without(base, "w00"))
    assert {transfer.target for transfer in decision.migration.transfers} == {taker}


def test_its_slot_is_not_rerouted_where_nobody_else_holds_the_layers():
    base = running(1, 4, 5)
    policies = {option.policy: option.reason for option in replan(without(base, "w02")).alternatives if not option.feasible}
    assert "restart from a checkpoint" in policies[Policy.DATA_REROUTING]


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 7), st.integers(0, 7))
def test_every_decision_for_leaving_workers_is_legal(leaving, lost):
    base = running(2, 4, 9)
    snapshot = without(base, f"w{leaving:02d}", lost=(f"w{lost:02d}",) if lost != leaving else ())
    decision = replan(snapshot)
    assert not list(violations(snapshot, decision))
    assert f"w{leaving:02d}" not in decision.plan.workers


def test_a_leaving_worker_is_never_worse_than_a_lost_one():
    base = running(2, 4, 8)
    left, lost = replan(without(base, "w03")), replan(without(base, lost=("w03",)))
    assert left.estimate.goodput_samples_per_second >= lost.estimate.goodput_samples_per_second


def test_plans_made_ahead_of_a_loss_are_not_taken_for_it():
    base = running(2, 4, 8)
    assert fingerprint(without(base, "w03")) != fingerprint(without(base, lost=("w03",)))


def test_nobody_leaves_and_stays():
    base = running(1, 4, 5)
    with pytest.raises(InvalidInputError, match="draining"):
        replace(base, draining=("w02",))


@pytest.mark.parametrize(("deadline_seconds", "serves"), [(None, ("w01",)), (30.0, ("w01",)), (0, ())])
def test_a_worker_serves_until_its_deadline(deadline_seconds, serves):
    event = Event(kind=EventKind.WORKER_DRAINING, id="a", generation=0, worker="w01", deadline_seconds=deadline_seconds)
    membership = Membership.of(Cluster.uniform(3)).after(event)
    assert (membership.alive, membership.draining) == (("w00", "w02"), serves)
    gone = membership.after(Event(kind=EventKind.WORKER_FAILED, id="b", generation=0, worker="w01"))
    assert gone.draining == ()
    back = membership.after(Event(kind=EventKind.WORKER_JOINED, id="c", generation=0, worker="w01"))
    assert (back.alive, back.draining) == (("w00", "w01", "w02"), ())
