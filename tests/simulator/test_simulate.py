"""A job's course, reckoned by hand: four workers take 3 s a step, three 4 s, two 6 s; 8 micro-batches of 2 samples each."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster
from kintsugi.simulator.adviser import Adviser
from kintsugi.simulator.faults import Faults, Incident, settled
from kintsugi.simulator.simulate import simulate
from tests.simulator import fakes
from tests.simulator.fakes import Flat, job

SAMPLES = 16
MICROBATCH_SIZE = 2


def run(incidents, policy=None, workers=4, duration=100.0, watch=lambda: None, **changes):
    adviser = Adviser(policy or Flat(), job(**changes))
    return simulate(adviser, Cluster.uniform(workers), incidents, duration_seconds=duration, seed=0, watch=watch)


def at(seconds, **what):
    return Incident(
        at_seconds=seconds, **{name: value if name == "notice_seconds" else tuple(value) for name, value in what.items()}
    )


def test_without_incidents_every_complete_step_counts():
    outcome = run([])
    assert outcome.num_samples == 33 * SAMPLES
    assert outcome.stopped_because is None
    assert outcome.seconds["compute"] == pytest.approx(66)
    assert outcome.seconds["bubble"] == pytest.approx(33)
    assert outcome.seconds["lost"] == pytest.approx(1)


def test_a_failure_loses_the_step_under_way_and_the_rest_is_slower():
    outcome = run([at(31, lost=["w01"])])
    # 10 steps to 30 s, 1 s lost, 10 s of transition to 41 s, 14 steps of 4 s to 97 s, 3 s lost.
    assert outcome.num_samples == (10 + 14) * SAMPLES
    assert outcome.seconds["transition"] == pytest.approx(10)
    assert outcome.seconds["lost"] == pytest.approx(4)
    assert outcome.num_transitions == 1


def test_planning_takes_its_time():
    assert run([at(31, lost=["w01"])], planning_seconds=4.0).seconds["transition"] == pytest.approx(14)


def test_a_loss_that_was_announced_lets_the_step_end_and_needs_no_detection():
    outcome = run([at(31, lost=["w01"], notice_seconds=2.0)])
    # From the step's end at 30 s to the loss, and 9 s more, for there is nothing to detect; 15 steps of 4 s.
    assert outcome.seconds["transition"] == pytest.approx(1 + 9)
    assert outcome.seconds["lost"] == pytest.approx(0)
    assert outcome.num_samples == (10 + 15) * SAMPLES


def test_a_notice_that_is_too_short_does_not_save_the_step():
    outcome = run([at(32, lost=["w01"], notice_seconds=1.5)])
    assert outcome.seconds["lost"] == pytest.approx(2 + 3)
    assert outcome.seconds["transition"] == pytest.approx(9)


def test_a_second_failure_gives_the_transition_up():
    outcome = run([at(31, lost=["w01"]), at(36, lost=["w02"])])
    # 5 s and then 10 s of transition to 46 s; 9 steps of 6 s.
    assert outcome.seconds["transition"] == pytest.approx(15)
    assert outcome.num_samples == (10 + 9) * SAMPLES
    assert outcome.num_transitions == 2


def test_an_arrival_waits_for_the_end_of_the_step():
    outcome = run([at(10, joined=["w04"])], workers=3)
    # 3 steps of 4 s to 12 s, 9 s of transition to 21 s, 26 steps of 3 s.
    assert outcome.num_samples == (3 + 26) * SAMPLES
    assert outcome.seconds["transition"] == pytest.approx(9)
    assert outcome.seconds["lost"] == pytest.approx(1)


def test_an_arrival_waits_for_the_end_of_a_checkpoint_that_rounding_makes_shorter():
    assert (12.0 + 0.1) - 12.0 < 0.1
    policy = Flat(interval_seconds=9.0)
    outcome = run([at(12.05, joined=["w04"])], policy, workers=3, duration=30.15, checkpoint_pause_seconds=0.1)
    # 3 steps of 4 s to 12 s, the checkpoint to 12.1 s, 9 s of transition to 21.1 s, 3 steps of 3 s to 30.1 s.
    assert outcome.num_samples == (3 + 3) * SAMPLES
    assert outcome.seconds["checkpoint"] == pytest.approx(0.1)
    assert outcome.seconds["transition"] == pytest.approx(9)
    assert outcome.seconds["lost"] == pytest.approx(0.05)


@pytest.mark.parametrize("step", [0.01 * number for number in range(1, 12)])
def test_an_arrival_waits_for_the_end_of_one_step_however_late_it_is_and_however_short_the_step(monkeypatch, step):
    """At 4 million seconds the clock's last digit is half a nanosecond."""
    monkeypatch.setattr(fakes, "WORK", 3 * step)
    outcome = run([at(4e6, joined=["w04"])], workers=3, duration=4e6 + 9.0)
    # The 9 s of transition begin a step later at the most, and go on to the end.
    assert 9.0 - step - 1e-6 <= outcome.seconds["transition"] <= 9.0 + 1e-6
    assert outcome.seconds["lost"] == 0.0
    assert sum(outcome.seconds.values()) == pytest.approx(4e6 + 9.0, abs=1e-6)


