"""What happens to workers: deterministic, independent streams, with the rates that were asked for."""

from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.simulator.faults import Faults, Incident, draw, settled

DAY = 86_400.0
OFTEN = Faults(worker_mtbf_seconds=DAY, repair_seconds=3600.0)


def test_the_same_seed_gives_the_same_incidents_and_another_one_others():
    cluster = Cluster.uniform(8)
    assert draw(OFTEN, cluster, 3 * DAY, 1) == draw(OFTEN, cluster, 3 * DAY, 1)
    assert draw(OFTEN, cluster, 3 * DAY, 1) != draw(OFTEN, cluster, 3 * DAY, 2)


def test_more_workers_change_nothing_for_those_that_were_there():
    few, many = (draw(OFTEN, Cluster.uniform(count), 3 * DAY, 0) for count in (8, 10))
    known = {f"w{n:02d}" for n in range(8)}
    assert [(i.at_seconds, i.lost, i.joined) for i in many if known.intersection(i.lost + i.joined)] == [
        (i.at_seconds, i.lost, i.joined) for i in few
    ]


def test_failures_come_at_the_rate_that_was_asked_for():
    incidents = draw(Faults(worker_mtbf_seconds=DAY, repair_seconds=1.0), Cluster.uniform(40), 50 * DAY, 0)
    assert sum(bool(i.lost) for i in incidents) == pytest.approx(2000, rel=0.1)


def test_what_is_broken_is_repaired_before_it_fails_again():
    away = set()
    for incident in draw(OFTEN, Cluster.uniform(8), 30 * DAY, 0):
        assert not away.intersection(incident.lost)
        assert away.issuperset(incident.joined)
        away = (away | set(incident.lost)) - set(incident.joined)


def test_without_repairs_every_worker_fails_once():
    lost = [worker for i in draw(Faults(worker_mtbf_seconds=10.0), Cluster.uniform(8), DAY, 0) for worker in i.lost]
    assert sorted(lost) == [f"w{n:02d}" for n in range(8)]


def test_hosts_take_all_their_workers():
    incidents = draw(Faults(host_mtbf_seconds=DAY), Cluster.uniform(8, workers_per_host=4), 30 * DAY, 0)
    assert sorted(i.lost for i in incidents) == [("w00", "w01", "w02", "w03"), ("w04", "w05", "w06", "w07")]


def test_exactly_so_many_failures_of_hosts_that_are_there():
    incidents = draw(Faults(num_failures=419, repair_seconds=3600.0), Cluster.uniform(2048), 54 * DAY, 3)
    assert sum(len(i.lost) for i in incidents) == 419


def test_more_failures_than_hosts_need_repairs_in_time():
    faults = Faults(num_failures=9)
    with pytest.raises(InvalidInputError, match="repair_seconds") as caught:
        draw(faults, Cluster.uniform(8), DAY, 0)
    assert (caught.value.field, caught.value.value) == ("faults.num_failures", 9)
    assert sum(len(i.lost) for i in draw(replace(faults, repair_seconds=1.0), Cluster.uniform(8), DAY, 0)) == 9
    assert sum(len(i.lost) for i in draw(replace(faults, num_failures=8), Cluster.uniform(8), DAY, 0)) == 8


def test_stragglers_become_slow_and_recover():
    faults = Faults(straggler_mtbf_seconds=DAY, straggler_speed_ratio=0.5)
    speeds = [ratio for i in draw(faults, Cluster.uniform(1), 20 * DAY, 0) for _, ratio in i.speeds]
    assert speeds[::2] == [0.5] * len(speeds[::2])
    assert speeds[1::2] == [1.0] * len(speeds[1::2])


def test_a_worker_that_two_causes_took_away_needs_both_mended():
    events = [
        Incident(at_seconds=1, lost=("a",)),
        Incident(at_seconds=2, lost=("a", "b")),
        Incident(at_seconds=3, joined=("a",)),
        Incident(at_seconds=4, joined=("a", "b")),
    ]
    assert [(i.at_seconds, i.lost, i.joined) for i in settled(events)] == [(1, ("a",), ()), (2, ("b",), ()), (4, (), ("a", "b"))]


def test_events_of_one_moment_are_one_incident():
    events = [Incident(at_seconds=1, lost=("a",)), Incident(at_seconds=1, lost=("b",)), Incident(at_seconds=2, joined=("b",))]
    assert [i.lost for i in settled(events)] == [("a", "b"), ()]


def test_the_jobs_mean_time_follows_from_workers_and_hosts():
    faults = Faults(worker_mtbf_seconds=100.0, host_mtbf_seconds=200.0)
    assert faults.mtbf_seconds(10, 5, 1.0) == pytest.approx(1 / (10 / 100 + 2 / 200))
    assert faults.scaled(50.0, 10, 5).mtbf_seconds(10, 5, 1.0) == pytest.approx(50.0)
    assert Faults(num_failures=4).mtbf_seconds(10, 1, 100.0) == 25.0
    assert Faults().scaled(50.0, 10, 1).mtbf_seconds(10, 1, 1.0) == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("faults", "workers"),
    [
        (Faults(worker_mtbf_seconds=DAY), 1.0),
        (Faults(host_mtbf_seconds=DAY), 4.0),
        (Faults(num_failures=3), 4.0),
        (Faults(worker_mtbf_seconds=DAY, host_mtbf_seconds=DAY / 4), 2.5),
    ],
)
def test_failures_of_hosts_take_all_their_workers(faults, workers):
    assert faults.workers_per_failure(4) == pytest.approx(workers)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"worker_mtbf_seconds": 0.0}, "worker_mtbf_seconds"),
        ({"repair_seconds": float("nan")}, "repair_seconds"),
        ({"num_failures": 3, "worker_mtbf_seconds": 1.0}, "num_failures"),
        ({"straggler_speed_ratio": -1.0}, "straggler_speed_ratio"),
    ],
)
def test_bad_rates_are_refused_by_name(changes, field):
    with pytest.raises(InvalidInputError) as caught:
        Faults(**changes)
    assert caught.value.field == field
