"""Visits every world that a model can come to, breadth first, and checks the protocol's claims in each."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from benchmarks.membership.members import Event
from benchmarks.membership.network import Network
from benchmarks.membership.world import ANYBODY, World, pair
from kintsugi.runtime.ring.state import State

FAULTS = ("crash", "freeze", "break", "miss", "cut", "split")
"""Events that need not happen."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration found."""

    num_states: int
    num_transitions: int
    num_final: int
    depth: int
    """How many events lead at most to a world that was visited."""
    is_complete: bool
    """Whether every world was visited that can be reached."""
    violation: str
    """The claim that does not hold; empty where all do."""
    trace: tuple[str, ...]
    """Shortest way to the violation."""
    seconds: float


def _nobody(depth: int, num_states: int, num_waiting: int) -> None:
    """Progress that is not shown."""


@dataclass(slots=True)
class Exploration:
    """Every world of a network with so many faults: by digest, with the digest of the one that it was first reached from."""

    network: Network
    faults: int
    parents: dict[bytes, bytes] = field(default_factory=dict)
    num_transitions: int = 0
    num_final: int = 0
    depth: int = 0
    violation: str = ""
    violating: bytes = b""
    """The world in which a claim does not hold."""

    def visit(self, most_states: int | None, told: Callable[[int, int, int], None]) -> bool:
        """Go through all worlds, those that take fewer events first; whether that came to its end."""
        first = self.network.initial(self.faults)
        self.parents[first.digest()] = b""
        level = [first]
        while level and not self.violation and not (most_states and len(self.parents) > most_states):
            level = list(self._level(level))
            self.depth += bool(level)
            told(self.depth, len(self.parents), len(level))
        return not level and not self.violation

    def _level(self, worlds: list[World]) -> Iterator[World]:
        """The worlds that are first reached from these, until one violates a claim."""
        for world in worlds:
            is_final, digest = True, world.digest()
            for event, after in self.network.next(world):
                self.num_transitions += 1
                reached = after.digest()
                is_final = is_final and (reached == digest or event[0] in FAULTS)
                if reached not in self.parents:
                    self.parents[reached] = digest
                    self._judge(violated(self.network, after), reached)
                    yield after
            self.num_final += is_final
            if is_final:
                self._judge(unfinished(self.network, world), digest)
            if self.violation:
                return

    def _judge(self, violation: str, digest: bytes) -> None:
        if violation and not self.violation:
            self.violation, self.violating = violation, digest

    def trace(self) -> Iterator[str]:
        """What leads to the violation: the events by which a world of each digest on the way follows from the one before."""
        way = [self.violating] if self.violating else []
        while way and (parent := self.parents[way[0]]):
            way.insert(0, parent)
        world = self.network.initial(self.faults)
        for digest in way[1:]:
            event, world = next(step for step in self.network.next(world) if step[1].digest() == digest)
            yield _told(self.network, event)


def explore(
    network: Network, faults: int, *, most_states: int | None = None, told: Callable[[int, int, int], None] = _nobody
) -> Report:
    """Visit every world that can be reached with so many faults, until a claim is violated.

    Args:
        network: with nothing known yet.
        faults: how many may happen.
        most_states: visit hardly more worlds than that.
        told: called with the depth, and how many worlds are known and are to be gone on from, whenever the depth grows.
    """
    began = time.monotonic()
    exploration = Exploration(network, faults)
    is_complete = exploration.visit(most_states, told)
    return Report(
        num_states=len(exploration.parents),
        num_transitions=exploration.num_transitions,
        num_final=exploration.num_final,
        depth=exploration.depth,
        is_complete=is_complete,
        violation=exploration.violation,
        trace=tuple(exploration.trace()),
        seconds=time.monotonic() - began,
    )


def violated(network: Network, world: World) -> str:
    """Which safety claim does not hold in a world, or as soon as the lease has heard of one more agreement; empty where all do."""
    by_generation: dict[int, int] = {}
    for number in (*network.agreed(world), *world.leased):
        if by_generation.setdefault(network.generation(number), number) != number:
            return f"two memberships of generation {network.generation(number)}"
    for member, number in world.asked:
        if member == ANYBODY and by_generation.get(network.generation(number), number) != number:
            return f"two memberships of generation {network.generation(number)}"
    return "a survivor lost a step that it had committed" if network.is_commit_lost else ""


def unfinished(network: Network, world: World) -> str:
    """Whether members that could go on, or end, stand still although nothing more can happen."""
    going_on = {
        member: state
        for member in range(len(network.names))
        if (state := network.state(world, member)) is not None and not state.is_left_out
    }
    if not going_on:
        return ""  # all that went on have ended: nobody is left who could
    if world.cut:
        return _unfinished_parts(network, world, going_on)
    newest = max((state.agreement for state in network.living(world)), key=lambda agreement: agreement.generation)
    if any(state.agreement != newest for state in going_on.values()):
        return "a member is behind for ever"
    if any(state.is_stopped for state in going_on.values()) or {s.member for s in going_on.values()} != set(newest.members):
        return "a membership is mended for ever"
    return ""


def _unfinished_parts(network: Network, world: World, going_on: Mapping[int, State]) -> str:
    """The same where links are cut: all hear what was decided, nobody waits without trying, half of the members can decide."""
    newest = max(state.agreement.generation for state in network.living(world))
    for member, state in going_on.items():
        if state.agreement.generation < newest:
            return "a member is behind for ever"
        if state.lost and not state.is_stopped:
            return "a loss is mended by nobody"
        reached = [other for other in going_on if other == member or not world.cut & pair(member, other)]
        is_clique = all(not world.cut & pair(one, other) for one, other in combinations(reached, 2))
        together = [other for other in reached if going_on[other].agreement == state.agreement]
        if is_clique and state.is_stopped and 2 * len(together) >= len(state.agreement.members):
            return "half of the members wait for ever"
    return ""


def _told(network: Network, event: Event) -> str:
    kind, *rest = event
    if kind == "deliver":
        return f"deliver {rest[0]}->{rest[1]} {network.messages[rest[2]]}"
    if kind in ("serve", "answer", "look up"):
        return f"{kind} {rest[0]} {network.agreements[rest[1]]}"
    return " ".join(event)