def test_who_watches_a_run_is_asked_before_incidents_and_before_what_was_put_off():
    calls = []
    run([at(31, lost=["w01"]), at(35, joined=["w09"])], watch=lambda: calls.append(None))
    # Before both incidents, and at 41 s, when the transition is over that the second one waits for.
    assert len(calls) == 3


def test_an_arrival_that_is_not_needed_disturbs_nothing():
    assert run([at(10, joined=["w04"])]).num_samples == 33 * SAMPLES


def test_losing_an_idle_worker_disturbs_nothing():
    outcome = run([at(10, lost=["w04"])], workers=5)
    assert outcome.num_samples == 33 * SAMPLES
    assert outcome.num_transitions == 0


def test_an_idle_worker_stands_in_and_a_lost_one_comes_back_as_another():
    outcome = run([at(31, lost=["w00"]), at(50, joined=["w00"]), at(60, lost=["w04"])], workers=5)
    # 41 to 59 s: 6 steps and 1 s lost; 70 to 100 s: 10 steps.
    assert outcome.num_transitions == 2
    assert outcome.num_samples == (10 + 6 + 10) * SAMPLES


def test_a_worker_that_goes_and_comes_in_one_moment_has_lost_its_state():
    outcome = run([at(31, lost=["w00"], joined=["w00"])])
    # 10 steps to 30 s, 1 s lost, 10 s of transition to 41 s, and 19 steps of four workers again.
    assert outcome.num_transitions == 1
    assert outcome.num_samples == (10 + 19) * SAMPLES


def test_an_arrival_during_a_transition_waits_for_its_end():
    outcome = run([at(31, lost=["w01"]), at(35, joined=["w09"])])
    # Transition to 41 s, at once another of 9 s to 50 s, 16 steps of 3 s.
    assert outcome.seconds["transition"] == pytest.approx(19)
    assert outcome.num_samples == (10 + 16) * SAMPLES


def test_a_failure_before_the_step_ends_supersedes_the_arrival():
    outcome = run([at(9.5, joined=["w04"]), at(10, lost=["w00"])], workers=3)
    # To 8 s, 2 s lost, 10 s of transition to 20 s, then 4 s a step on three workers again.
    assert outcome.num_transitions == 1
    assert outcome.num_samples == (2 + 20) * SAMPLES


def test_checkpoints_pause_and_a_rollback_repeats_what_came_after():
    policy = Flat(rolls_back=True, interval_seconds=9.0)
    outcome = run([at(31, lost=["w01"])], policy, duration=41.0, checkpoint_pause_seconds=2.0)
    # 3 steps to 9 s, checkpoint to 11 s, 3 steps to 20 s, checkpoint to 22 s, 3 steps to 31 s that are lost.
    assert outcome.num_samples == 6 * SAMPLES
    assert outcome.seconds["checkpoint"] == pytest.approx(4)
    assert outcome.seconds["lost"] == pytest.approx(9)
    assert outcome.seconds["compute"] == pytest.approx(12)
    assert outcome.num_rollbacks == 1


@pytest.mark.parametrize(("lost_at", "kept"), [(12.5, 0), (20, 3), (31, 3)])
def test_the_checkpoint_that_a_change_begins_with_counts_once_it_is_complete(lost_at, kept):
    policy = Flat(rolls_back=True, saves=True)
    outcome = run([at(10, joined=["w04"]), at(lost_at, lost=["w01"])], policy, 3, lost_at + 1, checkpoint_pause_seconds=2.0)
    # 3 steps of 4 s to 12 s, the checkpoint to 14 s, 9 s of transition to 21 s, 3 steps of 3 s to 30 s.
    assert outcome.num_samples == kept * SAMPLES
    assert outcome.num_rollbacks == 1


