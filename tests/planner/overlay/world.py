"""Overlays in motion: a scheduler's log in short words, agents that do what it wants, and random churn."""

from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import strategies as st

from kintsugi.core.errors import ConflictError, NotFoundError
from kintsugi.core.overlay import LinkState, Overlay, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from planner.overlay.negotiation import negotiate
from planner.overlay.synchronization import SynchronizationPlanner, fastest
from planner.overlay.topology import empty_overlay

NOW = "2026-01-31T12:00:{:06.3f}Z"
MIB = 1 << 20


@dataclass
class World:
    """An overlay, and the log that led to it."""

    planner: SynchronizationPlanner = fastest
    overlay: Overlay = field(default_factory=lambda: empty_overlay("llama"))
    log: list[tuple[OverlayEvent, str]] = field(default_factory=list)

    def tell(self, kind: str, **told) -> Overlay:
        """The overlay after one more event; a refused one is not logged."""
        event = OverlayEvent(kind=OverlayEventKind(kind), id=f"e{len(self.log)}", **told)
        now = NOW.format(len(self.log) % 60)
        self.overlay = negotiate(self.overlay, event, now, self.planner)
        self.log.append((event, now))
        return self.overlay

    def join(self, worker: str, *neighbors: str, incarnation: int = 0, state_bytes: int = 64 * MIB, shard_bytes: int = MIB):
        return self.tell(
            "worker_joined",
            worker=worker,
            neighbors=neighbors,
            incarnation=incarnation,
            address=f"{worker}:7000",
            state_bytes=state_bytes,
            shard_bytes=shard_bytes,
        )

    def measure(self, first: str, second: str, alpha: float = 0.01, beta: float = 1e-8):
        return self.tell("link_measured", link=(first, second), alpha_seconds=alpha, beta_seconds_per_byte=beta)

    def grow(self, worker: str, *neighbors: str, alpha: float = 0.01, beta: float = 1e-8):
        """`worker` joins, all its links are measured alike, and it gets the state."""
        self.join(worker, *neighbors)
        for neighbor in neighbors:
            self.measure(worker, neighbor, alpha, beta)
        return self.tell("state_replicated", worker=worker, step=7) if neighbors else self.overlay

    def state(self, worker: str) -> WorkerState:
        return self.overlay.worker(worker).state

    def replayed(self) -> Overlay:
        """The overlay that the log alone leads to."""
        overlay = empty_overlay("llama")
        for event, now in self.log:
            overlay = negotiate(overlay, event, now, self.planner)
        return overlay


def mesh(*workers: str, links: str = "") -> World:
    """Active workers, each connected to those that `links` says (`a-b b-c`) or to all others."""
    world = World()
    pairs = {frozenset(pair.split("-")) for pair in links.split()} or {
        frozenset((a, b)) for a in workers for b in workers if a != b
    }
    for index, worker in enumerate(workers):
        world.grow(worker, *(other for other in workers[:index] if frozenset((worker, other)) in pairs))
    return world


NAMES = [f"w{number}" for number in range(6)]
RATES = st.sampled_from([8e-9, 1.6e-8, 2e-8, 8e-8])
LATENCIES = st.sampled_from([0.0, 0.01, 0.015, 0.02])


class Churn:
    """Draws what happens next; what the overlay refuses does not happen."""

    def __init__(self, data) -> None:
        self._data = data
        self.world = World()
        self._lives = dict.fromkeys(NAMES, -1)

    def happen(self) -> None:
        """One event, drawn from those that make sense and those that come late."""
        happening = self._data.draw(st.sampled_from(sorted(HAPPENINGS)))
        with suppress(ConflictError, NotFoundError):
            HAPPENINGS[happening](self)

    def _one(self) -> str:
        return self._data.draw(st.sampled_from(NAMES))

    def _pair(self) -> tuple[str, str]:
        return tuple(self._data.draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True)))

    def _life(self, worker: str) -> int:
        return max(0, self._lives[worker])

    def join(self) -> None:
        worker = self._one()
        others = self._data.draw(st.lists(st.sampled_from([name for name in NAMES if name != worker]), max_size=3, unique=True))
        known = self.world.overlay.workers
        neighbors = [other for other in others if any(one.id == other and one.state is not WorkerState.FAILED for one in known)]
        self.world.join(worker, *neighbors, incarnation=self._lives[worker] + 1)
        self._lives[worker] += 1

    def measure(self) -> None:
        links = self.world.overlay.links
        ends = self._data.draw(st.sampled_from([link.between for link in links])) if links else self._pair()
        self.world.measure(*ends, self._data.draw(LATENCIES), self._data.draw(RATES))

    def connect(self) -> None:
        wanted = [link.between for link in self.world.overlay.links if link.state is LinkState.CONNECTING]
        self.world.tell("link_connected", link=self._data.draw(st.sampled_from(wanted)) if wanted else self._pair())

    def connect_anew(self) -> None:
        self.world.tell("link_connected", link=self._pair())

    def cut(self) -> None:
        ends = self._pair()
        generation = self._data.draw(st.one_of(st.none(), st.integers(0, self.world.overlay.generation)))
        self.world.tell("link_disconnected", link=ends, interrupted=self._data.draw(st.booleans()), generation=generation)

    def replicate(self) -> None:
        under_way = [one.joiner for one in self.world.overlay.replications]
        if under_way:
            worker = self._data.draw(st.sampled_from(under_way))
            self.world.tell("state_replicated", worker=worker, incarnation=self._life(worker), step=3)

    def speak(self, kind: str) -> None:
        worker = self._one()
        self.world.tell(kind, worker=worker, incarnation=self._life(worker))

    def fail(self) -> None:
        worker = self._one()
        known = self._data.draw(st.one_of(st.none(), st.integers(0, self.world.overlay.restarts)))
        teller = self._data.draw(st.sampled_from([None, *(name for name in NAMES if name != worker)]))
        told = {} if teller is None else {"teller": teller, "teller_incarnation": self._life(teller)}
        self.world.tell("worker_failed", worker=worker, incarnation=self._life(worker), interrupted=True, restarts=known, **told)


HAPPENINGS = {
    "join": Churn.join,
    "join more": Churn.join,
    "measure": Churn.measure,
    "measure more": Churn.measure,
    "measure again": Churn.measure,
    "connect": Churn.connect,
    "connect anew": Churn.connect_anew,
    "cut": Churn.cut,
    "replicate": Churn.replicate,
    "replicate more": Churn.replicate,
    "drain": lambda churn: churn.speak("worker_draining"),
    "leave": lambda churn: churn.speak("worker_left"),
    "fail": Churn.fail,
    "ask again": lambda churn: churn.speak("replication_requested"),
}
