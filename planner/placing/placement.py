"""Who takes which slot of an arrangement."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise, zip_longest

import numpy as np

from estimator.arrays import Floats, Mask
from estimator.costs import Costs
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Policy, Schedule, Stage
from kintsugi.core.profile import OptimizerSharding
from planner.arranging.arrangement import Arrangement, PipelineShape
from planner.pipelines.kinds import WorkerKind, kinds_of
from planner.placing.paths import along_path, sides
from planner.placing.survival import exposure, homes_of, homes_of_slots
from restorer.matching import FORBIDDEN, Crew, Layers, match, match_layers, missing_bytes
from restorer.migration import layer_state_bytes
from restorer.proximity import Proximity
from restorer.units import StateUnits
from restorer.wires import Wires

NOT_NEEDED = "no arrangement that was found with this worker is better"


class Layout(Enum):
    """By what workers get their slots."""

    HELD = "held"
    """The fewest bytes move; with nothing to keep, those of one host stand together in the order of the cluster."""
    PIPELINES = "pipelines"
    """Neighbouring stages have fast links."""
    STAGES = "stages"
    """Replicas of a stage have fast links."""
    WHOLE_PIPELINES = "whole pipelines"
    """The same as pipelines, but none lies on both sides of a slow link that fits on one; others than the last stay idle then."""
    WHOLE_STAGES = "whole stages"
    """The same for the replicas of a stage."""
    PLANNED = "planned"
    """On the sides of slow links that the arrangement was planned for (`Arrangement.sides`)."""


@dataclass(frozen=True)
class Holdings:
    """Who holds what before the plan: the plan that ran last and its workers that are alive with their state."""

    plan: Plan | None
    survivors: Collection[str]
    leaving: Collection[str] = ()
    """Workers that take no place any more, but whose state can still be fetched."""

    @property
    def sources(self) -> frozenset[str]:
        """Everybody who can hand state over."""
        return frozenset(self.survivors) | frozenset(self.leaving)

    @cached_property
    def kinds(self) -> Counter[Layers]:
        """How many survivors hold the same layers."""
        return Counter(self.layers_of(worker) for worker in self.survivors)

    def layers_of(self, worker: str) -> Layers:
        """Layers that a worker holds, ascending; none where it holds no state."""
        return self.plan.layers_of.get(worker, ()) if self.plan is not None and worker in self.survivors else ()

    @property
    def leaving_layers(self) -> dict[str, Layers]:
        """Layers of the workers that leave."""
        return {worker: self.plan.layers_of[worker] for worker in sorted(self.leaving)} if self.plan is not None else {}

    def num_holders(self, num_layers: int) -> Sequence[int]:
        """How many workers held each layer under the plan, the dead included. Shape [layers]."""
        return self.plan.num_holders if self.plan is not None else (0,) * num_layers


def place(
    arrangement: Arrangement,
    workers: Sequence[str],
    holdings: Holdings,
    costs: Costs,
    *,
    schedule: Schedule,
    generation: int,
    policy: Policy,
    layout: Layout = Layout.HELD,
) -> Plan:
    """Name the workers of an arrangement; the order of reductions is left to the caller.

    The loss of one host or failure domain leaves a holder of every layer wherever some naming does that. After that the
    fewest bytes move, or, with nothing to keep, workers of one host stand together in the order given; neighbouring
    stages share hosts where that moves nothing, all of them where everybody holds what any place wants.

    Args:
        arrangement: pipelines without names.
        workers: that may be used, in cluster order.
        holdings: who holds what already.
        costs: of the job.
        schedule: order of passes.
        generation: of the plan.
        policy: of the plan.
        layout: by what they get their slots; all but the first pass over what they hold.
    """
    chosen = _Assignment(arrangement, workers, holdings if layout is Layout.HELD else _NOTHING, costs, layout).chosen()
    names = iter(chosen)
    pipelines = tuple(_pipeline(shape, tuple(islice(names, shape.num_workers))) for shape in arrangement.shapes)
    used = set(chosen)
    idle = tuple(IdleWorker(worker=worker, reason=NOT_NEEDED) for worker in workers if worker not in used)
    return Plan(generation=generation, policy=policy, schedule=schedule, pipelines=pipelines, idle_workers=idle)


def _pipeline(shape: PipelineShape, workers: Sequence[str]) -> Pipeline:
    stages = enumerate(pairwise(shape.cuts))
    return Pipeline(
        num_microbatches=shape.num_microbatches,
        stages=tuple(Stage(layer_start=a, layer_stop=b, worker=workers[s % len(workers)]) for s, (a, b) in stages),
    )


def least_migration_seconds(arrangement: Arrangement, holdings: Holdings, costs: Costs) -> float:
    """What reaching an arrangement takes at least: some worker takes in what the closest other holding lacks.

    Slots whose layers as many survivors hold are free. Exact in which kinds of slots lack holders, not in who takes them: a
    holder of what another slot wants may take one that lacks less for it, and leave its own to somebody else.
    """
    wanted: Counter[Layers] = Counter()
    for shape, times in arrangement.groups.items():
        for slot in shape.slots:
            wanted[slot] += times
    held = holdings.kinds
    missing = sorted(wanted - held)
    if not missing:
        return 0.0
    others = [*sorted(held), ()]
    is_sharded = costs.profile.optimizer_sharding is OptimizerSharding.ZERO1  # then some of it may come from a checkpoint
    layer_bytes = StateUnits(costs.profile).parameter_bytes if is_sharded else layer_state_bytes(costs.profile)
    lacking = missing_bytes(layer_bytes, others, missing)
    is_own = np.array([[own == slot for slot in missing] for own in others])
    return float(np.where(is_own, lacking[-1], lacking).min(axis=0).max()) * Wires(costs.profile, costs.cluster).least_intake_beta


def _num_slots(arrangement: Arrangement) -> list[int]:
    """How many slots want each layer. Shape [layers]."""
    return [len(arrangement.shapes)] * arrangement.shapes[0].cuts[-1]


class _Assignment:
    """Who takes which slot of one arrangement."""

    def __init__(self, arrangement: Arrangement, workers: Sequence[str], holdings: Holdings, costs: Costs, layout: Layout) -> None:
        self._arrangement, self._costs, self._is_first, self._layout = arrangement, costs, holdings.plan is None, layout
        slots_of = {shape: shape.slots for shape in arrangement.groups}
        self._slots = [slot for shape in arrangement.shapes for slot in slots_of[shape]]
        self._planned: tuple[WorkerKind | None, ...] = arrangement.kinds or (None,) * len(self._slots)
        self._workers = self._ordered(workers)
        self._held = [holdings.layers_of(worker) for worker in self._workers]
        self._units = StateUnits(costs.profile)
        self._leaving = {worker: self._units.held(layers) for worker, layers in holdings.leaving_layers.items()}
        self._num_holders = holdings.num_holders(costs.profile.num_layers)

    def _ordered(self, workers: Sequence[str]) -> Sequence[str]:
        """Workers in the order in which a first plan takes them."""
        if self._layout is not Layout.HELD:
            return along_path(workers, self._costs)
        return by_host(workers, self._costs.cluster) if self._is_first else workers

    def chosen(self) -> tuple[str, ...]:
        """The worker of every slot."""
        first = self._in_order() if self._is_first else self._together() or self._matched()
        exposed = self._exposure(first)
        if not exposed:
            return self._beside(first)
        other = self._first_spread() if self._is_first else self._spread()
        return self._beside(other if other is not None and self._exposure(other) < exposed else first)

    def _in_order(self) -> tuple[str, ...]:
        """For every slot the next worker of its kind: pipeline by pipeline, or from the first layers of all to the last."""
        if self._layout is Layout.PLANNED and self._arrangement.sides is not None:
            return self._on_sides(self._arrangement.sides)
        if self._arrangement.kinds is None and self._layout in {Layout.HELD, Layout.PIPELINES, Layout.PLANNED}:
            return tuple(self._workers[: len(self._slots)])
        taken: dict[int, str] = {}
        blocks = list(self._blocks())
        if self._layout in {Layout.WHOLE_PIPELINES, Layout.WHOLE_STAGES}:
            blocks = self._apart(blocks, taken)
        used = set(taken.values())
        queues = self._queues(worker for worker in self._workers if worker not in used)
        taken |= {index: queues[self._planned[index]].popleft() for block in blocks for index in block}
        return tuple(taken[index] for index in range(len(self._slots)))

    def _on_sides(self, planned: Sequence[int]) -> tuple[str, ...]:
        """For every slot the next worker of its kind on its side.

        Stage by stage, and from one host of a side after the other, where pipelines go from side to side; pipeline by pipeline
        otherwise.
        """
        places = [range(end - shape.num_workers, end) for shape, end in zip(self._arrangement.shapes, self._ends, strict=True)]
        is_across = any(len({planned[index] for index in own}) > 1 for own in places)
        asked = list(zip(planned, self._planned, strict=True))
        queues = {
            (number, kind): deque(one_of_each_host(own, asked.count((number, kind)), self._costs.cluster)) if is_across else own
            for number, side in enumerate(sides(self._workers, self._costs))
            for kind, own in self._queues(side).items()
        }
        order = [index for stage in zip_longest(*places) for index in stage if index is not None] if is_across else chain(*places)
        taken = {index: queues[asked[index]].popleft() for index in order}
        return tuple(taken[index] for index in range(len(self._slots)))

    @property
    def _ends(self) -> Iterator[int]:
        """Where the slots of each pipeline end."""
        return accumulate(shape.num_workers for shape in self._arrangement.shapes)

    def _apart(self, blocks: Iterable[Sequence[int]], taken: dict[int, str]) -> list[Sequence[int]]:
        """Give slots the first side of slow links on which workers enough are left for all of a block; blocks that fit on none.

        O(slots * sides).

        Args:
            blocks: places of slots that are to lie on one side.
            taken: gets who takes which.
        """
        queues = [self._queues(side) for side in sides(self._workers, self._costs)]
        others = []
        for block in blocks:
            needed = Counter(self._planned[index] for index in block).items()
            side = next((own for own in queues if all(len(own[kind]) >= count for kind, count in needed)), None)
            if side is None:
                others.append(block)
            else:
                taken |= {index: side[self._planned[index]].popleft() for index in block}
        return others

    def _queues(self, workers: Iterable[str]) -> dict[WorkerKind | None, deque[str]]:
        """Some workers by what arrangements tell apart."""
        queues: dict[WorkerKind | None, deque[str]] = defaultdict(deque)
        for worker in workers:
            queues[None if self._arrangement.kinds is None else self._kind_of[worker]].append(worker)
        return queues

    def _blocks(self) -> Iterator[Sequence[int]]:
        """Places of the slots that are to have fast links, in the order in which they are taken: pipelines, or as many stages."""
        if self._layout in {Layout.STAGES, Layout.WHOLE_STAGES}:
            order, dp = sorted(range(len(self._slots)), key=self._depth), len(self._arrangement.shapes)
            yield from (order[start : start + dp] for start in range(0, len(order), dp))
            return
        places = iter(range(len(self._slots)))
        yield from (tuple(islice(places, shape.num_workers)) for shape in self._arrangement.shapes)

    def _depth(self, index: int) -> int:
        """Twice where the middle of a slot's layers is in the model."""
        return self._slots[index][0] + self._slots[index][-1]

    def _together(self) -> tuple[str, ...] | None:
        """Neighbouring stages on one host, the fullest hosts first, for equal workers; None where that moves anything."""
        host_of = {worker: self._costs.cluster.by_id[worker].host for worker in self._workers}
        sizes = Counter(host_of.values())
        if self._arrangement.kinds is not None or len(sizes) == len(host_of):
            return None
        ordered = sorted(by_host(self._workers, self._costs.cluster), key=lambda worker: -sizes[host_of[worker]])
        held, chosen = dict(zip(self._workers, self._held, strict=True)), tuple(ordered[: len(self._slots)])
        keep = (
            set(self._units.wanted(slot)) <= set(self._units.held(held[worker]))
            for worker, slot in zip(chosen, self._slots, strict=True)
        )
        return chosen if all(keep) else None

    def _matched(self) -> tuple[str, ...]:
        """The fewest bytes move."""
        if self._arrangement.kinds is None:
            return self._by_layers(None, None)
        return self._by_layers(self._kinds, self._planned)

    def _by_layers(self, classes: Sequence[Hashable] | None, asked: Sequence[Hashable] | None) -> tuple[str, ...]:
        """The fewest bytes move, each slot taken by a worker of the class that it asks for."""
        held, wanted = _each(self._units.held, self._held), _each(self._units.wanted, self._slots)
        crew = Crew(names=self._workers, held=held, classes=classes, leaving=self._leaving)
        proximity = Proximity(self._costs.cluster, self._costs.profile.network)
        rows = match_layers(self._unit_bytes, crew, wanted, classes=asked, proximity=proximity)
        assert rows is not None
        return tuple(self._workers[row] for row in rows)

    def _first_spread(self) -> tuple[str, ...] | None:
        """`_spread` where nothing is kept, which is the same in every layout over workers in one order. Kept in `Costs.spreads`."""
        kinds = None if self._arrangement.kinds is None else tuple(self._kinds)
        key = tuple(self._workers), tuple(self._slots), self._planned, kinds
        if key not in self._costs.spreads:
            self._costs.spreads[key] = self._spread()
        return self._costs.spreads[key]

    def _spread(self) -> tuple[str, ...] | None:
        """Replicas in different hosts and failure domains, and then the fewest bytes move; None where that was not found."""
        by_id = self._costs.cluster.by_id
        kinds = self._kinds if self._arrangement.kinds is not None else [None] * len(self._workers)
        slots = list(zip(self._slots, self._planned, strict=True))
        homes = homes_of([by_id[worker] for worker in self._workers], kinds, len(set(slots)))
        wanted = homes_of_slots(slots, homes, self._cost, is_programmed=not self._is_first)
        if wanted is None:
            return None
        if not self._is_first:
            return self._by_layers(homes, wanted)
        is_elsewhere = np.array([[home != other for other in wanted] for home in homes])
        return tuple(self._workers[row] for row in match(self._cost + FORBIDDEN * is_elsewhere))

    def _beside(self, chosen: tuple[str, ...]) -> tuple[str, ...]:
        """Alike pipelines exchange workers of one stage so that neighbours have fast links; no holding changes by that."""
        hosts = {worker: self._costs.cluster.by_id[worker].host for worker in chosen}
        num_hosts, is_in_order = len(set(hosts.values())), self._is_first and self._layout is Layout.HELD
        if is_in_order or num_hosts == 1 or (num_hosts == len(chosen) and not self._costs.cluster.links):
            return chosen
        alike: dict[tuple[tuple[int, ...], tuple[WorkerKind | None, ...]], list[int]] = defaultdict(list)
        start = 0
        for shape in self._arrangement.shapes:
            alike[shape.cuts, self._planned[start : start + shape.num_workers]].append(start)
            start += shape.num_workers
        result = list(chosen)
        for (cuts, planned), starts in alike.items():
            for stage in range(1, len(planned)):
                present, before = ([result[start + place] for start in starts] for place in (stage, stage - 1))
                between = [hosts[worker] for worker in present], [hosts[worker] for worker in before]
                rows = match(self._distances(*between, boundary=cuts[stage]), np.eye(len(starts), dtype=bool))
                for start, row in zip(starts, rows, strict=True):
                    result[start + stage] = present[row]
        return tuple(result)

    def _distances(self, hosts: Sequence[str], others: Sequence[str], *, boundary: int) -> Floats:
        """Nanoseconds that the activation in front of a layer takes, whole ones, by which matches break no tie that is none.

        Where no links differ, whether it goes on. Shape [hosts, others].
        """
        if self._costs.host_links is None:
            away: Mask = np.array(hosts)[:, None] != np.array(others)[None, :]
            return away.astype(np.float64)
        output_bytes = self._costs.profile.layers[boundary - 1].output_bytes
        return np.rint(self._costs.host_links.transfer_seconds(hosts, others, output_bytes) * 1e9)

    def _exposure(self, chosen: Sequence[str]) -> float:
        pairs = iter(zip(self._slots, chosen, strict=True))
        pipelines = [list(islice(pairs, shape.num_workers)) for shape in self._arrangement.shapes]
        return exposure(pipelines, self._costs.cluster, self._workers)

    @cached_property
    def _kinds(self) -> Sequence[WorkerKind]:
        kinds, levels = kinds_of(self._workers, self._costs.cluster, self._costs.profile), self._arrangement.levels
        return kinds if levels is None else [levels[kind] for kind in kinds]

    @cached_property
    def _kind_of(self) -> dict[str, WorkerKind]:
        return dict(zip(self._workers, self._kinds, strict=True))

    @cached_property
    def _cost(self) -> Floats:
        """Bytes that a worker lacks for a slot; for a first plan the distance from its place. Shape [workers, slots]."""
        if self._is_first:
            return np.abs(np.arange(len(self._workers), dtype=np.float64)[:, None] - np.arange(len(self._slots))[None, :])
        held, wanted = _each(self._units.held, self._held), _each(self._units.wanted, self._slots)
        return missing_bytes(self._unit_bytes, held, wanted).astype(np.float64)

    @cached_property
    def _unit_bytes(self) -> tuple[int, ...]:
        return self._units.moving_bytes(self._num_holders, _num_slots(self._arrangement))