def test_too_few_workers_stop_the_job_until_others_come():
    outcome = run([at(31, lost=["w01"]), at(35, joined=["w09"])], Flat(fewest=4), duration=200.0)
    # Without checkpoints all is lost; stopped to 35 s, and restarted by 35 + 60 s: an arrival needs no detection.
    assert outcome.num_samples == 35 * SAMPLES
    assert outcome.seconds["lost"] == pytest.approx(31)
    assert outcome.seconds["stopped"] == pytest.approx(4)
    assert outcome.seconds["transition"] == pytest.approx(60)
    assert outcome.trained[:3] == ((0.0, 0), (30.0, 10 * SAMPLES // MICROBATCH_SIZE), (31, 0))


def test_a_job_that_never_runs_is_stopped_all_the_time():
    outcome = run([at(60, lost=["w00", "w01", "w02", "w03"])], Flat(fewest=9))
    assert outcome.seconds["stopped"] == 100.0
    assert outcome.num_samples == 0
    assert outcome.stopped_because == "alive: too few"


def test_speeds_reach_the_policy():
    policy = Flat()
    slowing = job(faults=Faults(worker_mtbf_seconds=1e5, straggler_mtbf_seconds=1e5))
    simulate(Adviser(policy, slowing), Cluster.uniform(4), [at(10, speeds=[("w02", 0.5)])], duration_seconds=50.0, seed=0)
    assert [policy.asked[0].cluster.by_id[worker].speed_ratio for worker in ("w01", "w02")] == [1.0, 0.5]


SLOWING = Faults(worker_mtbf_seconds=14_400.0, straggler_mtbf_seconds=1e5)


@pytest.mark.parametrize(
    ("speeds", "ends"),
    [
        # A third of a step is done at 10 s; the rest takes 4 s in the place of 2. At 22 s a third is done of another one.
        ([(10, 0.5), (22, 1.0)], [3, 6, 9, 14, 20, 24, 27, 30]),
        # The second third of the step that began at 9 s takes 2 s, the last one 1 s.
        ([(10, 0.5), (12, 1.0)], [3, 6, 9, 13, 16, 19, 22, 25, 28, 31]),
        # The second third takes 20 s.
        ([(10, 0.05), (30, 1.0)], [3, 6, 9, 31]),
        ([(9, 0.5), (15, 1.0)], [3, 6, 9, 15, 18, 21, 24, 27, 30]),
    ],
)
def test_a_worker_that_changes_its_speed_changes_what_is_left_of_the_step(speeds, ends):
    incidents = [at(moment, speeds=[("w02", ratio)]) for moment, ratio in speeds]
    outcome = run(incidents, duration=31.5, faults=SLOWING)
    trained = [(moment, count) for moment, count in outcome.trained if count]
    assert [count for _, count in trained] == sorted(count for _, count in trained)
    for moment, count in trained:
        assert count == 8 * sum(end <= moment + 1e-9 for end in ends)
    assert outcome.num_samples == len(ends) * SAMPLES
    assert outcome.seconds["compute"] == pytest.approx(ends[-1] * 2 / 3)
    assert outcome.seconds["bubble"] == pytest.approx(ends[-1] / 3)
    assert outcome.seconds["lost"] == pytest.approx(31.5 - ends[-1])
    assert sum((s.stop_seconds - s.start_seconds) * s.microbatches_per_second for s in outcome.spans) == pytest.approx(
        8 * len(ends)
    )


def test_an_arrival_waits_for_the_end_of_a_step_that_became_longer():
    incidents = [at(9, speeds=[("w02", 0.5)]), at(10, joined=["w04"])]
    outcome = run(incidents, workers=3, duration=30.0, faults=SLOWING)
    # A quarter of 4 s and three quarters of 8 s: to 15 s; 9 s of transition to 24 s, and a step of 6 s for four workers.
    assert outcome.num_samples == (2 + 1 + 1) * SAMPLES
    assert outcome.seconds["transition"] == pytest.approx(9)


def test_a_loss_loses_the_whole_step_that_became_longer():
    outcome = run([at(10, speeds=[("w02", 0.5)]), at(13, lost=["w02"])], duration=27.5, faults=SLOWING)
    # From 9 s on; 10 s of transition to 23 s; three workers of full speed take 4 s.
    assert outcome.num_samples == (3 + 1) * SAMPLES
    assert outcome.seconds["lost"] == pytest.approx(4 + 0.5)


@settings(max_examples=100, deadline=None)
@given(changes=st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.01, 4.0)), max_size=12), duration=st.floats(1.0, 200.0))
def test_as_many_steps_are_trained_as_the_speeds_of_all_times_make(changes, duration):
    changes = sorted({moment: ratio for moment, ratio in changes if moment < duration}.items())
    outcome = run([at(m, speeds=[("w02", ratio)]) for m, ratio in changes], duration=duration, faults=SLOWING)
    stretches = zip([(0.0, 1.0), *changes], [*(moment for moment, _ in changes), duration], strict=True)
    steps = sum((stop - start) * min(1.0, ratio) / 3.0 for (start, ratio), stop in stretches)
    assert outcome.num_samples / SAMPLES == pytest.approx(steps - 0.5, abs=0.5 + 1e-6)
    assert sum(outcome.seconds.values()) == pytest.approx(duration)


