"""Several receivers at once, and sources that hold different parts: who sends what, with a proven lower bound."""

from collections import defaultdict
from collections.abc import Sequence

from planner.sharding.exact import earliest_counts
from planner.sharding.exchange import Demand, Exchange, ExchangeAnswer, Shipment
from planner.sharding.problem import ExactTimes, seconds
from planner.sharding.relaxation import ExchangeTimes, Relaxation, lower_bound, relax

MAX_PASSES = 16
"""Most passes over all demands; each one but the last makes the answer better."""


def distribute(exchange: Exchange) -> ExchangeAnswer:
    """Who sends how many shards of what to whom, for a short makespan.

    Divisible shards are spread by a linear program, its shares rounded down, and what is left of each demand dealt out to
    its earliest completions. Then demand by demand is taken back and dealt out anew, given all others, which never makes
    the answer worse; a single demand is therefore answered optimally (`assign_shards` with no minimum). Nothing loops over
    shards.

    Raises:
        InfeasibleError: a receiver needs a part that no source with a link to it holds.
    """
    demands, times = exchange.demands, ExchangeTimes.of(exchange)
    relaxation = relax(demands, times)
    dealing = _Dealing(demands, times)
    _round_down(dealing, relaxation)
    makespan = _improve(dealing)
    return ExchangeAnswer(
        shipments=_shipments(exchange, dealing),
        makespan_seconds=seconds(makespan, times.shift),
        lower_bound_seconds=seconds(lower_bound(demands, times, relaxation.weights), times.shift),
    )


class _Dealing:
    """How many shards of each demand each link brings, and what that keeps the sources busy with."""

    def __init__(self, demands: Sequence[Demand], times: ExchangeTimes) -> None:
        self.demands, self.times = demands, times
        self.counts = [dict.fromkeys(demand.links, 0) for demand in demands]
        self._on_link = [0] * len(times.costs)
        self._links_of = defaultdict(list)
        for link in sorted(range(len(times.costs)), key=lambda link: -times.propagation[link]):
            self._links_of[times.source_of[link]].append(link)

    def put(self, demand: int, link: int, num_shards: int) -> None:
        """Have `link` bring so many more (or fewer) shards of a demand."""
        self.counts[demand][link] += num_shards
        self._on_link[link] += num_shards

    def deal(self, demand: int) -> None:
        """Deal out what is missing of a demand, each shard to the link on which it completes first."""
        links = self.demands[demand].links
        missing = self.demands[demand].num_shards - sum(self.counts[demand].values())
        heads = ExactTimes(
            offsets=tuple(self._end(self.times.source_of[link], link) for link in links),
            costs=tuple(self.times.costs[link] for link in links),
            shift=self.times.shift,
        )
        for link, count in zip(links, earliest_counts(heads, missing), strict=True):
            self.put(demand, link, count)

    def take_back(self, demand: int) -> dict[int, int]:
        """Take a demand's shards off all links; returns where they were."""
        before = dict(self.counts[demand])
        for link, count in before.items():
            self.put(demand, link, -count)
        return before

    def makespan(self) -> int:
        """When the last shard arrives, in ticks."""
        return max(self._end(source, None) for source in self._links_of)

    def _end(self, source: int, link: int | None) -> int:
        """The last arrival from a source; with a link, the last of those that one more shard on it would delay.

        The receiver farthest away is served first (Jackson's rule: no order of sending ends earlier).
        """
        now, end, counts = self.times.ready[source], 0, link is None
        for other in self._links_of[source]:
            now += self._on_link[other] * self.times.costs[other]
            counts = counts or other == link
            if counts and (self._on_link[other] or other == link):
                end = max(end, now + self.times.propagation[other])
        return end


def _round_down(dealing: _Dealing, relaxation: Relaxation) -> None:
    """Give every link its share, rounded down, and deal out the rest."""
    missing = [demand.num_shards for demand in dealing.demands]
    for (demand, link), share in relaxation.shares.items():
        count = min(int(share * dealing.demands[demand].num_shards), missing[demand])
        dealing.put(demand, link, count)
        missing[demand] -= count
    for demand in range(len(dealing.demands)):
        dealing.deal(demand)


def _improve(dealing: _Dealing) -> int:
    """Deal every demand out anew as long as that helps; returns the makespan in ticks."""
    makespan = dealing.makespan()
    for _ in range(MAX_PASSES):
        for demand in range(len(dealing.demands)):
            dealing.take_back(demand)
            dealing.deal(demand)
        previous, makespan = makespan, dealing.makespan()
        if makespan == previous:
            break
    return makespan


def _shipments(exchange: Exchange, dealing: _Dealing) -> tuple[Shipment, ...]:
    return tuple(
        Shipment(source=exchange.links[link].source, receiver=demand.receiver, part=demand.part, num_shards=count)
        for demand, counts in zip(dealing.demands, dealing.counts, strict=True)
        for link, count in counts.items()
        if count
    )
