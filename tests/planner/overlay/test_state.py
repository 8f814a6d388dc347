"""Who holds the state of an overlay, and who sends it to whoever joins."""

import pytest

from kintsugi.core.errors import ConflictError
from kintsugi.core.overlay import WorkerState
from tests.planner.overlay.world import MIB, World, mesh

JOINING, STANDBY, DRAINING, FAILED = WorkerState.JOINING, WorkerState.STANDBY, WorkerState.DRAINING, WorkerState.FAILED


def test_the_last_one_may_go_unless_somebody_needs_its_state():
    world = mesh("w00")
    world.join("w01", "w00")
    world.measure("w00", "w01")
    overlay = world.tell("worker_draining", worker="w00")
    assert overlay.synchronization.order == ("w00",)
    assert [share.source for share in overlay.replications[0].shares] == ["w00"]
    overlay = world.tell("state_replicated", worker="w01")
    assert overlay.synchronization.order == ("w01",)
    overlay = world.tell("worker_draining", worker="w01")
    assert overlay.synchronization.order == ()


def test_a_lost_source_is_replaced_by_the_others_at_the_same_step():
    world = mesh("w00", "w01", "w02")
    world.join("w03", "w00", "w01", "w02")
    for other in ("w00", "w01", "w02"):
        world.measure(other, "w03", beta=1e-8)
    (planned,) = world.overlay.replications
    overlay = world.tell("worker_failed", worker="w01", interrupted=True, restarts=0)
    (replanned,) = overlay.replications
    assert replanned.generation == planned.generation
    assert {share.source for share in replanned.shares} == {"w00", "w02"}
    assert set(planned.shares) - set(replanned.shares) == {share for share in planned.shares if share.source == "w01"}
    assert replanned.makespan_seconds > planned.makespan_seconds


def test_without_any_source_left_the_state_comes_from_elsewhere_or_the_joiner_stands_by():
    world = mesh("w00", "w01")
    world.join("w02", "w00")
    world.measure("w00", "w02")
    first = world.overlay.replications[0]
    world.tell("link_connected", link=("w01", "w02"))
    world.tell("link_connected", link=("w01", "w02"))
    overlay = world.tell("worker_failed", worker="w00")
    assert overlay.replications == ()
    overlay = world.measure("w01", "w02")
    assert overlay.replications[0].generation == overlay.generation > first.generation
    world.tell("link_disconnected", link=("w01", "w02"))
    assert world.state("w02") is STANDBY


def test_a_state_that_would_grow_old_on_its_way_comes_from_elsewhere():
    """Its only source leaves and is spared: whoever counts cannot tell the joiner of the reductions since, for lack of a link."""
    world = mesh("w00", "w01")
    world.join("w02", "w00")
    world.measure("w00", "w02")
    world.tell("link_connected", link=("w01", "w02"))
    overlay = world.tell("worker_draining", worker="w00")
    assert (overlay.synchronization.order, overlay.synchronization.listeners) == (("w01",), ())
    assert overlay.replications == ()
    overlay = world.measure("w01", "w02")
    assert overlay.synchronization.listeners == ("w02",)
    assert [share.source for share in overlay.replications[0].shares] == ["w01"]


def test_a_joiner_may_ask_for_a_later_step():
    world = mesh("w00")
    world.join("w01", "w00")
    world.measure("w00", "w01")
    overlay = world.tell("replication_requested", worker="w01", detail="eight gradients wait already")
    assert overlay.replications[0].generation == overlay.generation


def test_a_joiner_that_lost_track_gives_up_the_state_that_it_holds_and_nobody_waits_for_it():
    world = mesh("w00", "w01")
    before = world.overlay
    overlay = world.tell("replication_requested", worker="w01", detail="nobody can tell", interrupted=True)
    assert (world.state("w01"), overlay.worker("w01").detail) == (JOINING, "nobody can tell")
    assert (overlay.synchronization.order, overlay.restarts) == (("w00",), before.restarts + 1)
    assert overlay.replications[0].generation == overlay.generation
    with pytest.raises(ConflictError, match="only one that holds the state"):
        world.tell("replication_requested", worker="w00")


def test_who_alone_holds_the_state_is_lost_once_it_is_silent():
    world = mesh("w00", "w01")
    world.join("w02", "w00", "w01")
    world.tell("worker_failed", worker="w01", teller="w02")
    before = world.overlay
    with pytest.raises(ConflictError, match="alone holds the state"):
        world.tell("worker_failed", worker="w00", teller="w02", interrupted=True)
    assert world.overlay is before
    world.tell("worker_failed", worker="w00", detail="no heartbeat for 10.0 s")
    assert world.state("w00") is FAILED


@pytest.mark.parametrize("was_counted", [False, True], ids=["never had it", "was spared"])
def test_whoever_leaves_and_gives_nobody_the_state_does_not_make_the_last_one_dispensable(was_counted):
    world = mesh("w00", "w01") if was_counted else World()
    if not was_counted:
        world.join("w00")
        world.join("w01", "w00")
    world.join("w02", "w00")
    before = world.tell("worker_draining", worker="w01")
    assert (before.synchronization.order, world.state("w01")) == (("w00",), DRAINING)
    with pytest.raises(ConflictError, match="alone holds the state"):
        world.tell("worker_failed", worker="w00", teller="w01", interrupted=True)
    with pytest.raises(ConflictError, match="only one that holds the state"):
        world.tell("replication_requested", worker="w00")
    assert world.overlay is before


def test_the_state_is_cut_into_shards_of_the_size_that_was_asked_for():
    world = mesh("w00")
    world.join("w01", "w00", state_bytes=10 * MIB + 1, shard_bytes=MIB)
    (replication,) = world.measure("w00", "w01").replications
    assert sum(share.num_shards for share in replication.shares) == 11
