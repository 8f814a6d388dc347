"""Who sends which part of what workers lack, so that the last part arrives as early as possible.

A source sends one piece at a time over all its links together; a piece takes the link's latency and its bytes at the link's
rate. A worker takes in from all its sources side by side, but no faster than over its fastest link, or than the profile states
for its host; nor does a host give out more than that states.
Sources that hold the same and live on one host are one kind; needs that the same workers can serve over the same links are one
demand. Demands are shared between kinds (`restorer.balance`), and each kind's share is cut among its workers. A cut costs a
latency, so nothing is cut to pieces that take longer to announce than to send.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from estimator.arrays import Floats, Ints
from restorer.balance import Columns, balance, water_level
from restorer.cutting import Knife, cut
from restorer.needs import Need
from restorer.wires import Wires, both_ways

TOLERANCE = 2e-3
"""Relative distance from the lower bound at which sharing stops."""

Line: TypeAlias = list[tuple[Need, int]]
"""Needs, or parts of them, with their bytes on one device."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a need from one source, on one device."""

    need: Need
    source: str
    device_bytes: int


@dataclass(slots=True)
class _Kind:
    """Sources that can stand in for each other."""

    host: int
    workers: list[str] = field(default_factory=list)
    lines: dict[int, Line] = field(default_factory=dict)
    """What they send, by the host that it goes to."""


@dataclass(frozen=True, slots=True)
class _Demand:
    """Needs that the same kinds can serve over the same links."""

    target: str | None
    """The worker; None for all of them, where it does not matter who it is."""
    target_host: int
    needs: list[Need]
    kinds: Ints
    """Shape [columns]."""
    alpha: Floats
    """Latency from each of the kinds, shape [columns], like the next one."""
    beta: Floats

    @property
    def num_bytes(self) -> int:
        return sum(need.device_bytes for need in self.needs)

    @property
    def least_bytes(self) -> float:
        """Pieces below that take longer to announce than to send, over any of the links."""
        return float(np.divide(self.alpha, self.beta, out=np.full(len(self.beta), np.inf), where=self.beta > 0).min())


def assign_sources(needs: Sequence[Need], wires: Wires) -> tuple[list[Piece], float]:
    """All pieces, and a time in seconds before which no choice of sources is through.

    Args:
        needs: with at least one source each.
        wires: links between hosts.
    """
    kinds, kinds_of = _kinds(needs, wires)
    demands = _demands(needs, kinds, kinds_of, wires)
    columns, num_machines = _problem(demands, kinds, wires)
    shares, bound = balance(columns, num_machines, _intake_seconds(needs, wires), TOLERANCE)
    for demand, own in zip(demands, np.split(shares, columns.first[1:-1]), strict=True):
        _share_out(demand, own, kinds)
    pieces = [piece for kind in kinds for piece in _pieces(kind, wires, bound)]
    return pieces, max(bound, *(_lone_bound(demand, kinds) for demand in demands))


def _intake_seconds(needs: Sequence[Need], wires: Wires) -> float:
    """Until the worker that lacks most can have taken it in, from its own and other hosts at once, in seconds."""
    lacking: dict[str, int] = defaultdict(int)
    for need in needs:
        lacking[need.target] += need.device_bytes
    seconds = 0.0
    for target, num_bytes in lacking.items():
        outer, inner = wires.intake_betas(wires.host_of(target))
        both = inner if wires.is_plain else both_ways(outer, inner)
        seconds = max(seconds, num_bytes * both)
    return seconds


def _kinds(needs: Sequence[Need], wires: Wires) -> tuple[list[_Kind], dict[tuple[str, ...], Ints]]:
    """The kinds of sources, and those among the sources of each need."""
    member_of: dict[str, list[int]] = defaultdict(list)
    for number, sources in enumerate(dict.fromkeys(need.sources for need in needs)):
        for worker in sources:
            member_of[worker].append(number)
    kinds: dict[tuple[int, tuple[int, ...]], _Kind] = {}
    numbers: dict[int, list[int]] = defaultdict(list)
    for worker, member in member_of.items():
        key = wires.host_of(worker), tuple(member)
        if key not in kinds:
            for number in member:
                numbers[number].append(len(kinds))
            kinds[key] = _Kind(key[0])
        kinds[key].workers.append(worker)
    sets = dict.fromkeys(need.sources for need in needs)
    return list(kinds.values()), {sources: np.array(numbers[number]) for number, sources in enumerate(sets)}


def _demands(
    needs: Sequence[Need], kinds: Sequence[_Kind], kinds_of: Mapping[tuple[str, ...], Ints], wires: Wires
) -> list[_Demand]:
    """The largest first: who comes first takes the source that is best for it."""
    groups: dict[tuple[tuple[str, ...], str | None], list[Need]] = defaultdict(list)
    for need in needs:
        groups[need.sources, None if wires.is_plain else need.target].append(need)
    hosts = np.array([kind.host for kind in kinds])
    result = []
    for (sources, target), own in groups.items():
        columns, host = kinds_of[sources], wires.host_of(own[0].target)
        result.append(_Demand(target, host, own, columns, *wires.costs(hosts[columns], host)))
    return sorted(result, key=lambda demand: -demand.num_bytes)


