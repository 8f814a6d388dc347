"""Visits every world that a model can come to, breadth first, and checks the protocol's claims in each."""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from benchmarks.membership.members import Event
from benchmarks.membership.network import Network
from benchmarks.membership.world import World, pair
from kintsugi.runtime.ring.state import State

FAULTS = ("crash", "freeze", "cut", "split")
"""Events that need not happen."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration found."""

    num_states: int
    num_transitions: int
    num_final: int
    violation: str
    """The claim that does not hold; empty where all do."""
    trace: tuple[str, ...]
    """Shortest way to the violation."""
    seconds: float


def explore(network: Network, faults: int, *, most_states: int | None = None) -> Report:
    """Visit every world that can be reached with so many faults, until a claim is violated."""
    began = time.monotonic()
    first = network.initial(faults)
    parents: dict[bytes, tuple[bytes, Event] | None] = {first.packed(): None}
    waiting = deque([first])
    transitions = final = 0
    while waiting:
        world = waiting.popleft()
        key, is_final = world.packed(), True
        for event, after in network.next(world):
            transitions += 1
            packed = after.packed()
            is_final = is_final and (packed == key or event[0] in FAULTS)
            if packed not in parents:
                parents[packed] = key, event
                waiting.append(after)
                if violation := violated(network, after):
                    trace = tuple(_trace(network, parents, packed))
                    return Report(len(parents), transitions, final, violation, trace, time.monotonic() - began)
        final += is_final
        if is_final and (violation := unfinished(network, world)):
            return Report(
                len(parents), transitions, final, violation, tuple(_trace(network, parents, key)), time.monotonic() - began
            )
        if most_states is not None and len(parents) > most_states:
            break
    return Report(len(parents), transitions, final, "", (), time.monotonic() - began)


def violated(network: Network, world: World) -> str:
    """Which safety claim does not hold in a world; empty where all do."""
    by_generation: dict[int, int] = {}
    for number in (*(number for _, number in world.installed), *world.leased):
        generation = network.agreements[number].generation
        if by_generation.setdefault(generation, number) != number:
            return f"two memberships of generation {generation}"
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
        reached = [other for other in going_on if other == member or pair(member, other) not in world.cut]
        is_clique = all(pair(one, other) not in world.cut for one, other in combinations(reached, 2))
        together = [other for other in reached if going_on[other].agreement == state.agreement]
        if is_clique and state.is_stopped and 2 * len(together) >= len(state.agreement.members):
            return "half of the members wait for ever"
    return ""


def _trace(network: Network, parents: dict[bytes, tuple[bytes, Event] | None], packed: bytes) -> Iterator[str]:
    events = []
    while (found := parents[packed]) is not None:
        packed, event = found
        events.append(event)
    for event in reversed(events):
        kind, *rest = event
        if kind == "deliver":
            yield f"deliver {rest[0]}->{rest[1]} {network.messages[rest[2]]}"
        elif kind in ("serve", "answer", "look up"):
            yield f"{kind} {rest[0]} {network.agreements[rest[1]]}"
        else:
            yield " ".join(event)
