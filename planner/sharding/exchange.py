"""Several newcomers at once, and sources that hold different parts of the state: the question and its answer.

A source sends one shard at a time over all its links together, to the receiver farthest away first; a receiver takes in
from all its sources side by side, as the papers' newcomer does. Receivers do not pass on what they have received.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kintsugi.core import checks
from kintsugi.core.errors import InfeasibleError, InvalidInputError
from kintsugi.core.profile import PYDANTIC_CONFIG
from planner.sharding.problem import LONGEST_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of the state that a source holds wholly or not at all, such as a layer."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    num_shards: int

    def __post_init__(self) -> None:
        checks.name("id", self.id)
        checks.positive("num_shards", self.num_shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Who can send, from when on, and which parts."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    ready_seconds: float
    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        checks.name("id", self.id)
        checks.seconds("ready_seconds", self.ready_seconds, at_most=LONGEST_SECONDS)
        checks.unique("parts", self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Who needs which parts."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        checks.name("id", self.id)
        checks.not_empty("parts", self.parts)
        checks.unique("parts", self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way from a source to a receiver; where there is none, nothing can be sent."""

    __pydantic_config__ = PYDANTIC_CONFIG

    source: str
    receiver: str
    propagation_seconds: float
    beta_seconds_per_byte: float

    def __post_init__(self) -> None:
        checks.seconds("propagation_seconds", self.propagation_seconds, at_most=LONGEST_SECONDS)
        checks.seconds("beta_seconds_per_byte", self.beta_seconds_per_byte, at_most=LONGEST_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One part that one receiver needs, and the indices of the links that can bring it."""

    receiver: str
    part: str
    num_shards: int
    links: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What is needed where, and who could send it over which links."""

    __pydantic_config__ = PYDANTIC_CONFIG

    shard_bytes: int
    parts: tuple[Part, ...]
    sources: tuple[Source, ...]
    receivers: tuple[Receiver, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        checks.positive("shard_bytes", self.shard_bytes)
        _check_ids("parts", self.parts)
        _check_ids("sources", self.sources)
        _check_ids("receivers", self.receivers)
        self._check_parts("sources", self.sources)
        self._check_parts("receivers", self.receivers)
        self._check_links()

    def _check_parts(self, field: str, items: Sequence[Source | Receiver]) -> None:
        known = {part.id for part in self.parts}
        for index, item in enumerate(items):
            for position, part in enumerate(item.parts):
                if part not in known:
                    raise InvalidInputError("is no part", field=f"{field}[{index}].parts[{position}]", value=part)

    def _check_links(self) -> None:
        sources, receivers = {source.id for source in self.sources}, {receiver.id for receiver in self.receivers}
        for index, link in enumerate(self.links):
            if link.source not in sources:
                raise InvalidInputError("is no source", field=f"links[{index}].source", value=link.source)
            if link.receiver not in receivers:
                raise InvalidInputError("is no receiver", field=f"links[{index}].receiver", value=link.receiver)
        checks.distinct([repr((link.source, link.receiver)) for link in self.links], lambda index: f"links[{index}]")

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        """Every part that a receiver needs, receiver by receiver.

        Raises:
            InfeasibleError: no source with a link to the receiver holds the part.
        """
        num_shards = {part.id: part.num_shards for part in self.parts}
        held = {source.id: set(source.parts) for source in self.sources}
        result = []
        for receiver in self.receivers:
            mine = [index for index, link in enumerate(self.links) if link.receiver == receiver.id]
            for part in receiver.parts:
                links = tuple(index for index in mine if part in held[self.links[index].source])
                if not links:
                    raise InfeasibleError(
                        f"no source with a link to {receiver.id} holds {part}; add such a link or a holder",
                        field="links",
                        value=part,
                    )
                result.append(Demand(receiver=receiver.id, part=part, num_shards=num_shards[part], links=links))
        return tuple(result)


def _check_ids(field: str, items: Sequence[Part | Source | Receiver]) -> None:
    checks.not_empty(field, items)
    checks.distinct([item.id for item in items], lambda index: f"{field}[{index}].id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """So many shards of a part, from a source to a receiver."""

    __pydantic_config__ = PYDANTIC_CONFIG

    source: str
    receiver: str
    part: str
    num_shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeAnswer:
    """Who sends what, when the last shard arrives, and the least time that any answer could take."""

    __pydantic_config__ = PYDANTIC_CONFIG

    shipments: tuple[Shipment, ...]
    """Receiver by receiver, part by part; only what is sent."""
    makespan_seconds: float
    lower_bound_seconds: float
