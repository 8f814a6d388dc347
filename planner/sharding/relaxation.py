"""The exchange with divisible shards: how the load would best be spread, and a proven lower bound.

The relaxation is a linear program, and a solver's optimum is only nearly right. What is proven is its dual: for any
weights u of the sources, by the time T

    sum over demands of  num_shards * min over its links (u * cost)  <=  sum over sources of  u * max(0, T - offset)

because no shard can be sent for less than its cheapest weighted link, and a source sends nothing before its offset. The
left side is what must be sent, the right side a vessel per source: the least such T is a water level, found in exact
arithmetic. The solver only proposes the weights; bad ones give a worse bound, never a wrong one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from planner.sharding.exact import earliest_counts, water_level
from planner.sharding.exchange import Demand, Exchange
from planner.sharding.problem import ExactTimes, common_shift, ticks

_WEIGHT_SCALE = 1 << 60
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTimes:
    """The times of an exchange in ticks of `2**-shift` s; sources and links by index."""

    shift: int
    ready: tuple[int, ...]
    source_of: tuple[int, ...]
    """Shape [links]."""
    propagation: tuple[int, ...]
    costs: tuple[int, ...]
    """One shard over each link. Shape [links]."""
    offsets: tuple[int, ...]
    """Earliest arrival of anything from each source, whatever the receiver. Shape [sources]."""

    @classmethod
    def of(cls, exchange: Exchange) -> "ExchangeTimes":
        """The times of `exchange`."""
        index_of = {source.id: index for index, source in enumerate(exchange.sources)}
        values = [source.ready_seconds for source in exchange.sources]
        values += [v for link in exchange.links for v in (link.propagation_seconds, link.beta_seconds_per_byte)]
        shift = common_shift(values)
        ready = tuple(ticks(source.ready_seconds, shift) for source in exchange.sources)
        source_of = tuple(index_of[link.source] for link in exchange.links)
        propagation = tuple(ticks(link.propagation_seconds, shift) for link in exchange.links)
        nearest: dict[int, int] = {}
        for source, delay in zip(source_of, propagation, strict=True):
            nearest[source] = min(delay, nearest.get(source, delay))
        return cls(
            shift=shift,
            ready=ready,
            source_of=source_of,
            propagation=propagation,
            costs=tuple(ticks(link.beta_seconds_per_byte, shift) * exchange.shard_bytes for link in exchange.links),
            offsets=tuple(start + nearest.get(source, 0) for source, start in enumerate(ready)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """A nearly optimal spread of divisible shards over the sources that can start in time."""

    theta: float = float("inf")
    """Its makespan, in units that all programs of one exchange share."""
    shares: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Share of a demand that a link brings, by demand and link."""
    weights: Mapping[int, int] = field(default_factory=dict)
    """The program's dual: what a tick of a source is worth. Sources that are not there start too late."""


def relax(demands: Sequence[Demand], times: ExchangeTimes) -> Relaxation:
    """The best spread of divisible shards.

    The program wants every source's offset before the makespan, which holds only for sources that send. So it is solved
    for the sources that begin earliest, as many as begin before it ends: bisection over their number, which takes one
    program where all of them do.
    """
    lone = [_lone_bound(demand, times) for demand in demands]
    scale, latest = max([1, *lone]), sum(lone)  # one demand after the other is an answer, too
    demands = [_in_time(demand, times, latest) for demand in demands]
    linked = {times.source_of[link] for demand in demands for link in demand.links}
    sources = sorted(linked, key=lambda source: (times.offsets[source], source))
    best, low, high = Relaxation(), 0, len(sources)
    tried = high
    while low < high:
        result = _program(demands, times, sources[:tried], scale)
        best = min(result, best, key=lambda relaxation: relaxation.theta)
        if result.theta > times.offsets[sources[tried - 1]] / scale * (1 + _TOLERANCE):
            low = tried
        else:
            high = tried - 1
        tried = (low + high + 1) // 2
    return best


def _in_time(demand: Demand, times: ExchangeTimes, latest: int) -> Demand:
    """`demand` with the links alone that can bring a shard by `latest`."""
    links = (link for link in demand.links if times.offsets[times.source_of[link]] + times.costs[link] <= latest)
    return replace(demand, links=tuple(links))


def lower_bound(demands: Sequence[Demand], times: ExchangeTimes, weights: Mapping[int, int]) -> int:
    """A time in ticks before which no answer can end: the weighted bound, or that of one demand alone, the greater."""
    return max([_weighted_bound(demands, times, weights), *(_lone_bound(demand, times) for demand in demands)])


def _lone_bound(demand: Demand, times: ExchangeTimes) -> int:
    """The least makespan if there were only this demand."""
    alone = ExactTimes(
        offsets=tuple(times.ready[times.source_of[link]] + times.propagation[link] for link in demand.links),
        costs=tuple(times.costs[link] for link in demand.links),
        shift=times.shift,
    )
    return alone.makespan(earliest_counts(alone, demand.num_shards))


def _weighted_bound(demands: Sequence[Demand], times: ExchangeTimes, weights: Mapping[int, int]) -> int:
    """The water level of the module's inequality. Sources without a weight may be worth anything until they start."""
    vessels = [(times.offsets[source], weight) for source, weight in weights.items() if weight]
    volume = 0
    for demand in demands:
        links = [link for link in demand.links if times.source_of[link] in weights]
        volume += demand.num_shards * min((weights[times.source_of[link]] * times.costs[link] for link in links), default=0)
    if not volume:
        return 0
    late = [times.offsets[s] for demand in demands for link in demand.links if (s := times.source_of[link]) not in weights]
    return min([water_level(vessels, volume), *late])


def _program(demands: Sequence[Demand], times: ExchangeTimes, sources: Sequence[int], scale: int) -> Relaxation:
    """The linear program over `sources`: shares of the demands, and theta in units of `scale` ticks."""
    row_of = {source: row for row, source in enumerate(sources)}
    pairs = [(d, link) for d, demand in enumerate(demands) for link in demand.links if times.source_of[link] in row_of]
    if len({d for d, _ in pairs}) < len(demands):
        return Relaxation()
    loads = [demands[d].num_shards * times.costs[link] / scale for d, link in pairs]
    columns = np.arange(len(pairs))
    busy = sparse.csr_array((loads, ([row_of[times.source_of[link]] for _, link in pairs], columns)), (len(sources), len(pairs)))
    result = linprog(
        np.append(np.zeros(len(pairs)), 1.0),
        A_ub=sparse.hstack([busy, -np.ones((len(sources), 1))]),
        b_ub=[-times.offsets[source] / scale for source in sources],
        A_eq=sparse.csr_array((np.ones(len(pairs)), ([d for d, _ in pairs], columns)), (len(demands), len(pairs) + 1)),
        b_eq=np.ones(len(demands)),
        method="highs",
    )
    if result.x is None:
        return Relaxation()
    prices = [round(-price * _WEIGHT_SCALE) for price in result.ineqlin.marginals]
    return Relaxation(
        theta=float(result.fun),
        shares={pair: float(share) for pair, share in zip(pairs, result.x, strict=False) if share > 0},
        weights={source: max(0, price) for source, price in zip(sources, prices, strict=True)},
    )
