from structlog.testing import capture_logs

from kintsugi.runtime.control.recovery import Recoveries
from tests.builders import grid_plan

PLAN = grid_plan(3, [1], [2])


def test_losses_during_a_recovery_belong_to_it():
    recoveries = Recoveries()
    recoveries.lost("w01", 1.0, 2.0)
    recoveries.lost("w02", 3.0, 4.0)
    recoveries.note(planned_at=5.0, quiesced_at=None, generation=2)
    recoveries.note(planned_at=None)
    recoveries.end(PLAN)
    (timeline,) = recoveries.all
    assert (timeline.lost, timeline.failed_at, timeline.detected_at, timeline.planned_at) == (["w01", "w02"], 1.0, 2.0, 5.0)
    recoveries.lost("w03", None, 9.0)
    assert [timeline.lost for timeline in recoveries.all] == [["w01", "w02"], ["w03"]]
    assert recoveries.all[1].began_at == 9.0


def test_the_end_of_a_recovery_is_told_and_of_none_there_is_nothing_to_tell():
    recoveries = Recoveries()
    with capture_logs() as logs:
        recoveries.end(PLAN)
        recoveries.lost("w01", 1.0, 2.0)
        recoveries.note(resumed_at=3.5)
        recoveries.end(PLAN)
    told = {"policy": PLAN.policy.value, "workers": len(PLAN.workers), "seconds": 2.5, "lost": ["w01"]}
    assert logs == [{"event": "training goes on", "log_level": "info", **told}]


def test_a_loss_while_workers_join_begins_a_recovery_of_both():
    recoveries = Recoveries()
    recoveries.changed(["w04"], [], 1.0, 0.5)
    recoveries.lost("w01", 2.0, 3.0)
    (timeline,) = recoveries.all
    assert (timeline.joined, timeline.lost, timeline.began_at, timeline.planned_at) == (["w04"], ["w01"], 2.0, None)


def test_what_differs_and_who_is_lost_or_joins_meanwhile_belong_to_one_recovery():
    recoveries = Recoveries()
    recoveries.changed(["w04"], ["w05"], 1.0, 0.5)
    recoveries.differed([2], 3.0)
    (timeline,) = recoveries.all
    assert (timeline.joined, timeline.left, timeline.layers) == (["w04"], ["w05"], [2])
    assert (timeline.began_at, timeline.planned_at) == (3.0, 3.0)
    recoveries.lost("w01", 4.0, 5.0)
    (timeline,) = recoveries.all
    assert (timeline.joined, timeline.left, timeline.layers, timeline.lost) == (["w04"], ["w05"], [2], ["w01"])
    assert (timeline.began_at, timeline.planned_at) == (4.0, None)
    recoveries.differed([2, 3], 6.0)
    assert recoveries.all == [timeline]
    assert (timeline.lost, timeline.layers, timeline.began_at) == (["w01"], [2, 3], 4.0)


def test_the_first_step_belongs_to_the_latest_recovery_alone():
    recoveries = Recoveries()
    assert recoveries.committed(1.0) is None
    recoveries.lost("w01", 2.0, 3.0)
    recoveries.end(PLAN)
    assert recoveries.committed(4.0) is recoveries.all[0]
    assert recoveries.committed(5.0) is None
    assert recoveries.all[0].phase_seconds() == {"detected": 1.0, "first_step": 2.0}


def test_events_have_the_names_of_the_resiliency_extension():
    recoveries = Recoveries()
    recoveries.lost("w01", 1.0, 1.5)
    recoveries.note(quiesced_at=2.0, regrouped_at=3.0, transferred_at=4.0, resumed_at=5.0)
    assert recoveries.all[0].event_seconds() == {
        "failure_detected": 0.5,
        "rendezvous_started": 1.0,
        "rendezvous_completed": 2.0,
        "worker_start_started": 3.0,
        "worker_start_completed": 4.0,
    }
    recoveries.end(PLAN)
    recoveries.changed(["w04"], [], 9.0, 9.5)
    assert recoveries.all[1].event_seconds() == {}