def _problem(demands: Sequence[_Demand], kinds: Sequence[_Kind], wires: Wires) -> tuple[Columns, int]:
    """The demands as columns that load machines (kinds, what hosts give out and take in, what workers take in), and how many."""
    hosts, counts = np.array([kind.host for kind in kinds]), np.array([len(kind.workers) for kind in kinds])
    first_host, first_intake = len(kinds), len(kinds) + 2 * wires.num_hosts
    targets = {target: 2 * number for number, target in enumerate(dict.fromkeys(demand.target for demand in demands))}
    machines, loads = [], []
    for demand in demands:
        num_bytes, own = demand.num_bytes, demand.kinds
        is_outside = hosts[own] != demand.target_host
        machine, load = np.full((len(own), 3), -1), np.zeros((len(own), 3))
        machine[:, 0] = own
        load[:, 0] = (len(demand.needs) * demand.alpha + num_bytes * demand.beta) / counts[own]
        if wires.egress is not None:
            machine[:, 1] = np.where(is_outside, first_host + hosts[own], -1)
            load[:, 1] = num_bytes * wires.degree / wires.egress
        if demand.target is not None:
            machine[:, 2] = first_intake + targets[demand.target] + is_outside
            load[:, 2] = num_bytes * np.where(is_outside, *wires.intake_betas(demand.target_host))
            if wires.ingress is not None:
                machine[is_outside, 2] = first_host + wires.num_hosts + demand.target_host
                load[is_outside, 2] = num_bytes * wires.degree / wires.ingress
        machines.append(machine)
        loads.append(load)
    first = np.cumsum([0, *(len(demand.kinds) for demand in demands)])
    return Columns(first, np.concatenate(machines), np.concatenate(loads)), first_intake + 2 * len(targets)


def _most_pieces(num_bytes: int, least_bytes: float, num_senders: int) -> int:
    """How many of the senders may share bytes, of which none sends fewer than `least_bytes`; one always does."""
    if least_bytes == 0.0 or num_bytes / least_bytes >= num_senders:  # which may be infinite
        return num_senders
    return max(1, int(num_bytes / least_bytes))


def _lone_bound(demand: _Demand, kinds: Sequence[_Kind]) -> float:
    """When the largest need of a demand could be served if there were no other, in seconds."""
    num_bytes = max(need.device_bytes for need in demand.needs)
    if num_bytes < 2 * demand.least_bytes or not demand.beta.all():
        return float((demand.alpha + num_bytes * demand.beta).min())
    counts = [len(kinds[kind].workers) for kind in demand.kinds]
    most = _most_pieces(num_bytes, demand.least_bytes, sum(counts))
    begins, betas = np.sort(np.repeat(demand.alpha, counts))[:most], np.sort(np.repeat(demand.beta, counts))[:most]
    return float(water_level(begins, 1 / betas, float(num_bytes)))


def _share_out(demand: _Demand, shares: Floats, kinds: Sequence[_Kind]) -> None:
    """Give every kind its share of the demand's bytes, one need after the other."""
    knife = Knife(least_bytes=demand.least_bytes)
    sizes = shares * demand.num_bytes
    most = _most_pieces(demand.num_bytes, knife.least_bytes, len(sizes))
    largest = np.sort(np.argsort(-sizes, kind="stable")[:most])
    used = largest[sizes[largest] >= min(knife.least_bytes, sizes.max() / 2)]
    rooms = sizes[used] * (demand.num_bytes / sizes[used].sum())
    for part in cut([(need, need.device_bytes) for need in demand.needs], rooms.tolist(), knife):
        line = kinds[demand.kinds[used[part.bin]]].lines.setdefault(demand.target_host, [])
        line.append((part.item, part.num_bytes))


def _pieces(kind: _Kind, wires: Wires, bound: float) -> list[Piece]:
    """What a kind sends, cut among its workers into equal times; into fewer where some of them suffice until `bound`."""
    if len(kind.workers) == 1:
        return [Piece(need, kind.workers[0], num_bytes) for line in kind.lines.values() for need, num_bytes in line]
    rooms = np.zeros(len(kind.workers))
    result = []
    for target, line in kind.lines.items():
        alphas, betas = wires.costs(np.array([kind.host]), target)
        alpha, beta = float(alphas[0]), float(betas[0])
        knife = Knife(alpha=alpha, beta=beta, least_bytes=alpha / beta if beta else np.inf)
        num_bytes = sum(size for _, size in line)
        most = _most_pieces(num_bytes, knife.least_bytes, len(rooms))
        order = np.argsort(rooms, kind="stable")[:most]
        seconds = alpha * (len(line) - 1) + beta * num_bytes
        level = max(bound, float(water_level(rooms[order] + alpha, np.ones(most), seconds)))
        for part in cut(line, np.maximum(0.0, level - rooms[order]).tolist(), knife):
            rooms[order[part.bin]] += alpha + beta * part.num_bytes
            result.append(Piece(part.item, kind.workers[order[part.bin]], part.num_bytes))
    return result
