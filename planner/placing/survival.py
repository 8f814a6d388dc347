"""Which host every slot goes to, so that the loss of one host or failure domain leaves a holder of every layer."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from estimator.arrays import Floats, Ints, Mask
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.plan import Plan
from planner.placing.separating import Separation

HOST_WEIGHT, DOMAIN_WEIGHT = 1000.0, 1.0
"""What it costs that one host, or one failure domain, holds all replicas of a layer; moving state costs less than one."""

MOST_VARIABLES = 2_000
"""With so many workers times slot types each worker is looked at by itself; beyond, bytes are those of the closest holder."""

MOST_NODES = 2_000
"""Branches of the integer program that are explored."""

Layers = tuple[int, ...]
"""Ascending layers of one worker."""

_Exposure = tuple[str, tuple[int, ...], int]
"""A host or domain, types of slots that hold some layers together, and how many layers."""


@dataclass(frozen=True, slots=True)
class Home:
    """What workers that fail together and serve alike have in common."""

    units: frozenset[str]
    """The host and the failure domains: what may be lost as one."""
    kind: object
    """Workers of one kind are interchangeable."""
    worker: str | None = None
    """The worker, where each has a home of its own."""


def homes_of(workers: Sequence[Worker], kinds: Sequence[object], num_types: int) -> list[Home]:
    """Where workers live: each for itself while that gives few variables, else those that fail together as one.

    Args:
        workers: that may be used.
        kinds: of the workers.
        num_types: kinds of slots that there are.
    """
    is_apart = len(workers) * num_types <= MOST_VARIABLES
    return [Home(_units(w), kind, w.id if is_apart else None) for w, kind in zip(workers, kinds, strict=True)]


def exposure(pipelines: Iterable[Sequence[tuple[Layers, str]]], cluster: Cluster, usable: Iterable[str]) -> float:
    """Weighted number of (layer, unit) where one unit holds all replicas of the layer, two at least; 0 is safe.

    Units that hold all usable workers do not count: nothing helps against their loss. O(layers) where the first two
    pipelines share no unit.

    Args:
        pipelines: layers of every worker, and the worker.
        cluster: says where workers live.
        usable: workers that might be used.
    """
    hopeless = _in_all(cluster.by_id[worker] for worker in usable)
    common: dict[int, frozenset[str]] = {}
    for index, stages in enumerate(pipelines):
        for layers, worker in stages:
            units = _units(cluster.by_id[worker]) - hopeless
            for layer in layers:
                common[layer] = common[layer] & units if index else units
        if not any(common.values()):
            return 0.0
    return sum(_weight(unit) for units in common.values() for unit in units) if index else 0.0


def plan_exposure(plan: Plan, cluster: Cluster, usable: Iterable[str]) -> float:
    """`exposure` of a plan's living workers."""
    pipelines = ([(tuple(stage.layers), stage.worker) for stage in own.stages if stage.worker] for own in plan.pipelines)
    return exposure(pipelines, cluster, usable)


def _in_all(workers: Iterable[Worker]) -> frozenset[str]:
    """Hosts and failure domains that hold every one of them."""
    remaining = iter(workers)
    result = _units(next(remaining))
    while result and (worker := next(remaining, None)) is not None:
        result &= _units(worker)
    return result


def _units(worker: Worker) -> frozenset[str]:
    """Hosts and failure domains have names of their own."""
    return frozenset((f"host {worker.host}", *(f"domain {name}" for name in worker.failure_domains)))


def _weight(unit: str) -> float:
    return HOST_WEIGHT if unit.startswith("host ") else DOMAIN_WEIGHT


