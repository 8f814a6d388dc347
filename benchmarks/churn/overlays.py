"""The overlays that are drawn at random: nodes, the links between them, their rates and latencies, and a node that joins."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import networkx as nx

HEADER_RATIO = 1500 / 1448
"""Bytes on a link per byte of payload: IP and TCP headers of full segments."""
SLOWEST_BITS_PER_SECOND, FASTEST_BITS_PER_SECOND = 100e6, 1000e6
LEAST_LATENCY_SECONDS, MOST_LATENCY_SECONDS = 0.010, 0.020
EXTRA_LINKS_PER_NODE = 0.5
"""Beyond a spanning tree."""
NEIGHBORS = (2, 4)
"""Fewest and most of a joiner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One link, both directions alike."""

    between: tuple[str, str]
    """In ascending order."""
    bits_per_second: float
    """What the link carries, headers included."""
    latency_seconds: float
    """One way."""

    @property
    def bytes_per_second(self) -> float:
        """Payload that it carries at most."""
        return self.bits_per_second / 8 / HEADER_RATIO

    @property
    def beta_seconds_per_byte(self) -> float:
        """Of payload."""
        return 1.0 / self.bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A connected overlay of active nodes, and one that is about to join it."""

    active: tuple[str, ...]
    joiner: str
    wires: tuple[Wire, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of all nodes, the joiner last."""
        return (*self.active, self.joiner)

    @property
    def neighbors(self) -> tuple[str, ...]:
        """Of the joiner, in the order of its links."""
        return tuple(wire.between[0] if wire.between[1] == self.joiner else wire.between[1] for wire in self.joiner_wires)

    @property
    def joiner_wires(self) -> tuple[Wire, ...]:
        """The joiner's own links."""
        return tuple(wire for wire in self.wires if self.joiner in wire.between)

    def wire(self, one: str, other: str) -> Wire:
        """The link between two neighbours."""
        ends = (min(one, other), max(one, other))
        return next(wire for wire in self.wires if wire.between == ends)

    def graph(self, *, with_joiner: bool = True) -> "nx.Graph[str]":
        """The nodes, with every link's `seconds_per_byte` and `bytes_per_second`."""
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from(self.names if with_joiner else self.active)
        for wire in self.wires:
            if with_joiner or self.joiner not in wire.between:
                rate = wire.bytes_per_second
                graph.add_edge(*wire.between, seconds_per_byte=1.0 / rate, bytes_per_second=rate)
        return graph

    def bound_seconds(self, num_bytes: int) -> float:
        """No way of copying a state to the joiner is faster: its links together, none before its latency is over."""
        arrivals = sorted((wire.latency_seconds, wire.bytes_per_second) for wire in self.joiner_wires)
        volume, rate, best = float(num_bytes), 0.0, float("inf")
        for latency, bytes_per_second in arrivals:
            rate += bytes_per_second
            volume += latency * bytes_per_second
            best = min(best, volume / rate)
        return best


def node_name(index: int) -> str:
    """`w00`, `w01`, ..."""
    return f"w{index:02d}"


def drawn(num_active: int, seed: int, *, num_neighbors: int | None = None) -> Drawn:
    """A random spanning tree of the active nodes, half as many links again, and the joiner's links to random nodes.

    The joiner's links have the same rates and latencies in overlays of any size with the same seed.

    Args:
        num_active: nodes that train already, at least `num_neighbors`.
        seed: the same gives the same overlay.
        num_neighbors: links of the joiner; two to four by default.
    """
    draw, draw_joiner = random.Random(f"overlay {num_active} {seed}"), random.Random(f"joiner {seed}")
    active = tuple(node_name(index) for index in range(num_active))
    joiner = node_name(num_active)
    pairs = {(draw.choice(active[:index]), active[index]) for index in range(1, num_active)}
    others = [(a, b) for a in active for b in active if a < b and (a, b) not in pairs]
    pairs |= set(draw.sample(others, min(len(others), round(EXTRA_LINKS_PER_NODE * num_active))))
    count = draw_joiner.randint(*NEIGHBORS) if num_neighbors is None else num_neighbors
    own = [(neighbor, joiner) for neighbor in draw.sample(active, count)]
    wires = [_wire(pair, draw) for pair in sorted(pairs)] + [_wire(pair, draw_joiner) for pair in own]
    return Drawn(active=active, joiner=joiner, wires=tuple(wires))


def with_equal_links(overlay: Drawn) -> Drawn:
    """The same, all of the joiner's links like its first one."""
    first = overlay.joiner_wires[0]
    wires = [replace(first, between=wire.between) if overlay.joiner in wire.between else wire for wire in overlay.wires]
    return replace(overlay, wires=tuple(wires))


def redrawn(wires: Sequence[Wire], seed: int) -> list[Wire]:
    """The same links with other rates and latencies."""
    draw = random.Random(f"rates {seed}")
    return [_wire(wire.between, draw) for wire in wires]


def scaled(overlay: Drawn, rate_ratio: float) -> Drawn:
    """The same overlay with every rate multiplied."""
    return replace(overlay, wires=tuple(scaled_wires(overlay.wires, rate_ratio)))


def scaled_wires(wires: Sequence[Wire], rate_ratio: float) -> list[Wire]:
    """The same links with every rate multiplied."""
    return [replace(wire, bits_per_second=wire.bits_per_second * rate_ratio) for wire in wires]


def _wire(between: tuple[str, str], draw: random.Random) -> Wire:
    return Wire(
        between=between,
        bits_per_second=draw.uniform(SLOWEST_BITS_PER_SECOND, FASTEST_BITS_PER_SECOND),
        latency_seconds=draw.uniform(LEAST_LATENCY_SECONDS, MOST_LATENCY_SECONDS),
    )