_NOTHING = Holdings(None, ())


def _each(units_of: Callable[[Layers], Layers], layers: Sequence[Layers]) -> list[Layers]:
    """Units for the layers of each, reckoned once for those that are alike."""
    units = {own: units_of(own) for own in dict.fromkeys(layers)}
    return [units[own] for own in layers]


def one_of_each_host(workers: Iterable[str], count: int, cluster: Cluster) -> tuple[str, ...]:
    """So many workers: the first of each host, then the second of each, and so on; of the fewest hosts, but two at least."""
    fullest = sorted(cluster.by_host(workers).values(), key=len, reverse=True)
    num_needed = next(number for number, room in enumerate(accumulate(map(len, fullest)), 1) if room >= count)
    turns = zip_longest(*fullest[: max(2, num_needed)])
    return tuple(islice((worker for turn in turns for worker in turn if worker is not None), count))


def by_host(workers: Sequence[str], cluster: Cluster) -> tuple[str, ...]:
    """Workers of one failure domain together, in it those of one host; otherwise in the order given."""
    first: dict[str, int] = {}
    keys = {}
    for index, worker in enumerate(workers):
        own = cluster.by_id[worker]
        groups = [f"domain {name}" for name in reversed(own.failure_domains)] + [f"host {own.host}"]
        keys[worker] = tuple(first.setdefault(group, index) for group in groups)
    return tuple(sorted(workers, key=lambda worker: keys[worker]))
