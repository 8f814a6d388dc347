"""The question of shard assignment, its answer, and the exact arithmetic in which it is answered."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import PYDANTIC_CONFIG

LONGEST_SECONDS = 1e200
"""Longest time that is computed with: whatever the number of shards, no sum of such times leaves the range of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbor:
    """A source next to the newcomer: n bytes from it arrive `ready + propagation + n * beta` seconds from now."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    propagation_seconds: float
    """The papers' t_prop: latency of the link, paid once."""
    ready_seconds: float
    """The papers' tau_sync: when the neighbour is through with its all-reduce and can begin to send."""
    beta_seconds_per_byte: float
    """The papers' t_trans: inverse bandwidth of the link."""

    def __post_init__(self) -> None:
        checks.name("id", self.id)
        for field in ("propagation_seconds", "ready_seconds", "beta_seconds_per_byte"):
            checks.seconds(field, getattr(self, field), at_most=LONGEST_SECONDS)

    def arrival_seconds(self, num_bytes: int) -> float:
        """When the last of `num_bytes` bytes arrives (equation 1 and tau_sync), rounded as floating-point sums are."""
        return self.ready_seconds + self.propagation_seconds + num_bytes * self.beta_seconds_per_byte


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardProblem:
    """Share `num_shards` equal shards out among neighbours that all hold all of them."""

    __pydantic_config__ = PYDANTIC_CONFIG

    num_shards: int
    shard_bytes: int
    min_shards_per_neighbor: int = 1
    """1 in the multi-party paper (equation 8), 0 in the edge paper's Algorithm 2."""
    neighbors: tuple[Neighbor, ...]

    def __post_init__(self) -> None:
        checks.positive("num_shards", self.num_shards)
        checks.positive("shard_bytes", self.shard_bytes)
        checks.non_negative("min_shards_per_neighbor", self.min_shards_per_neighbor)
        checks.not_empty("neighbors", self.neighbors)
        checks.distinct([neighbor.id for neighbor in self.neighbors], lambda index: f"neighbors[{index}].id")
        needed = self.min_shards_per_neighbor * len(self.neighbors)
        if self.num_shards < needed:
            raise InvalidInputError(
                f"must be at least {needed}: {len(self.neighbors)} neighbors send at least "
                f"{self.min_shards_per_neighbor} each; ask fewer neighbors or lower min_shards_per_neighbor",
                field="num_shards",
                value=self.num_shards,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAssignment:
    """How many shards each neighbour sends, and when the last one arrives."""

    __pydantic_config__ = PYDANTIC_CONFIG

    makespan_seconds: float
    """The exact makespan, rounded once to the nearest number."""
    counts: tuple[int, ...]
    """Shards by neighbour, in the problem's order. Shape [neighbors]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactTimes:
    """Offsets and costs as whole numbers of ticks, `2**-shift` s each.

    Every finite floating-point number is a whole multiple of a power of two, so nothing is lost, and sums, products and
    comparisons of ticks do not round: "optimal" means optimal for the very numbers that were given.
    """

    offsets: tuple[int, ...]
    """When each source can deliver its first byte: ready + propagation (r_u in the multi-party paper). Shape [sources]."""
    costs: tuple[int, ...]
    """What each further shard of a source takes: shard bytes * beta (p_u). Shape [sources]."""
    shift: int

    @classmethod
    def of(cls, problem: ShardProblem) -> "ExactTimes":
        """The times of `problem`, before anything is assigned."""
        neighbors = problem.neighbors
        shift = common_shift(time for n in neighbors for time in (n.ready_seconds, n.propagation_seconds, n.beta_seconds_per_byte))
        return cls(
            offsets=tuple(ticks(n.ready_seconds, shift) + ticks(n.propagation_seconds, shift) for n in neighbors),
            costs=tuple(ticks(n.beta_seconds_per_byte, shift) * problem.shard_bytes for n in neighbors),
            shift=shift,
        )

    def after(self, num_shards: int) -> "ExactTimes":
        """The times once every source has been given `num_shards` shards."""
        offsets = tuple(offset + num_shards * cost for offset, cost in zip(self.offsets, self.costs, strict=True))
        return ExactTimes(offsets=offsets, costs=self.costs, shift=self.shift)

    def makespan(self, counts: Sequence[int]) -> int:
        """When the last shard arrives, in ticks; a source that sends nothing holds nobody up."""
        loads = zip(self.offsets, self.costs, counts, strict=True)
        return max(offset + count * cost for offset, cost, count in loads if count)

    def assignment(self, counts: Sequence[int]) -> ShardAssignment:
        """`counts` with their makespan."""
        return ShardAssignment(makespan_seconds=seconds(self.makespan(counts), self.shift), counts=tuple(counts))


def common_shift(values: Iterable[float]) -> int:
    """The least shift that makes every one of `values` a whole number of ticks."""
    return max(value.as_integer_ratio()[1].bit_length() - 1 for value in values)


def ticks(value: float, shift: int) -> int:
    """`value` seconds in ticks; exact for a `shift` of at least `common_shift`."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << shift) // denominator


def seconds(num_ticks: int, shift: int) -> float:
    """Ticks in seconds, rounded to nearest: equal ticks give equal seconds, and more ticks never give less."""
    return num_ticks / (1 << shift)
