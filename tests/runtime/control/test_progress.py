"""What was trained so far, and how a long run is seen to move."""

import math

from structlog.testing import capture_logs

from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.messages import StepDone


def test_a_long_run_tells_every_half_minute_where_it_is():
    now = [0.0]
    progress = Progress(lambda: now[0])
    with capture_logs() as logs:
        for step in range(10):
            now[0] += 7.0
            progress.take(StepDone(1, step, 2.5 - step, 7.0, now[0], (1,)))
    assert [(log["event"], log["step"], log["loss"], log["step_seconds"]) for log in logs] == [
        ("trains", 4, -1.5, 7.0),
        ("trains", 9, -6.5, 7.0),
    ]
    assert progress.next_step == 10
    progress.rewind(3)
    assert progress.next_step == 3


def test_the_first_loss_that_is_no_number_is_warned_of_at_once():
    progress = Progress(lambda: 0.0)
    with capture_logs() as logs:
        for step, loss in enumerate([2.5, math.nan, math.inf, 2.5]):
            progress.take(StepDone(1, step, loss, 7.0, 0.0, (1,)))
            progress.take(StepDone(1, step, loss, 7.0, 0.0, (1,)))
    assert [(log["log_level"], log["step"]) for log in logs] == [("warning", 1)]