@dataclass(frozen=True, slots=True)
class Spread:
    """The integer program: how many slots of each type go to each home."""

    homes: Sequence[Home]
    num_workers: Sequence[int]
    """Shape [homes]."""
    types: Sequence[tuple[Layers, object]]
    """Layers of a slot and the kind of worker that it is planned for; None takes any."""
    num_slots: Sequence[int]
    """Shape [types]."""
    cost: Floats
    """Of a slot of a type in a home, at most 1 over all slots. Shape [homes, types]."""

    def solve(self, *, is_programmed: bool = False) -> Ints | None:
        """Slots per home and type, exposed least; None where the search was cut short. Shape [homes, types].

        Args:
            is_programmed: leave it to the integer program alone, which is as exact and takes others of equally good answers.
        """
        exposed = list(self._exposures())
        found = None if is_programmed else self._separated(exposed)
        return found if found is not None else self._programmed(exposed)

    @property
    def _fits(self) -> Mask:
        """Whether a home's workers are of the kind that a type is planned for. Shape [homes, types]."""
        return np.array([[kind is None or kind == home.kind for _, kind in self.types] for home in self.homes])

    def _separated(self, exposed: Sequence[_Exposure]) -> Ints | None:
        """By assigning single workers (`planner.placing.separating`): where that ends, in a fraction of a program's time."""
        home_of, type_of = (np.repeat(np.arange(len(counts)), counts) for counts in (self.num_workers, self.num_slots))
        units = list(dict.fromkeys(unit for unit, _, _ in exposed))
        groups = list(dict.fromkeys(group for _, group, _ in exposed))
        penalty = {(group, unit): _weight(unit) * num_layers for unit, group, num_layers in exposed}
        shape = len(groups), len(units)
        separation = Separation(
            cost=np.where(self._fits, self.cost, np.inf)[home_of][:, type_of].T,
            types=type_of,
            units=np.array([[unit in self.homes[home].units for unit in units] for home in home_of.tolist()], dtype=np.bool_),
            groups=np.array([np.isin(type_of, group) for group in groups], dtype=np.bool_).reshape(len(groups), len(type_of)),
            penalties=np.array([[penalty[group, unit] for unit in units] for group in groups]).reshape(shape),
        )
        if (workers := separation.solve()) is None:
            return None
        counts = np.zeros(self.cost.shape, dtype=np.int64)
        np.add.at(counts, (home_of[workers], type_of), 1)
        return counts

    def _programmed(self, exposed: Sequence[_Exposure]) -> Ints | None:
        """By an integer program."""
        size = len(self.homes) * len(self.types)
        weights = [_weight(unit) * num_layers for unit, _, num_layers in exposed]
        most = np.where(self._fits, np.array(self.num_slots)[None, :], 0).ravel()
        result = milp(
            np.array([*self.cost.ravel(), *weights]),
            integrality=np.array([1] * size + [0] * len(exposed)),
            bounds=Bounds(0, np.array([*most, *([np.inf] * len(exposed))])),
            constraints=self._constraints(exposed),
            options={"node_limit": MOST_NODES, "mip_rel_gap": 0.0},
        )
        if result.x is None:
            return None
        counts: Ints = np.rint(result.x[:size]).astype(np.int64).reshape(self.cost.shape)
        return counts

    def _exposures(self) -> Iterator[_Exposure]:
        """Every unit with every set of slot types that hold some layers together."""
        types_of: dict[int, list[int]] = defaultdict(list)
        for index, (layers, _) in enumerate(self.types):
            for layer in layers:
                types_of[layer].append(index)
        num_layers = Counter(tuple(types_of[layer]) for layer in sorted(types_of))
        units = sorted({unit for home in self.homes for unit in home.units})
        for group, count in num_layers.items():
            if sum(self.num_slots[t] for t in group) > 1:
                yield from ((unit, group, count) for unit in units)

    def _constraints(self, exposed: Sequence[_Exposure]) -> LinearConstraint:
        """Slots are filled, homes are not overfilled, and a unit that holds all replicas of some layers is counted."""
        num_homes, num_types = self.cost.shape
        place = np.arange(num_homes * num_types).reshape(num_homes, num_types)
        columns = [*place.T.tolist(), *place.tolist()]
        low: list[float] = [*self.num_slots, *([0] * num_homes)]
        high: list[float] = [*self.num_slots, *self.num_workers]
        for index, (unit, group, _) in enumerate(exposed):
            inside = [place[h, t] for h, home in enumerate(self.homes) if unit in home.units for t in group]
            columns.append([*inside, place.size + index])
            low.append(-np.inf)
            high.append(sum(self.num_slots[t] for t in group) - 1)
        matrix = lil_array((len(columns), place.size + len(exposed)))
        for row, own in enumerate(columns):
            matrix[row, own] = 1.0
            if own[-1] >= place.size:
                matrix[row, own[-1]] = -1.0
        return LinearConstraint(matrix.tocsr(), low, high)


def homes_of_slots(
    slots: Sequence[tuple[Layers, object]], homes: Sequence[Home], cost: Floats, *, is_programmed: bool = False
) -> tuple[Home, ...] | None:
    """The home of every slot with the least exposure, at the least cost; None where none was found.

    Args:
        slots: layers, and the kind of worker that the slot is planned for; None takes any.
        homes: of every usable worker.
        cost: of every worker in every slot, shape [workers, slots].
        is_programmed: as in `Spread.solve`.
    """
    distinct, types = list(dict.fromkeys(homes)), list(dict.fromkeys(slots))
    home_index, type_index = np.array([distinct.index(h) for h in homes]), np.array([types.index(s) for s in slots])
    least = np.full((len(distinct), len(types)), np.inf)
    np.minimum.at(least, (home_index[:, None], type_index[None, :]), cost)
    num_slots, num_workers = Counter(slots), Counter(homes)
    scale = float(cost.max()) * len(slots)
    spread = Spread(
        homes=distinct,
        num_workers=[num_workers[home] for home in distinct],
        types=types,
        num_slots=[num_slots[kind] for kind in types],
        cost=least / scale if scale else least,
    )
    counts = spread.solve(is_programmed=is_programmed)
    if counts is None:
        return None
    queues = [[home for home, count in zip(distinct, column, strict=True) for _ in range(count)] for column in counts.T.tolist()]
    return tuple(queues[index].pop(0) for index in type_index)
