"""Who takes which slot of the next plan: the assignment that moves the fewest bytes (Chameleon, section IV-B).

Workers that hold the same layers are one kind, slots that want the same layers another: between kinds it is a small
transportation problem instead of the paper's N x N assignment, and as exact. Which of the assignments with the fewest bytes
is taken is decided by prices: all of them keep to the pairs whose reduced cost is zero, and among these the longest wait
for a worker's state is made shortest, then the waits together, then the distance to the holders.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from estimator.arrays import Floats, Ints, Mask
from restorer.proximity import Nearness, Proximity
from restorer.transportation import Counts, tight_pairs, transport

Layers = tuple[int, ...]
"""Ascending indices of the layers that a worker holds or a slot wants."""

FORBIDDEN = 2.0**52
"""Cost of a worker in a slot it must not take; above every sum of bytes that floats count exactly."""

_LEVELS = 2**20
"""Waits are told apart to this part of the longest one, when they are added up."""


def match(cost_bytes: Floats, kept: Mask | None = None) -> tuple[int, ...]:
    """The worker (row) for each slot (column), moving the fewest bytes in all; Kuhn-Munkres, O(n^3).

    Equal costs are broken towards `kept`, then by the solver, which is deterministic.

    Args:
        cost_bytes: bytes that must reach worker i before it can take slot j, shape [workers, slots], workers >= slots.
        kept: whether worker i holds slot j already, same shape.
    """
    costs = cost_bytes * 2 if kept is None else cost_bytes * 2 + ~kept
    rows, columns = linear_sum_assignment(costs)
    order = np.argsort(columns, kind="stable")
    return tuple(int(row) for row in rows[order])


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The workers that slots are given to."""

    names: Sequence[str]
    held: Sequence[Layers]
    """Of each worker; empty where it holds nothing."""
    classes: Sequence[Hashable] | None = None
    """Of each worker: it takes slots of its own class only. None: any slot."""
    leaving: Mapping[str, Layers] = field(default_factory=dict)
    """Layers that others hold, who take no slot but can still hand them over."""


def match_layers(
    layer_bytes: Sequence[int],
    crew: Crew,
    wanted: Sequence[Layers],
    *,
    classes: Sequence[Hashable] | None = None,
    proximity: Proximity | None = None,
) -> tuple[int, ...] | None:
    """The worker (index) for each slot, moving the fewest bytes in all; None where classes leave some slot without a worker.

    Ties: the shortest longest wait for state over the fastest links (with `proximity`), the least sum of waits, the
    nearest holders, then the order of workers and slots.

    Args:
        layer_bytes: state of each layer on one device, shape [layers].
        crew: at least as many workers as there are slots.
        wanted: layers of each slot.
        classes: that each slot asks for; with `crew.classes`.
        proximity: where workers live; None leaves all ties to the order.
    """
    workers = _Kinds.of(crew.held, crew.classes or [None] * len(crew.held))
    slots = _Kinds.of(wanted, classes or [None] * len(wanted))
    costs, allowed = _priced(layer_bytes, workers, slots)
    demand = np.append(slots.counts, len(crew.held) - len(wanted))
    counts = transport(costs, workers.counts, demand, allowed)
    if counts is None:
        return None
    if proximity is not None:
        tight = tight_pairs(costs, counts, allowed)
        holders = _Kinds.of([*crew.held, *crew.leaving.values()], [None] * (len(crew.held) + len(crew.leaving)))
        held = _mask(holders.layers, len(layer_bytes))
        nearness = proximity.nearness([*crew.names, *crew.leaving], holders.kind_of, held, layer_bytes)
        workers, origin = workers.refined(nearness.place_of)
        waits = _Waits.of(nearness, workers, slots)
        counts = waits.least(workers.counts, demand, tight[origin])
    is_kept = missing_bytes(layer_bytes, workers.layers, slots.layers) == 0
    return _dealt(workers, slots, counts[:, :-1], is_kept)


def missing_bytes(layer_bytes: Sequence[int], held: Sequence[Layers], wanted: Sequence[Layers]) -> Ints:
    """Bytes of the layers that each slot needs and each worker lacks. Shape [workers, slots].

    Args:
        layer_bytes: state of each layer on one device, shape [layers].
        held: layers of each worker.
        wanted: layers of each slot.
    """
    lacking, needed = ~_mask(held, len(layer_bytes)), _mask(wanted, len(layer_bytes))
    result: Ints = lacking.astype(np.int64) @ (needed * np.asarray(layer_bytes, dtype=np.int64)).T
    return result


