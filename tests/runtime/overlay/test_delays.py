"""Threads of a busy machine stop anywhere and for long: a joining worker loses a source while everything else comes late."""

import random
import threading
from dataclasses import replace

import pytest

from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay import sources
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.arrival import Arrival
from kintsugi.runtime.overlay.following import Telling
from kintsugi.runtime.overlay.joining import Joiner
from kintsugi.runtime.overlay.losses import Losses
from kintsugi.runtime.overlay.rounds import Rounds
from tests.runtime.overlay.crew import OPTIONS, Crew, wide
from tests.runtime.overlay.desk import Desk
from tests.runtime.overlay.test_churn import check

PLACES = {
    "what the scheduler says": ((Agent, "take"), (sources.Sources, "heed")),
    "what sources do": (
        (sources.Sources, "begin"),
        (sources.Sources, "follow"),
        (sources._Stream, "_run"),
        (Telling, "_tell_next"),
    ),
    "what the joiner does": ((Joiner, "_go_on"), (Arrival, "reconcile"), (Arrival, "proof")),
    "what is seen of a loss": ((Losses, "report"), (Rounds, "settle")),
}
MOST_SECONDS = 0.1


def delay(monkeypatch: pytest.MonkeyPatch, place: type, name: str, generator: random.Random) -> None:
    """Let every third call of a method begin late."""
    method = getattr(place, name)

    def late(self, *arguments, **named):
        if generator.random() < 1 / 3:
            threading.Event().wait(generator.random() * MOST_SECONDS)
        return method(self, *arguments, **named)

    monkeypatch.setattr(place, name, late)


@pytest.mark.parametrize("late", PLACES)
@pytest.mark.parametrize("max_waiting_bytes", [2**30, 1])
def test_a_source_is_lost_and_all_else_is_late(monkeypatch, late, max_waiting_bytes):
    generator = random.Random(f"{late} {max_waiting_bytes}")
    for place, name in PLACES[late]:
        delay(monkeypatch, place, name, generator)
    crew = Crew(Desk(all_links_alike=True), replace(OPTIONS, chunk_bytes=2**14, max_waiting_bytes=max_waiting_bytes), build=wide)
    crew.start_connected("a", "b", "c")
    joiner = crew.start("d", ("a", "b", "c"))
    crew.desk.until(lambda overlay: overlay.replications)
    crew.members["a"].strike()
    joiner.await_steps(2)
    crew.finish()
    check(crew)
    requests = [event for event in crew.desk.events if event.kind is OverlayEventKind.REPLICATION_REQUESTED]
    assert crew.desk.now.restarts == 1 + sum(event.interrupted for event in requests)
