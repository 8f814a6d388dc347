"""What a worker begins when the overlay or its links change, one piece of work after the other, in every order that matters."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kintsugi.core.overlay import LinkState, Overlay, OverlayLink, OverlayWorker, Shape, SynchronizationPolicy, WorkerState
from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.losses import Losses
from kintsugi.runtime.overlay.messages import Channel
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.probe import KINDS, Prober
from kintsugi.runtime.overlay.reconciling import Reconciler
from tests.patience import eventually

OPTIONS = OverlayOptions(link_timeout_seconds=60.0)
CONNECTED, MEASURED = OverlayEventKind.LINK_CONNECTED, OverlayEventKind.LINK_MEASURED
ALONE = SynchronizationPolicy(shape=Shape.TREE, order=("a",))


class Agent:
    """Worker a's view of the overlay; it tells a list."""

    def __init__(self, overlay: Overlay) -> None:
        self.identity, self.overlay, self.effective = Identity(job="job", worker="a"), overlay, ALONE
        self.told: list[tuple[OverlayEventKind, int]] = []
        self.teller = SimpleNamespace(tell=lambda kind, _, **fields: self.told.append((kind, fields["generation"])))

    def on_overlay(self, _listener: Callable[[Overlay], None]) -> None:
        pass


class Stepwise(Reconciler):
    """Begins nothing by itself."""

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.begun: list[tuple[str, Callable[[], None]]] = []

    def _begin(self, work: Callable[[], None], name: str) -> None:
        self.begun.append((name, work))

    def run(self, name: str) -> None:
        """Run the earliest work of that name."""
        index = next(index for index, (begun, _) in enumerate(self.begun) if begun == name)
        self.begun.pop(index)[1]()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.begun]


class World:
    """Worker a, which follows the overlay step by step, and worker b, which answers."""

    def __init__(self, stack: ExitStack) -> None:
        self.own, self.other = self._links(stack, "a"), self._links(stack, "b")
        workers = tuple(
            OverlayWorker(id=one.identity.worker, address=address(one), state=WorkerState.ACTIVE, joined_at="2026-01-31T12:00:00Z")
            for one in (self.own, self.other)
        )
        self.agent = Agent(Overlay(name="job", generation=0, term=0, workers=workers, links=(), synchronization=ALONE))
        prober = self._prober(self.own)
        self._prober(self.other)
        self.reconciler = Stepwise(self.agent, self.own, prober, Losses(self.agent))
        self.reconciler.start()
        for one in (self.own, self.other):
            one.start()

    def want(self, state: LinkState | None) -> None:
        """Publish a later overlay with a link between the two, or without."""
        before = self.agent.overlay
        wanted = OverlayLink(between=("a", "b"), state=state, generation=before.generation + 1) if state is not None else None
        self.agent.overlay = replace(before, generation=before.generation + 1, links=(wanted,) if wanted else ())
        self.own.generation = self.agent.overlay.generation
        self.reconciler.reconcile(self.agent.overlay)

    def connect(self) -> None:
        self.want(LinkState.CONNECTING)
        self.reconciler.run("connects-b")
        eventually(lambda: self.other.up, lambda up: up == ("a",))

    @staticmethod
    def _links(stack: ExitStack, worker: str) -> Links:
        links = Links(Identity(job="job", worker=worker), OPTIONS, host="127.0.0.1")
        stack.callback(links.close)
        return links

    @staticmethod
    def _prober(links: Links) -> Prober:
        prober = Prober(links, 60.0)
        links.hear(Channel.CONTROL, lambda worker, message: message.kind in KINDS and prober.hear(worker, message))
        return prober


def address(of: Links) -> str:
    return f"127.0.0.1:{of.port}"


@pytest.fixture
def world():
    with ExitStack() as stack:
        yield World(stack)


def test_a_wanted_link_is_connected_and_measured(world):
    world.connect()
    assert world.reconciler.names == ["probes-b"]
    world.reconciler.run("probes-b")
    assert world.agent.told == [(CONNECTED, 1), (MEASURED, 1)]
    world.reconciler.reconcile(world.agent.overlay)
    assert world.reconciler.names == []


def test_a_link_that_is_wanted_again_before_it_was_dropped_stays(world):
    world.connect()
    world.want(None)
    world.want(LinkState.CONNECTING)
    world.reconciler.run("drops-b")
    assert world.own.up == ("b",)


def test_a_link_that_comes_to_be_wanted_while_it_ends_is_connected_anew(world, monkeypatch):
    world.connect()
    world.want(None)
    disconnect = world.own.disconnect

    def late(link) -> None:
        world.want(LinkState.CONNECTING)
        disconnect(link)

    monkeypatch.setattr(world.own, "disconnect", late)
    world.reconciler.run("drops-b")
    assert world.own.up == ()
    world.reconciler.run("connects-b")
    assert world.own.up == ("b",)


def test_a_link_that_was_connected_anew_is_dropped_by_nobody_who_meant_the_earlier_one(world):
    world.connect()
    world.want(None)
    later = world.own.connect("b", address(world.other))
    world.reconciler.run("drops-b")
    assert world.own.get("b") is later


def test_a_link_that_was_connected_anew_is_measured_anew_and_the_earlier_probe_tells_nothing_more(world):
    world.connect()
    world.own.connect("b", address(world.other))
    # the other end may have closed the earlier connection before this end had taken the later one
    assert [name for name in world.reconciler.names if name != "lost-b"] == ["probes-b", "probes-b"]
    world.reconciler.run("probes-b")
    assert world.agent.told == [(CONNECTED, 1)]
    world.reconciler.run("probes-b")
    assert world.agent.told == [(CONNECTED, 1), (CONNECTED, 1), (MEASURED, 1)]


def test_the_probe_of_a_link_that_is_lost_is_left_to_those_who_tell_of_the_loss(world):
    world.connect()
    world.other.disconnect(world.other.get("a"))
    eventually(lambda: world.reconciler.names, lambda names: "lost-b" in names)
    world.reconciler.run("probes-b")
    assert world.agent.told == [(CONNECTED, 1)]
    world.reconciler.run("lost-b")
    assert world.agent.told[1:] == [(OverlayEventKind.LINK_DISCONNECTED, 1)]
