"""Whoever leaves goes in time, whatever the others do."""

import threading
import time
from types import SimpleNamespace

from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.leaving import Leaver


class Agent:
    """Hears no newer overlay; a reduction that hangs ends when it gives up."""

    def __init__(self) -> None:
        self.identity, self.given_up, self.ends = Identity(job="job", worker="a"), "", threading.Event()
        self.teller = SimpleNamespace(tell=lambda *_, **__: None)

    def give_up(self, why: str) -> None:
        self.given_up = why
        self.ends.set()


def test_a_reduction_that_hangs_holds_nobody_longer_than_the_deadline():
    agent = Agent()

    def take_part() -> None:
        assert agent.ends.wait(120.0)
        raise GivenUpError("was closed")

    Leaver(agent, links=None, rounds=SimpleNamespace(counts=True)).run(take_part, Deadline(0.05))
    assert agent.given_up == "did not come to leave in time"


class Paused:
    """Away ever since it was made."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()

    @property
    def away_seconds(self) -> float:
        return time.monotonic() - self._began_at


def test_a_worker_that_is_paused_while_it_leaves_has_its_time_afterwards():
    agent = Agent()

    def take_part() -> None:
        assert not agent.ends.wait(0.1)
        agent.given_up = "the test is over"
        raise GivenUpError("was closed")

    Leaver(agent, links=None, rounds=SimpleNamespace(counts=True)).run(take_part, Deadline(0.02, Paused()))
    assert agent.given_up == "the test is over"
