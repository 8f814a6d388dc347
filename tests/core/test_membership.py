"""Events and the memberships they lead to."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import NotFoundError
from kintsugi.core.membership import HOST_EVENTS, LINK_EVENTS, LOSSES, RETURNS, WORKER_EVENTS, Event, EventKind, Membership
from tests.core import samples
from tests.core.refusals import refuses

CLUSTER = Cluster.uniform(6, workers_per_host=2)
ALL = Membership.of(CLUSTER)


def event(kind, **subject):
    return Event(kind=kind, id="e", generation=0, **subject)


def test_every_kind_speaks_of_exactly_one_subject():
    assert {*WORKER_EVENTS, *HOST_EVENTS, *LINK_EVENTS} == set(EventKind)
    assert len(WORKER_EVENTS) + len(HOST_EVENTS) + len(LINK_EVENTS) == len(EventKind)


@pytest.mark.parametrize("kind", EventKind)
def test_an_event_names_its_subject(kind):
    field = "worker" if kind in WORKER_EVENTS else "host" if kind in HOST_EVENTS else "link"
    with refuses(field, None, kind.value):
        event(kind)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "id"),
        ({"generation": -1}, "generation"),
        ({"incarnation": -1}, "incarnation"),
        ({"worker": "\t"}, "worker"),
        ({"observed_at": "yesterday"}, "observed_at"),
        ({"observed_at": "2026-01-31T12:00:00"}, "observed_at"),
        ({"deadline_seconds": -1.0}, "deadline_seconds"),
        ({"alpha_seconds": 90.0}, "alpha_seconds"),
        ({"beta_seconds_per_byte": 1e9}, "beta_seconds_per_byte"),
        ({"speed_ratio": 0.0}, "speed_ratio"),
        ({"speed_ratio": 1e308}, "speed_ratio"),
        ({"link": ("h00", "h00")}, "link[1]"),
        ({"kind": EventKind.STRAGGLER}, "speed_ratio"),
    ],
)
def test_event_refuses(changes, field):
    with refuses(field):
        Event(**{"kind": EventKind.WORKER_FAILED, "id": "e", "generation": 0, "worker": "w00", **changes})


@pytest.mark.parametrize("moment", ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456+01:00"])
def test_event_takes_rfc_3339(moment):
    assert event(EventKind.WORKER_FAILED, worker="w00", observed_at=moment).observed_at == moment


@pytest.mark.parametrize("kind", [EventKind.WORKER_FAILED, EventKind.DEVICE_FAILED, EventKind.WORKER_DRAINING])
def test_a_lost_worker_may_not_be_used(kind):
    assert ALL.after(event(kind, worker="w03")).alive == ("w00", "w01", "w02", "w04", "w05")


def test_a_draining_worker_serves_until_it_fails_or_returns():
    draining = ALL.after(event(EventKind.WORKER_DRAINING, worker="w03", deadline_seconds=30.0))
    both = draining.after(event(EventKind.WORKER_DRAINING, worker="w01"))
    assert (draining.draining, both.draining) == (("w03",), ("w01", "w03"))
    assert both.after(event(EventKind.WORKER_FAILED, worker="w03")).draining == ("w01",)
    assert both.after(event(EventKind.WORKER_JOINED, worker="w01")) == draining
    assert ALL.after(event(EventKind.WORKER_DRAINING, worker="w03", deadline_seconds=0.0)).draining == ()
    assert ALL.after(event(EventKind.WORKER_FAILED, worker="w03")).draining == ()


def test_who_leaves_may_stay_after_all():
    draining = ALL.after(event(EventKind.WORKER_DRAINING, worker="w03"))
    staying = event(EventKind.WORKER_STAYING, worker="w03")
    assert draining.after(staying) == ALL == ALL.after(staying)
    lost = ALL.after(event(EventKind.WORKER_FAILED, worker="w03"))
    assert lost.after(staying) == lost


def test_state_goes_with_those_who_serve_no_more_and_those_who_come_anew():
    draining = ALL.after(event(EventKind.WORKER_DRAINING, worker="w03"))
    assert ALL.bereft_by(event(EventKind.WORKER_DRAINING, worker="w03")) == set()
    assert ALL.bereft_by(event(EventKind.WORKER_DRAINING, worker="w03", deadline_seconds=0.0)) == {"w03"}
    assert draining.bereft_by(event(EventKind.WORKER_FAILED, worker="w03")) == {"w03"}
    assert draining.bereft_by(event(EventKind.HOST_FAILED, host="h01")) == {"w02", "w03"}
    assert draining.bereft_by(event(EventKind.WORKER_JOINED, worker="w03")) == {"w03"}
    assert draining.bereft_by(event(EventKind.HOST_JOINED, host="h01")) == {"w03"}
    assert draining.bereft_by(event(EventKind.WORKER_STAYING, worker="w03")) == set()
    assert draining.bereft_by(event(EventKind.RECOVERED, worker="w03")) == set()


def test_a_lost_host_takes_all_its_workers():
    assert ALL.after(event(EventKind.HOST_FAILED, host="h01")).alive == ("w00", "w01", "w04", "w05")


@pytest.mark.parametrize(
    ("kind", "subject", "field"),
    [
        (EventKind.WORKER_FAILED, {"worker": "w99"}, "worker"),
        (EventKind.STRAGGLER, {"worker": "w99", "speed_ratio": 0.5}, "worker"),
        (EventKind.HOST_FAILED, {"host": "h99"}, "host"),
        (EventKind.HOST_JOINED, {"host": "h99"}, "host"),
        (EventKind.LINK_DEGRADED, {"link": ("h00", "h99")}, "link"),
    ],
)
def test_strangers_are_not_found(kind, subject, field):
    with pytest.raises(NotFoundError) as caught:
        ALL.after(event(kind, **subject))
    assert caught.value.field == field
    assert "99" in caught.value.value
    assert "it has w00, w01, w02" in caught.value.message if field == "worker" else "it has h00, h01" in caught.value.message


def test_those_who_return_take_their_old_place():
    lost = ALL.after(event(EventKind.HOST_FAILED, host="h00"))
    assert lost.after(event(EventKind.WORKER_JOINED, worker="w01")).alive == ("w01", "w02", "w03", "w04", "w05")
    assert lost.after(event(EventKind.HOST_JOINED, host="h00")) == ALL


def test_a_new_worker_joins_at_the_end():
    joined = ALL.after(event(EventKind.WORKER_JOINED, worker="w06", host="h03", speed_ratio=0.5))
    assert joined.alive == (*ALL.alive, "w06")
    worker = joined.cluster.by_id["w06"]
    assert (worker.host, worker.speed_ratio) == ("h03", 0.5)
    assert ALL.after(event(EventKind.WORKER_JOINED, worker="w06")).cluster.by_id["w06"].host == "h-w06"


def test_who_comes_back_elsewhere_is_there_and_as_fast_as_it_says():
    slow = ALL.after(event(EventKind.STRAGGLER, worker="w03", speed_ratio=0.25)).after(event(EventKind.WORKER_FAILED, worker="w03"))
    elsewhere = slow.after(event(EventKind.WORKER_JOINED, worker="w03", host="h77"))
    assert (elsewhere.cluster.by_id["w03"].host, elsewhere.cluster.by_id["w03"].speed_ratio) == ("h77", 1.0)
    assert elsewhere.alive == ALL.alive
    assert "w03" in elsewhere.after(event(EventKind.HOST_FAILED, host="h01")).alive
    assert "w03" not in elsewhere.after(event(EventKind.HOST_FAILED, host="h77")).alive
    assert slow.after(event(EventKind.WORKER_JOINED, worker="w03")).cluster.by_id["w03"].speed_ratio == 0.25
    assert slow.after(event(EventKind.WORKER_JOINED, worker="w03", host="h01", speed_ratio=0.5)).cluster.by_id["w03"] == replace(
        ALL.cluster.by_id["w03"], speed_ratio=0.5
    )


def test_who_comes_to_others_host_shares_their_failure_domains():
    racks = {"h00": ("rack-a",), "h01": ("rack-b",), "h02": ("rack-c",)}
    workers = tuple(replace(worker, failure_domains=racks[worker.host]) for worker in ALL.cluster.workers)
    moved = Membership.of(ALL.cluster.with_workers(workers)).after(event(EventKind.WORKER_JOINED, worker="w00", host="h02"))
    assert moved.cluster.by_id["w00"].failure_domains == ("rack-c",)


def test_who_comes_back_elsewhere_has_the_memory_it_had():
    small = replace(ALL.cluster.by_id["w00"], memory_bytes=10**9)
    moved = Membership.of(ALL.cluster.with_workers((small, *ALL.cluster.workers[1:]))).after(
        event(EventKind.WORKER_JOINED, worker="w00", host="h02")
    )
    assert moved.cluster.by_id["w00"].memory_bytes == 10**9


def test_a_straggler_slows_down_and_recovers():
    slow = ALL.after(event(EventKind.STRAGGLER, worker="w02", speed_ratio=0.5))
    assert [worker.speed_ratio for worker in slow.cluster.workers] == [1.0, 1.0, 0.5, 1.0, 1.0, 1.0]
    assert slow.alive == ALL.alive
    assert slow.after(event(EventKind.RECOVERED, worker="w02")) == ALL
    assert slow.after(event(EventKind.RECOVERED, worker="w02", speed_ratio=0.9)).cluster.by_id["w02"].speed_ratio == 0.9


def test_a_degraded_link_costs_what_was_measured_until_it_is_connected_anew():
    measured = {"alpha_seconds": 0.25, "beta_seconds_per_byte": 1e-6}
    degraded = ALL.after(event(EventKind.LINK_DEGRADED, link=("h01", "h00"), **measured))
    assert [(link.between, link.alpha_seconds) for link in degraded.cluster.links] == [(("h01", "h00"), 0.25)]
    assert degraded.after(event(EventKind.LINK_DEGRADED, link=("h00", "h01"), **measured)).cluster.links[1:] == ()
    assert degraded.after(event(EventKind.LINK_CONNECTED, link=("h00", "h01"))) == ALL
    assert ALL.after(event(EventKind.LINK_DEGRADED, link=("h00", "h01"))) is ALL
    assert degraded.after(event(EventKind.LINK_DISCONNECTED, link=("h00", "h01"))) is degraded


@given(st.lists(samples.events(), max_size=8))
def test_any_history_leaves_a_consistent_membership(history):
    membership = ALL
    for happened in history:
        membership = membership.after(happened)
        assert set(membership.alive) <= set(membership.cluster.by_id)
        assert list(membership.alive) == sorted(membership.alive, key=membership.cluster.order.__getitem__)
        assert membership.after(happened) == membership, "the same event twice changes nothing"


@given(st.permutations([event(EventKind.WORKER_FAILED, worker=f"w0{n}") for n in range(4)]))
def test_losses_commute(history):
    membership = ALL
    for happened in history:
        membership = membership.after(happened)
    assert membership.alive == ("w04", "w05")


def test_losses_and_returns_are_different_kinds():
    assert not LOSSES & RETURNS
    assert replace(ALL, alive=()).after(event(EventKind.HOST_JOINED, host="h02")).alive == ("w04", "w05")
