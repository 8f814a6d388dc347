"""What is told of a link that ends, depending on who still needs it."""

import threading
from types import SimpleNamespace

import pytest

from kintsugi.core.overlay import OverlayWorker, Shape, SynchronizationPolicy, WorkerState
from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay import losses
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.losses import Losses

NEEDS = SynchronizationPolicy(shape=Shape.TREE, order=("b", "a"), parents={"a": "b"})
ALONE = SynchronizationPolicy(shape=Shape.TREE, order=("a",))
LINK = SimpleNamespace(peer=SimpleNamespace(worker="b", incarnation=0, number=1, generation=1))


class Agent:
    """Worker a, whose neighbour b has left the overlay; it tells a list."""

    def __init__(self, *policies: SynchronizationPolicy) -> None:
        """`policies` are what reductions run under, one look after the other."""
        self.identity, self.closing, self.told = Identity(job="job", worker="a"), threading.Event(), []
        workers = (OverlayWorker(id="a", address="127.0.0.1:1", state=WorkerState.ACTIVE, joined_at="2026-01-31T12:00:00Z"),)
        self.overlay = SimpleNamespace(workers=workers, restarts=3, neighbors=lambda _: ())
        self.teller = SimpleNamespace(tell=lambda kind, _, **fields: self.told.append((kind, fields)))
        self._policies = list(policies)

    @property
    def effective(self) -> SynchronizationPolicy:
        return self._policies.pop(0) if len(self._policies) > 1 else self._policies[0]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(losses, "_LAST_WORDS_SECONDS", 0.0)


@pytest.mark.parametrize("policies", [(ALONE,), (NEEDS, ALONE)], ids=["needed no more", "the step ended in time"])
def test_the_link_of_a_worker_that_has_left_is_no_loss(policies):
    agent = Agent(*policies)
    Losses(agent).report(LINK, "the other end closed the connection")
    assert agent.told == []


def test_the_last_words_of_a_worker_that_has_left_may_be_lost_with_its_link():
    agent = Agent(NEEDS)
    Losses(agent).report(LINK, "reset")
    ((kind, fields),) = agent.told
    assert (kind, fields["link"], fields["interrupted"]) == (OverlayEventKind.LINK_DISCONNECTED, ("a", "b"), True)
    assert fields["restarts"] == 3


def test_the_link_of_a_life_that_is_over_is_not_that_of_the_next_one():
    agent = Agent(NEEDS)
    later = OverlayWorker(id="b", address="127.0.0.1:1", state=WorkerState.JOINING, joined_at="2026-01-31T12:00:00Z", incarnation=1)
    agent.overlay = SimpleNamespace(workers=(*agent.overlay.workers, later), restarts=3, neighbors=lambda _: ("b",))
    Losses(agent).report(LINK, "the other end closed the connection")
    assert agent.told == []


@pytest.mark.parametrize(("connected_in", "told_of"), [(1, 4), (6, 6)])
def test_a_loss_that_is_told_late_is_not_that_of_a_link_wanted_since(monkeypatch, connected_in, told_of):
    """While it is told the scheduler publishes a later overlay; the neighbour may have connected in one not known here yet."""
    agent = Agent(NEEDS)
    other = OverlayWorker(id="b", address="127.0.0.1:1", state=WorkerState.ACTIVE, joined_at="2026-01-31T12:00:00Z")
    agent.overlay.workers, agent.overlay.neighbors = (*agent.overlay.workers, other), lambda _: ("b",)
    agent.overlay.generation = 4

    def knock(*_) -> bool:
        agent.overlay = SimpleNamespace(**{**vars(agent.overlay), "generation": 9})
        return True

    monkeypatch.setattr(losses, "is_there", knock)
    peer = SimpleNamespace(worker="b", incarnation=0, number=1, generation=connected_in)
    Losses(agent).report(SimpleNamespace(peer=peer), "reset")
    ((kind, fields),) = agent.told
    assert (kind, fields["generation"]) == (OverlayEventKind.LINK_DISCONNECTED, told_of)


def test_who_ends_tells_nothing():
    agent = Agent(NEEDS)
    agent.closing.set()
    Losses(agent).report(LINK, "reset")
    assert agent.told == []
