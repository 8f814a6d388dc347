"""Plans made ahead equal those made at the moment of failure."""

import itertools
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.plan import Policy
from kintsugi.core.reliability import FailureRecord
from planner.contingency import accepted, after, fingerprint, losses, plans_ahead
from planner.replan import replan
from tests.builders import snapshot_of, transformer_profile, uniform_profile


def running(num_workers=6, *, workers_per_host=1, profile=None, lost=(), **settings):
    """The snapshot of the next decision of a job that runs the best plan for its workers."""
    cluster = Cluster.uniform(num_workers, workers_per_host=workers_per_host)
    first = snapshot_of(profile or uniform_profile(4), cluster, 12, lost=lost, **settings)
    return accepted(first, replan(first))


def text(decision):
    """A decision bit for bit, but for the time that its search took."""
    return codec.dumps(replace(decision, search=replace(decision.search, elapsed_seconds=0.0)))


@settings(deadline=None, max_examples=12)
@given(st.integers(3, 9), st.integers(1, 3), st.booleans())
def test_every_contingency_equals_a_fresh_search(num_workers, workers_per_host, transformer):
    base = running(num_workers, workers_per_host=workers_per_host, profile=transformer_profile(3) if transformer else None)
    made = {contingency.fingerprint: contingency for contingency in plans_ahead(base)}
    for loss in losses(base):
        snapshot = after(base, loss)
        try:
            fresh = replan(snapshot)
        except InfeasibleError:
            assert fingerprint(snapshot) not in made
            continue
        assert text(made[fingerprint(snapshot)].decision) == text(fresh)


def test_who_became_slow_is_planned_for_once():
    """What runs was decided with the present speeds, so that the same workers at the same speeds keep it."""
    slow = replace(running(4), speeds_changed=True)
    assert not accepted(slow, replan(slow)).speeds_changed


def test_each_single_worker_and_host_and_each_pair_is_thought_of_once():
    base = running(6, workers_per_host=2)
    found = [loss.workers for loss in losses(base)]
    hosts = [frozenset(base.cluster.workers_on(host)) for host in base.cluster.hosts]
    units = [frozenset((worker,)) for worker in base.alive] + hosts
    pairs = {first | second for first, second in itertools.combinations(units, 2)} - {frozenset(base.alive)}
    assert len(found) == len(set(found))
    assert found[:9] == units
    assert set(found) == {*units, *pairs}


def test_only_the_living_can_be_lost():
    base = running(6, workers_per_host=2, lost=["w02", "w05"])
    assert all(loss.workers <= set(base.alive) for loss in losses(base))
    assert ("w04",) in {loss.subjects for loss in losses(base)}
    assert ("h02",) not in {loss.subjects for loss in losses(base)}  # w04 is all that is left of it


def test_pairs_end_with_the_work_they_may_take_and_begin_with_neighbours():
    base = running(6)
    assert [loss.subjects for loss in losses(base, 0)] == [(worker,) for worker in base.alive]
    singles, allowed = 6, 3
    found = [loss.subjects for loss in losses(base, allowed * 4 + 3)]
    assert found[singles:] == [("w00", "w01"), ("w01", "w02"), ("w02", "w03")]


def test_a_loss_that_leaves_nobody_is_left_out():
    base = running(2)
    assert [loss.subjects for loss in losses(base)] == [("w00",), ("w01",)]


def test_a_loss_without_a_plan_has_no_contingency():
    base = running(2, profile=uniform_profile(4, memory_bytes=1_500_000_000))
    assert list(losses(base))
    assert list(plans_ahead(base)) == []


@pytest.mark.parametrize(
    "event",
    [
        Event(kind=EventKind.WORKER_FAILED, id="a", generation=0, worker="w03"),
        Event(kind=EventKind.WORKER_DRAINING, id="a", generation=0, worker="w03"),
        Event(kind=EventKind.HOST_FAILED, id="a", generation=0, host="h01"),
    ],
)
def test_what_an_event_leads_to_is_found(event):
    base = running(6, workers_per_host=2)
    made = {contingency.fingerprint for contingency in plans_ahead(base, 0)}
    membership = Membership.of(base.cluster).after(event)
    assert fingerprint(replace(base, alive=membership.alive)) in made


def test_a_fingerprint_tells_snapshots_apart_and_equal_ones_not():
    base = running(4)
    again = codec.loads(type(base), codec.dumps(base))
    assert fingerprint(again) == fingerprint(base)
    changes = {
        "alive": base.alive[1:],
        "generation": 7,
        "stateless": ("w00",),
        "draining": ("w03",),
        "settings": replace(base.settings, mtbf_seconds=5.0),
        "plan": None,
        "cluster": Cluster.uniform(5),
        "profile": uniform_profile(4, memory_bytes=79_000_000_000),
        "failures": FailureRecord(num_failures=1, observed_seconds=1.0),
        "refused_policies": (Policy.DATA_REROUTING,),
        "speeds_changed": True,
    }
    assert changes.keys() == {field.name for field in fields(base)}
    without_the_last = replace(base, alive=base.alive[:3])
    others = [replace(without_the_last, **{field: value}) for field, value in changes.items()]
    assert len({fingerprint(snapshot) for snapshot in (without_the_last, *others)}) == len(others) + 1


def test_who_lost_its_state_and_then_itself_is_gone():
    base = replace(running(6), stateless=("w01", "w02"))
    loss = next(loss for loss in losses(base) if loss.subjects == ("w01",))
    assert after(base, loss).stateless == ("w02",)