def test_a_trace_begins_without_workers():
    incidents = [at(5, joined=["a", "b"]), at(80, joined=["c", "d"])]
    outcome = simulate(Adviser(Flat(), job()), Cluster.uniform(4), incidents, duration_seconds=100.0, seed=0, is_traced=True)
    # Stopped to 5 s, started by 65 s, 3 steps of 6 s to 83 s, 9 s of transition, 2 steps of 3 s, 2 s lost.
    assert outcome.live == ((0.0, 0), (5, 2), (80, 4))
    assert outcome.num_samples == (3 + 2) * SAMPLES
    assert outcome.seconds["stopped"] == pytest.approx(5)
    assert outcome.seconds["transition"] == pytest.approx(69)
    assert outcome.num_rollbacks == 0


def test_a_job_that_stopped_rolls_back_once_when_it_starts_again():
    incidents = [at(5, joined=["a"]), at(20, lost=["a"]), at(25, joined=["b"]), at(190, lost=["b"]), at(195, joined=["c"])]
    outcome = simulate(Adviser(Flat(), job()), Cluster.uniform(4), incidents, duration_seconds=300.0, seed=0, is_traced=True)
    # Started for the first time at 5 and, as that was given up, at 25 s; running from 85 s on; begun anew at 195 s.
    assert outcome.num_transitions == 3
    assert outcome.num_rollbacks == 1


WORKERS = st.sampled_from([f"w{n:02d}" for n in range(6)])
EVENTS = st.lists(
    st.tuples(st.floats(0.0, 300.0), st.booleans(), st.sets(WORKERS, min_size=1, max_size=3), st.floats(0.0, 5.0)), max_size=12
)


@settings(max_examples=100, deadline=None)
@given(events=EVENTS, rolls_back=st.booleans(), interval=st.sampled_from([None, 7.0, 50.0]), pause=st.sampled_from([0.0, 2.5]))
def test_every_second_is_in_one_account_and_every_sample_in_one_step(events, rolls_back, interval, pause):
    incidents = settled(
        at(moment, notice_seconds=notice, **({"lost": workers} if is_loss else {"joined": workers}))
        for moment, is_loss, workers, notice in events
    )
    policy = Flat(rolls_back=rolls_back, interval_seconds=interval, fewest=2)
    outcome = run(incidents, policy, workers=6, duration=300.0, checkpoint_pause_seconds=pause)
    assert sum(outcome.seconds.values()) == pytest.approx(300.0, abs=1e-6)
    assert all(seconds >= -1e-9 for seconds in outcome.seconds.values())
    assert outcome.num_samples % SAMPLES == 0
    assert outcome.num_samples / SAMPLES * 3.0 <= outcome.seconds["compute"] + outcome.seconds["bubble"] + 1e-6
    assert all(span.start_seconds < span.stop_seconds for span in outcome.spans)
    assert outcome.spans[-1].stop_seconds == pytest.approx(300.0)
    moments, counts = zip(*outcome.trained, strict=True)
    assert list(moments) == sorted(moments)
    assert counts[-1] * MICROBATCH_SIZE == outcome.num_samples
    assert list(counts) == sorted(counts) or outcome.seconds["lost"] > 0
