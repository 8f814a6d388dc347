"""What a worker says counts for the attempt that it was said in, and for no other."""

from dataclasses import replace

import pytest

from kintsugi.runtime.control.attempt import Attempt
from kintsugi.runtime.control.links import LinkProbe
from kintsugi.runtime.messages import Collected, Finished, Heartbeat, LinkBroken, Quiesced, Reached, Ready, Resumed
from kintsugi.runtime.workers.commit import StepStatus

STATUS = StepStatus(step=4, is_reduced=True)
MESSAGES = [
    Quiesced(7, STATUS, ((6, 3),)),
    Ready(7, 1.0, 2.0),
    Resumed(7, 3.0),
    Finished(7),
    LinkBroken(7, "a message failed"),
    Collected(7, {0: "digest"}, {}),
]


def heard(attempt: Attempt) -> dict[str, object]:
    """What has come in, without moments of this very run."""
    broken = attempt.broken and attempt.broken[1]
    found = {
        name: getattr(attempt, name)
        for name in ("statuses", "writing", "ready", "resumed", "finished", "collected")
        if getattr(attempt, name)
    }
    return found | ({"broken": broken} if broken else {})


def test_what_belongs_to_the_attempt_is_taken_in():
    attempt = Attempt(7, members=("w01",))
    for message in MESSAGES:
        attempt.hear(message, "w01")
    _, ready, _, _, _, collected = MESSAGES
    assert heard(attempt) == {
        "statuses": {"w01": STATUS},
        "writing": {"w01": ((6, 3),)},
        "ready": {"w01": ready},
        "resumed": {"w01": 3.0},
        "finished": {"w01"},
        "collected": {"w01": collected},
        "broken": "w01: a message failed",
    }


@pytest.mark.parametrize("number", [6, 8])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_belongs_to_another_attempt_does_not_count(message, number):
    attempt = Attempt(7, members=("w01",))
    attempt.hear(replace(message, attempt=number), "w01")
    assert heard(attempt) == {}


def test_the_first_broken_connection_is_remembered_and_none_before_any_was_made():
    attempt = Attempt(7)
    attempt.hear(LinkBroken(7, "early"), "w00")
    assert heard(attempt) == {}
    attempt.members = ("w00", "w01")
    for worker in attempt.members:
        attempt.hear(LinkBroken(7, "a message failed"), worker)
    assert heard(attempt) == {"broken": "w00: a message failed"}


def test_answers_count_while_their_question_is_open():
    attempt = Attempt(7, members=("w00",))
    attempt.hear(Reached(1, ("w01",)), "w00")
    attempt.probe = LinkProbe(2, (), 1.0)
    attempt.hear(Reached(1, ("w01",)), "w00")
    assert attempt.probe.unreachable == {}
    attempt.hear(Reached(2, ("w01",)), "w00")
    assert attempt.probe.unreachable == {"w00": ("w01",)}


def test_what_nobody_says_of_an_attempt_is_told_with_who_said_it():
    with pytest.raises(TypeError, match="w03 sent Heartbeat"):
        Attempt(7).hear(Heartbeat(), "w03")
