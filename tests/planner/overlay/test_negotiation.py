"""What each event of an overlay leads to, one at a time."""

from dataclasses import replace

import pytest

from kintsugi.core.errors import ConflictError, InvalidInputError, NotFoundError, ReconfigurationError, StaleIncarnationError
from kintsugi.core.overlay import LinkState, Shape, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from planner.overlay.membership import MOST_WORKERS
from planner.overlay.topology import MOST_FAILED_KEPT, empty_overlay
from tests.planner.overlay.world import World, mesh

ACTIVE, JOINING, STANDBY, DRAINING, FAILED = (
    WorkerState.ACTIVE,
    WorkerState.JOINING,
    WorkerState.STANDBY,
    WorkerState.DRAINING,
    WorkerState.FAILED,
)
JOINED = {"kind": "worker_joined", "worker": "w00", "address": "h:1", "state_bytes": 1, "shard_bytes": 1}
CHANGED = {"kind": "scheduler_changed", "worker": "w00", "address": "http://h:1", "term": 2}


def links(overlay):
    return {link.between: link.state for link in overlay.links}


def test_the_first_worker_is_active_alone():
    overlay = World().join("w00")
    assert (overlay.generation, overlay.term, overlay.worker("w00").state) == (1, 1, ACTIVE)
    assert overlay.synchronization.order == ("w00",)


def test_a_joining_worker_gets_links_then_the_state_then_counts():
    world = mesh("w00", "w01")
    overlay = world.join("w02", "w00", "w01")
    assert world.state("w02") is JOINING
    assert links(overlay)[("w00", "w02")] is LinkState.CONNECTING
    assert overlay.replications == ()
    world.tell("link_connected", link=("w00", "w02"))
    world.measure("w00", "w02", beta=1e-8)
    assert world.overlay.replications == ()
    overlay = world.measure("w01", "w02", beta=2e-8)
    (replication,) = overlay.replications
    assert (replication.joiner, replication.generation) == ("w02", overlay.generation)
    assert [(share.source, share.num_shards) for share in replication.shares] == [("w00", 43), ("w01", 21)]
    assert overlay.synchronization.order == ("w00", "w01")
    assert overlay.synchronization.listeners == ("w02",)
    assert overlay.synchronization.parents["w02"] == "w00"
    overlay = world.tell("state_replicated", worker="w02", step=9)
    assert (world.state("w02"), overlay.replications, overlay.synchronization.listeners) == (ACTIVE, (), ())
    assert set(overlay.synchronization.order) == {"w00", "w01", "w02"}
    assert overlay.restarts == 0


def test_the_same_word_again_changes_nothing():
    world = mesh("w00", "w01")
    before = world.overlay
    assert world.join("w01", "w00") is before
    assert world.tell("link_connected", link=("w01", "w00")) is before
    world.tell("worker_draining", worker="w01")
    before = world.overlay
    assert world.tell("worker_draining", worker="w01") is before
    world.tell("worker_left", worker="w01")
    assert world.tell("worker_left", worker="w01") is world.overlay


