from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.matrix.clock import accounts, step_seconds
from kintsugi.matrix.events import Event, Kind
from kintsugi.runtime.checkpoints.advice import CheckpointRecord

step = partial(Event, kind=Kind.STEP, loss=0.0)
training = partial(Event, kind=Kind.TRAINING, workers=4)


def checkpoint(before: int, *, strategy: str = "blocking", snapshot: float = 0.1, write: float = 0.5, stall: float = 0.6):
    return CheckpointRecord(
        step=before,
        strategy=strategy,
        num_bytes=100,
        part_bytes=25,
        snapshot_seconds=snapshot,
        backpressure_seconds=max(stall - snapshot - write, 0.0),
        write_seconds=write,
        stall_seconds=stall,
        commit_seconds=0.0,
    )


def test_the_stall_of_a_checkpoint_is_taken_off_the_step_after_it():
    events = [training(at=10.0), step(at=11.0, step=0), step(at=12.6, step=1), Event(kind=Kind.TRAINED, at=13.2)]
    told = accounts(events, [checkpoint(1), checkpoint(2)], 15.0)
    assert told.wall.compute_seconds == pytest.approx(2.0)
    assert told.wall.snapshot_seconds == pytest.approx(0.2)
    assert told.wall.write_seconds == pytest.approx(1.0)
    assert told.wall.rest_seconds == pytest.approx(15.0 - 13.2 + 10.0)


def test_what_is_written_beside_the_training_is_no_stall_but_for_what_the_end_waits_for():
    overlapped = partial(checkpoint, strategy="overlapped", write=5.0, stall=0.3)
    events = [training(at=0.0), step(at=1.0, step=0), step(at=2.3, step=1), Event(kind=Kind.TRAINED, at=3.0)]
    wall = accounts(events, [overlapped(1), overlapped(2)], 3.0).wall
    assert wall.compute_seconds == pytest.approx(2.0)
    assert wall.snapshot_seconds == pytest.approx(0.2)
    assert wall.sync_seconds == pytest.approx(0.2)
    assert wall.write_seconds == pytest.approx(0.6)


def test_a_restart_counts_from_the_strike_and_steps_that_are_trained_again_are_repeated():
    events = [
        Event(kind=Kind.LAUNCHED, at=0.0),
        training(at=1.0),
        step(at=2.0, step=0),
        step(at=3.0, step=1),
        Event(kind=Kind.STRUCK, at=3.2, step=2),
        Event(kind=Kind.LAUNCHED, at=4.0),
        training(at=7.0, workers=3),
        step(at=8.0, step=1),
        step(at=9.0, step=2),
        Event(kind=Kind.TRAINED, at=9.0),
    ]
    told = accounts(events, [], 10.0)
    assert told.wall.restart_seconds == pytest.approx(3.8)
    assert told.recovery_seconds == pytest.approx((3.8,))
    assert told.wall.repeated_seconds == pytest.approx(1.2)
    assert told.wall.compute_seconds == pytest.approx(3.0)
    assert (told.trained_steps, told.world_sizes) == (4, (4, 3))


def test_the_start_is_a_part_where_it_is_known():
    events = [Event(kind=Kind.LAUNCHED, at=12.0), training(at=14.0), step(at=15.0, step=0), Event(kind=Kind.TRAINED, at=15.0)]
    wall = accounts(events, [], 7.0, began_at=10.0).wall
    assert (wall.start_seconds, wall.rest_seconds) == (4.0, 2.0)
    assert accounts(events, [], 7.0).wall.start_seconds == 0.0


def test_joining_stops_the_training_and_is_no_failure():
    events = [
        training(at=0.0),
        Event(kind=Kind.INTERRUPTED, at=0.5, lost=("w03",)),
        training(at=0.7, workers=3),
        step(at=1.7, step=0),
        Event(kind=Kind.INTERRUPTED, at=2.0),
        training(at=2.1, workers=4),
        step(at=3.1, step=1),
    ]
    told = accounts(events, [], 4.0)
    assert told.recovery_seconds == pytest.approx((0.2,))
    assert told.wall.restart_seconds == pytest.approx(0.3)
    assert told.wall.repeated_seconds == pytest.approx(0.8)
    assert told.world_sizes == (4, 3, 4)


def test_a_second_loss_belongs_to_the_stop_that_it_falls_into():
    lost = partial(Event, kind=Kind.INTERRUPTED)
    events = [training(at=0.0), lost(at=1.0, lost=("w03",)), lost(at=1.1, lost=("w02",)), training(at=1.5, workers=2)]
    assert accounts(events, [], 2.0).recovery_seconds == pytest.approx((0.5,))


@given(st.lists(st.sampled_from([*Kind]), max_size=30), st.data())
def test_no_moment_is_in_two_parts(kinds, data):
    """Whatever happens: the parts are no longer than the time between the first event and the last."""
    at, number, events = 0.0, 0, []
    for kind in kinds:
        at += data.draw(st.floats(0.0, 2.0))
        if kind is Kind.STEP:
            number = max(number + data.draw(st.integers(-2, 1)), 0)
        events.append(Event(kind=kind, at=at, step=number, workers=4))
    checkpoints = [checkpoint(before) for before in range(number + 2)]
    assert accounts(events, checkpoints, at + 1.0).wall.rest_seconds >= 1.0 - 1e-9


def test_steps_take_what_passes_between_their_ends_and_those_that_were_cut_are_left_out():
    events = [
        training(at=0.0),
        step(at=1.0, step=0),
        step(at=1.5, step=1),
        step(at=2.5, step=2),
        Event(kind=Kind.STRUCK, at=2.7, step=3),
        training(at=9.0),
        step(at=9.5, step=1),
        step(at=9.75, step=2),
    ]
    assert step_seconds(events) == {2: 0.25}