def _mask(layers: Sequence[Layers], num_layers: int) -> Mask:
    mask = np.zeros((len(layers), num_layers), dtype=bool)
    for row, own in zip(mask, layers, strict=True):
        row[list(own)] = True
    return mask


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Workers or slots that are alike, in the order of the first of each kind."""

    keys: list[tuple[Layers, Hashable]]
    members: list[list[int]]

    @classmethod
    def of(cls, layers: Sequence[Layers], classes: Sequence[Hashable]) -> "_Kinds":
        groups: dict[tuple[Layers, Hashable], list[int]] = {}
        for index, key in enumerate(zip(layers, classes, strict=True)):
            groups.setdefault(key, []).append(index)
        return cls(list(groups), list(groups.values()))

    @property
    def layers(self) -> list[Layers]:
        return [layers for layers, _ in self.keys]

    @property
    def counts(self) -> Counts:
        return np.array([len(members) for members in self.members], dtype=np.int64)

    @property
    def kind_of(self) -> npt.NDArray[np.intp]:
        """The kind of each single one."""
        result = np.empty(sum(map(len, self.members)), dtype=np.intp)
        for kind, members in enumerate(self.members):
            result[members] = kind
        return result

    def refined(self, places: npt.NDArray[np.intp]) -> tuple["_Kinds", list[int]]:
        """The kinds told apart by place too, and the kind that each of them is part of."""
        keys: list[tuple[Layers, Hashable]] = []
        members: list[list[int]] = []
        origin = []
        for index, own in enumerate(self.members):
            parts: dict[int, list[int]] = {}
            for member in own:
                parts.setdefault(int(places[member]), []).append(member)
            keys += [self.keys[index]] * len(parts)
            members += parts.values()
            origin += [index] * len(parts)
        return _Kinds(keys, members), origin


def _priced(layer_bytes: Sequence[int], workers: _Kinds, slots: _Kinds) -> tuple[Ints, Mask]:
    """Bytes of each pair of kinds and whether classes allow it; the last column is for workers that take no slot."""
    costs = np.pad(missing_bytes(layer_bytes, workers.layers, slots.layers), ((0, 0), (0, 1)))
    asked = [[own == other for _, other in slots.keys] for _, own in workers.keys]
    return costs, np.pad(np.array(asked, dtype=bool), ((0, 0), (0, 1)), constant_values=True)


@dataclass(frozen=True, slots=True)
class _Waits:
    """What pairs of kinds are told apart by where they cost equally many bytes. Shapes [worker kinds, slot kinds + 1]."""

    seconds: Floats
    distances: Ints

    @classmethod
    def of(cls, nearness: Nearness, workers: _Kinds, slots: _Kinds) -> "_Waits":
        """Of kinds of workers that share a place."""
        places = nearness.place_of[[members[0] for members in workers.members]]
        layer_seconds, layer_distances = nearness.seconds[places], nearness.distances[places]
        num_layers = layer_seconds.shape[1]
        lacking, needed = ~_mask(workers.layers, num_layers), _mask(slots.layers, num_layers)
        seconds = (layer_seconds * lacking) @ needed.T
        distances = (layer_distances * lacking) @ needed.T.astype(np.int64)
        return cls(np.pad(seconds, ((0, 0), (0, 1))), np.pad(distances, ((0, 0), (0, 1))))

    def least(self, supply: Counts, demand: Counts, allowed: Mask) -> Counts:
        """The allowed answer with the shortest longest wait, then the least waits, then the least distances."""
        costs = self._costs(allowed, int(demand.sum()))
        limits = np.unique(self.seconds[allowed])
        low = int(np.searchsorted(limits, np.where(allowed, self.seconds, np.inf).min(axis=0)[demand > 0].max()))
        high = len(limits) - 1
        while low < high:
            middle = (low + high) // 2
            if transport(costs, supply, demand, allowed & (self.seconds <= limits[middle])) is None:
                low = middle + 1
            else:
                high = middle
        counts = transport(costs, supply, demand, allowed & (self.seconds <= limits[high]))
        assert counts is not None
        return counts

    def _costs(self, allowed: Mask, most: int) -> Ints:
        """Waits before distances, whatever up to `most` workers add up to."""
        longest = max(float(self.seconds[allowed].max()), np.finfo(np.float64).tiny)
        waits = np.rint(np.where(allowed, self.seconds, 0.0) / longest * _LEVELS).astype(np.int64)
        return waits * (int(self.distances.max()) * most + 1) + self.distances


def _dealt(workers: _Kinds, slots: _Kinds, counts: Counts, is_kept: Mask) -> tuple[int, ...]:
    """Single workers for single slots, both in order; who keeps its layers is seen to first."""
    queues = [list(reversed(members)) for members in workers.members]
    takers: list[list[int]] = [[] for _ in slots.members]
    pairs = sorted(zip(*np.nonzero(counts), strict=True), key=lambda pair: (not is_kept[pair], pair[1], pair[0]))
    for row, column in pairs:
        takers[column] += [queues[row].pop() for _ in range(counts[row, column])]
    chosen = {
        slot: worker
        for members, own in zip(slots.members, takers, strict=True)
        for slot, worker in zip(members, sorted(own), strict=True)
    }
    return tuple(chosen[slot] for slot in range(len(chosen)))