@pytest.mark.parametrize(
    ("kind", "told", "error", "field"),
    [
        ("worker_joined", {"neighbors": ("w09",)}, NotFoundError, "neighbors[0]"),
        ("worker_joined", {"neighbors": ("w00", "w02")}, ConflictError, "neighbors[1]"),
        ("worker_joined", {"worker": "w02"}, StaleIncarnationError, "workers"),
        ("worker_joined", {"neighbors": ("w00",), "protocol": 2}, ReconfigurationError, "protocol"),
        ("worker_draining", {}, NotFoundError, "worker"),
        ("worker_draining", {"worker": "w02"}, StaleIncarnationError, "workers"),
        ("state_replicated", {"worker": "w03"}, ConflictError, "worker"),
        ("link_connected", {"link": ("w00", "w09"), "worker": None}, NotFoundError, "link"),
        ("link_connected", {"link": ("w00", "w02"), "worker": None}, StaleIncarnationError, "workers"),
        ("link_connected", {"link": ("w00", "w01"), "worker": "w03"}, InvalidInputError, "worker"),
        ("scheduler_changed", {"address": "http://h:1", "term": 1}, ConflictError, "term"),
        (
            "scheduler_changed",
            {"address": "http://h:1", "term": 2, "overlay": empty_overlay("another")},
            InvalidInputError,
            "overlay.name",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(kind, told, error, field):
    world = mesh("w00", "w01", "w02")
    world.tell("worker_failed", worker="w02")
    world.join("w03")
    told = {"worker": "w04", "address": "w04:7000", "state_bytes": 1, "shard_bytes": 1} | told
    before = world.overlay
    with pytest.raises(error) as refused:
        world.tell(kind, **told)
    assert refused.value.field == field
    assert world.overlay is before


def test_an_overlay_begins_with_a_worker():
    with pytest.raises(NotFoundError, match="worker_joined"):
        World().tell("worker_failed", worker="w00")
    with pytest.raises(NotFoundError, match="not in the overlay"):
        World().join("w01", "w00")


def test_an_overlay_is_full_at_some_time():
    world = World()
    world.join("w00")
    template = world.overlay.workers[0]
    world.overlay = replace(world.overlay, workers=tuple(replace(template, id=f"x{n}") for n in range(MOST_WORKERS)))
    with pytest.raises(ConflictError, match="has 1024 workers"):
        world.join("w01", "x1")


def test_without_neighbours_a_later_worker_stands_by_until_it_is_connected():
    world = mesh("w00")
    world.join("w01")
    assert world.state("w01") is STANDBY
    world.tell("link_connected", link=("w01", "w00"))
    assert world.state("w01") is JOINING
    world.measure("w00", "w01")
    assert [one.joiner for one in world.overlay.replications] == ["w01"]


def test_links_that_do_not_come_up_are_done_without():
    world = mesh("w00", "w01")
    world.join("w02", "w00", "w01")
    world.measure("w00", "w02")
    overlay = world.tell("link_disconnected", link=("w01", "w02"))
    assert [share.source for share in overlay.replications[0].shares] == ["w00"]
    world.join("w03", "w00")
    overlay = world.tell("link_disconnected", link=("w00", "w03"))
    assert world.state("w03") is STANDBY
    assert "connect one" in overlay.worker("w03").detail


def test_a_graceful_leaver_is_done_without_before_it_goes():
    world = mesh("w00", "w01", "w02")
    overlay = world.tell("worker_draining", worker="w01")
    assert set(overlay.synchronization.order) == {"w00", "w02"}
    assert ("w00", "w01") in links(overlay)
    overlay = world.tell("worker_left", worker="w01")
    assert [worker.id for worker in overlay.workers] == ["w00", "w02"]
    assert list(links(overlay)) == [("w00", "w02")]
    assert overlay.restarts == 0


def test_a_leaver_that_holds_the_others_together_counts_until_they_are_connected():
    world = mesh("w00", "w01", "w02", links="w00-w01 w01-w02")
    overlay = world.tell("worker_draining", worker="w01")
    assert set(overlay.synchronization.order) == {"w00", "w01", "w02"}
    assert links(overlay)[("w00", "w02")] is LinkState.CONNECTING
    world.measure("w00", "w02")
    assert set(world.overlay.synchronization.order) == {"w00", "w02"}


def test_a_leaver_that_was_spared_is_not_called_back():
    world = mesh("w00", "w01", "w02", "w03", links="w00-w01 w00-w02 w00-w03 w01-w02 w01-w03")
    assert set(world.tell("worker_draining", worker="w01").synchronization.order) == {"w00", "w02", "w03"}
    overlay = world.tell("worker_draining", worker="w00")
    assert set(overlay.synchronization.order) == {"w00", "w02", "w03"}, "w01 would connect them, too, but may have gone"
    assert set(world.measure("w02", "w03").synchronization.order) == {"w02", "w03"}


def test_a_failure_calls_off_the_reduction_once_whoever_tells_it():
    world = mesh("w00", "w01", "w02")
    overlay = world.tell("worker_failed", worker="w01", interrupted=True, restarts=0)
    assert (world.state("w01"), overlay.restarts) == (FAILED, 1)
    assert set(overlay.synchronization.order) == {"w00", "w02"}
    assert (overlay.restarted, overlay.restarted_generation) == (overlay.synchronization, overlay.generation)
    assert world.tell("worker_failed", worker="w01", interrupted=True, restarts=0) is overlay
    assert world.tell("link_disconnected", link=("w01", "w02"), interrupted=True, restarts=0) is overlay
    again = world.tell("link_disconnected", link=("w01", "w02"), interrupted=True)
    assert (again.restarts, again.synchronization) == (2, overlay.synchronization)


def test_a_link_that_is_given_up_disturbs_nobody_and_one_that_breaks_calls_off():
    world = mesh("w00", "w01", "w02")
    assert world.tell("link_disconnected", link=("w00", "w01")).restarts == 0
    assert world.overlay.synchronization.parents
    world = mesh("w00", "w01", "w02")
    overlay = world.tell("link_disconnected", link=("w00", "w01"), interrupted=True, restarts=0)
    assert overlay.restarts == 1
    assert set(overlay.synchronization.order) == {"w00", "w01", "w02"}


def test_the_larger_part_goes_on_where_the_overlay_falls_apart():
    world = mesh("w00", "w01", "w02", "w03", "w04", links="w00-w01 w01-w02 w02-w03 w03-w04")
    overlay = world.tell("link_disconnected", link=("w01", "w02"), interrupted=True)
    assert set(overlay.synchronization.order) == {"w02", "w03", "w04"}
    assert (world.state("w00"), world.state("w01")) == (FAILED, FAILED)
    assert "cut off from the part of w02, which goes on with 3 of 5" in overlay.worker("w00").detail
    world = mesh("w00", "w01")
    overlay = world.tell("link_disconnected", link=("w00", "w01"))
    assert overlay.synchronization.order == ("w00",)


def test_those_that_disagree_fail_together_in_the_lives_in_which_they_did():
    world = mesh("a", "b", "c", "d")
    world.tell("worker_failed", worker="d", incarnation=0, disagreeing={"a": 0, "b": 0, "c": 7, "gone": 0}, interrupted=True)
    assert [world.state(worker) for worker in "abd"] == [WorkerState.FAILED] * 3
    assert world.overlay.worker("a").disagreed_with == ("b", "c", "d", "gone")
    assert world.state("c") is WorkerState.ACTIVE
    assert not world.overlay.worker("c").disagreed_with
    before = world.overlay
    assert world.tell("worker_failed", worker="a", disagreeing={"c": 0}) == before
    assert world.replayed() == world.overlay


def test_who_is_still_joining_takes_nobody_along():
    world = World()
    world.join("w00")
    world.join("w01", "w00")
    world.tell("worker_failed", worker="w01", teller="w01", disagreeing={"w00": 0})
    assert (world.state("w00"), world.state("w01")) == (ACTIVE, FAILED)
    assert world.overlay.synchronization.order == ("w00",)


def test_of_two_that_lose_sight_of_each_other_one_is_left():
    world = mesh("w00", "w01")
    told = {"interrupted": True, "restarts": 0}
    overlay = world.tell("worker_failed", worker="w00", teller="w01", **told)
    assert (world.state("w00"), world.state("w01"), overlay.restarts) == (FAILED, ACTIVE, 1)
    for late in ("w01", "w00"):  # the word that is on its way, and what is told of it again
        with pytest.raises(StaleIncarnationError):
            world.tell("worker_failed", worker=late, teller="w00", **told)
    assert world.tell("worker_failed", worker="w00", teller="w01", **told) is overlay
    world.join("w00", "w01", incarnation=1)
    with pytest.raises(StaleIncarnationError):
        world.tell("worker_failed", worker="w01", teller="w00", **told)
    with pytest.raises(NotFoundError):
        world.tell("worker_failed", worker="w01", teller="w09", **told)


def test_words_of_an_earlier_life_are_refused_and_a_new_life_begins_anew():
    world = mesh("w00", "w01")
    overlay = world.join("w01", "w00", incarnation=1)
    assert (world.state("w01"), overlay.worker("w01").incarnation, overlay.restarts) == (JOINING, 1, 1)
    with pytest.raises(StaleIncarnationError) as refused:
        world.tell("worker_draining", worker="w01")
    assert refused.value.incarnations == {"w01": 1}
    assert world.tell("worker_failed", worker="w01", incarnation=0) is overlay
    elsewhere = {"worker": "w01", "incarnation": 1, "address": "w01:7001", "state_bytes": 1, "shard_bytes": 1}
    with pytest.raises(StaleIncarnationError) as refused:  # it saw the same overlay, and took the same number
        world.tell("worker_joined", **elsewhere)
    assert refused.value.incarnations == {"w01": 1}
    world.tell("worker_failed", worker="w01", incarnation=1)
    with pytest.raises(StaleIncarnationError):
        world.join("w01", "w00", incarnation=1)
    assert world.join("w01", "w00", incarnation=2).worker("w01").state is JOINING


def test_words_about_an_earlier_link_change_nothing():
    world = mesh("w00", "w01", "w02")
    before = world.overlay.generation
    world.tell("link_disconnected", link=("w00", "w01"))
    overlay = world.tell("link_connected", link=("w00", "w01"), worker="w00", generation=world.overlay.generation)
    for kind in ("link_disconnected", "link_connected"):
        assert world.tell(kind, link=("w00", "w01"), worker="w01", generation=before) is overlay
    assert world.tell("link_connected", link=("w01", "w00"), generation=overlay.generation).generation == overlay.generation + 1


def test_a_new_link_is_used_once_it_is_measured():
    world = mesh("w00", "w01", "w02", links="w00-w01 w01-w02")
    world.tell("link_connected", link=("w00", "w02"))
    world.tell("link_connected", link=("w00", "w02"))
    assert world.overlay.synchronization.parents == {"w00": "w01", "w02": "w01"}
    assert world.overlay.synchronization.predicted_seconds is None
    overlay = world.measure("w00", "w02", beta=1e-9)
    assert overlay.synchronization.shape is Shape.RING or ("w00" in overlay.synchronization.parents.values())
    assert overlay.synchronization.predicted_seconds is not None


def test_only_the_latest_failures_are_remembered():
    world = mesh("w00")
    for number in range(MOST_FAILED_KEPT + 5):
        world.join(f"x{number:02}", "w00")
        world.tell("worker_failed", worker=f"x{number:02}")
    failed = [worker.id for worker in world.overlay.workers if worker.state is FAILED]
    assert failed == [f"x{number:02}" for number in range(5, MOST_FAILED_KEPT + 5)]


def test_another_scheduler_takes_over_with_a_higher_term():
    world = mesh("w00", "w01")
    overlay = world.tell("scheduler_changed", worker="w01", term=4, address="http://w01:8000")
    assert (overlay.term, overlay.scheduler) == (4, "http://w01:8000")


def test_what_was_heard_of_the_reductions_is_in_the_log():
    world = mesh("w00", "w01")
    overlay = world.tell("worker_draining", worker="w01", synchronization_seconds={"w00": 0.25, "w07": 1.0})
    assert overlay.worker("w00").synchronization_seconds == 0.25


@pytest.mark.parametrize(
    ("told", "field"),
    [
        ({"kind": "worker_joined", "worker": "w00"}, "address"),
        ({**JOINED, "state_bytes": 0}, "state_bytes"),
        ({**JOINED, "protocol": 0}, "protocol"),
        ({**JOINED, "address": "h"}, "address"),
        ({**JOINED, "address": ":1"}, "address"),
        ({**JOINED, "address": "h:0"}, "address"),
        ({"kind": "link_measured", "link": ("a", "b"), "alpha_seconds": 0.1}, "beta_seconds_per_byte"),
        ({"kind": "link_measured", "worker": "w00"}, "link"),
        ({"kind": "link_connected", "link": ("a", "a")}, "link[1]"),
        ({"kind": "scheduler_changed", "worker": "w00"}, "address"),
        ({**CHANGED, "address": "w01:8000"}, "address"),
        ({**CHANGED, "address": "http://w01:99999"}, "address"),
        ({"kind": "worker_failed", "worker": "w00", "incarnation": -1}, "incarnation"),
        ({"kind": "worker_failed", "worker": "w00", "term": 2**31}, "term"),
        ({**CHANGED, "overlay": replace(empty_overlay("llama"), generation=2**63 - 1)}, "overlay.generation"),
        ({**CHANGED, "overlay": replace(empty_overlay("llama"), generation=-1)}, "overlay.generation"),
        ({**CHANGED, "overlay": replace(empty_overlay("llama"), term=2**63 - 1)}, "overlay.term"),
        ({**CHANGED, "overlay": replace(empty_overlay("llama"), restarts=2**63 - 1)}, "overlay.restarts"),
    ],
)
def test_events_that_lack_something_or_cannot_be_are_refused(told, field):
    with pytest.raises(InvalidInputError) as refused:
        OverlayEvent(id="e", **{**told, "kind": OverlayEventKind(told["kind"])})
    assert refused.value.field == field


def test_who_has_failed_keeps_nobody_of_another_version_away():
    world = mesh("w00")
    world.tell("worker_failed", worker="w00")
    told = {"worker": "w01", "address": "w01:7000", "state_bytes": 1, "shard_bytes": 1, "protocol": 2}
    assert world.tell("worker_joined", **told).worker("w01").protocol == 2
    with pytest.raises(ReconfigurationError, match="is version 1 here and 2 with w01; run the Kintsugi that the others run"):
        world.join("w02", "w01")
