"""Whoever leaves goes in time, whatever the others do."""

import threading
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
