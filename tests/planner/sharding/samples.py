"""Shard problems to try the planner on: written out, and drawn by hypothesis."""

from hypothesis import strategies as st

from planner.sharding.exchange import Exchange, Link, Part, Receiver, Source
from planner.sharding.problem import Neighbor, ShardProblem

COARSE = st.integers(0, 3).map(float)
"""Few values, so that completions coincide; zero among them."""
FINE = st.floats(0, 1e3, allow_subnormal=False)
TIMES = st.one_of(COARSE, FINE)


def neighbor(name: str, beta: float, ready: float = 0.0, propagation: float = 0.0) -> Neighbor:
    return Neighbor(id=name, ready_seconds=ready, propagation_seconds=propagation, beta_seconds_per_byte=beta)


def three_neighbors() -> tuple[Neighbor, ...]:
    """Links of 8, 31 and 62 seconds a byte. Over the first alone ten bytes take 80, as in figure 2b of the papers."""
    return (neighbor("3", 8.0), neighbor("4", 31.0), neighbor("6", 62.0))


@st.composite
def problems(draw, *, max_neighbors=4, max_free=7, max_minimum=2, times=TIMES):
    """Problems small enough for brute force unless asked otherwise; `max_free` shards are beyond the minimum."""
    sources = draw(st.integers(1, max_neighbors))
    minimum = draw(st.integers(0, max_minimum))
    free = draw(st.integers(0 if minimum else 1, max_free))
    return ShardProblem(
        num_shards=minimum * sources + free,
        shard_bytes=draw(st.integers(1, 3)),
        min_shards_per_neighbor=minimum,
        neighbors=tuple(neighbor(f"n{n}", draw(times), draw(times), draw(times)) for n in range(sources)),
    )


@st.composite
def exchanges(draw, *, max_shards=2, times=TIMES):
    """Exchanges small enough for brute force; every part has a holder, and every link is there."""
    parts = tuple(Part(id=f"p{n}", num_shards=draw(st.integers(1, max_shards))) for n in range(draw(st.integers(1, 2))))
    names = [part.id for part in parts]
    some = st.lists(st.sampled_from(names), unique=True).map(tuple)
    first = Source(id="s0", ready_seconds=draw(times), parts=tuple(names))
    others = tuple(Source(id=f"s{n}", ready_seconds=draw(times), parts=draw(some)) for n in range(1, draw(st.integers(1, 3))))
    receivers = tuple(
        Receiver(id=f"r{n}", parts=draw(st.lists(st.sampled_from(names), unique=True, min_size=1).map(tuple)))
        for n in range(draw(st.integers(1, 2)))
    )
    links = tuple(
        Link(source=s.id, receiver=r.id, propagation_seconds=draw(times), beta_seconds_per_byte=draw(times))
        for s in (first, *others)
        for r in receivers
    )
    return Exchange(shard_bytes=draw(st.integers(1, 2)), parts=parts, sources=(first, *others), receivers=receivers, links=links)
