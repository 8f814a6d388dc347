"""Which home each slot goes to, against every assignment of small cases and against the integer program."""

import itertools
from collections import Counter
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.arrays import Floats, Ints
from planner.placing import separating
from planner.placing.separating import Separation
from planner.placing.survival import DOMAIN_WEIGHT, HOST_WEIGHT, Home, Spread, homes_of_slots

NUM_LAYERS = 4
LAYERS = ((0,), (1,), (2, 3), (0, 1), (1, 2, 3), (3,), (0, 1, 2, 3))
UNITS = (("host a", "domain r"), ("host b", "domain r"), ("host c", "domain s"), ("host d",))


@st.composite
def spreads(draw: st.DrawFn) -> Spread:
    """Up to four homes of up to three workers, and as many slots as they have at most, of up to four types."""
    homes = draw(st.lists(st.tuples(st.sampled_from(UNITS), st.sampled_from("xy")), min_size=2, max_size=4, unique=True))
    types = draw(st.lists(st.tuples(st.sampled_from(LAYERS), st.sampled_from([None, "x"])), min_size=1, max_size=4, unique=True))
    num_workers = draw(st.lists(st.integers(1, 3), min_size=len(homes), max_size=len(homes)))
    num_slots = draw(st.lists(st.integers(1, 3), min_size=len(types), max_size=len(types)))
    while sum(num_slots) > min(6, sum(num_workers)):
        place = num_slots.index(max(num_slots))
        if num_slots[place] > 1:
            num_slots[place] -= 1
        else:
            del num_slots[place], types[place]
    size = len(homes) * len(types)
    cost = np.array(draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)), dtype=np.float64)
    return Spread(
        homes=[Home(frozenset(units), kind) for units, kind in homes],
        num_workers=num_workers,
        types=types,
        num_slots=num_slots,
        cost=cost.reshape(len(homes), len(types)) / 32,
    )


def price(spread: Spread, counts: Ints) -> float:
    """Weights of what single units hold all replicas of, and the cost."""
    seconds = float((counts * spread.cost).sum())
    units = sorted({unit for home in spread.homes for unit in home.units})
    for layer, unit in itertools.product(range(NUM_LAYERS), units):
        holding = [kind for kind, (layers, _) in enumerate(spread.types) if layer in layers]
        inside = [number for number, home in enumerate(spread.homes) if unit in home.units]
        total = sum(spread.num_slots[kind] for kind in holding)
        if total > 1 and counts[np.ix_(inside, holding)].sum() == total:
            seconds += HOST_WEIGHT if unit.startswith("host") else DOMAIN_WEIGHT
    return seconds


def everything(spread: Spread) -> float:
    """The least price of all assignments; infinite where nothing fits."""
    homes = np.repeat(np.arange(len(spread.homes)), spread.num_workers).tolist()
    types = np.repeat(np.arange(len(spread.types)), spread.num_slots).tolist()
    least = np.inf
    for chosen in set(itertools.permutations(homes, len(types))):
        if all(spread.types[kind][1] in (None, spread.homes[home].kind) for home, kind in zip(chosen, types, strict=True)):
            counts = np.zeros(spread.cost.shape, dtype=np.int64)
            np.add.at(counts, (list(chosen), types), 1)
            least = min(least, price(spread, counts))
    return least


@given(spreads(), st.booleans())
@settings(max_examples=250, deadline=None)
def test_no_assignment_is_exposed_less_or_costs_less(spread, is_programmed):
    counts = spread.solve(is_programmed=is_programmed)
    if counts is None:
        assert everything(spread) == np.inf
        return
    assert counts.sum(axis=0).tolist() == list(spread.num_slots)
    assert (counts.sum(axis=1) <= spread.num_workers).all()
    assert np.isclose(price(spread, counts), everything(spread), rtol=0, atol=1e-9)


@st.composite
def separations(draw: st.DrawFn) -> Separation:
    """Of up to seven slots, some of them alike, and groups and units at random."""
    num_workers = draw(st.integers(2, 7))
    num_slots, num_units, num_groups = draw(st.integers(1, num_workers)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    types = np.array(sorted(draw(st.lists(st.integers(0, 3), min_size=num_slots, max_size=num_slots))))

    def table(rows: int, columns: int, most: int) -> Floats:
        numbers = draw(st.lists(st.integers(0, most), min_size=rows * columns, max_size=rows * columns))
        return np.array(numbers, dtype=np.float64).reshape(rows, columns)

    cost = table(4, num_workers, 9)
    return Separation(
        cost=np.where(cost == 9, np.inf, cost)[types],
        types=types,
        units=table(num_workers, num_units, 1) > 0,
        groups=table(num_groups, 4, 1)[:, types] > 0,
        penalties=table(num_groups, num_units, 20),
    )


@given(separations())
@settings(max_examples=250, deadline=None)
def test_slots_are_separated_at_the_least_cost(separation):
    def total(workers: Ints) -> float:
        together = np.array(
            [[separation.units[workers[own], unit].all() for unit in range(separation.units.shape[1])] for own in separation.groups]
        )
        return float(separation.cost[np.arange(len(workers)), workers].sum() + separation.penalties[together].sum())

    num_slots, num_workers = separation.cost.shape
    least = min(total(np.array(chosen)) for chosen in itertools.permutations(range(num_workers), num_slots))
    workers = separation.solve()
    assert (workers is None) == np.isinf(least)
    if workers is not None:
        assert len(set(workers.tolist())) == num_slots
        assert total(workers) == least


def test_a_long_pipeline_and_a_short_one_on_hosts_of_eight_are_separated_without_an_integer_program():
    slots = [((layer,), None) for layer in range(34)] + [((*range(5 * own, 5 * own + 5),), None) for own in range(6)]
    slots[-1] = (tuple(range(25, 34)), None)
    homes = [Home(frozenset({f"host {number // 8}"}), None, f"w{number:02d}") for number in range(40)]
    cost = np.abs(np.arange(40.0)[:, None] - np.arange(40.0)[None, :])
    with patch.object(Spread, "_programmed", side_effect=AssertionError):
        chosen = homes_of_slots(slots, homes, cost)
    assert chosen is not None
    assert Counter(chosen) == Counter(homes)
    holders = {layer: {home.units for home, (own, _) in zip(chosen, slots, strict=True) if layer in own} for layer in range(34)}
    assert min(map(len, holders.values())) == 2


def test_a_search_that_is_cut_short_leaves_it_to_the_integer_program():
    spread = Spread(
        homes=[Home(frozenset({f"host {name}"}), None) for name in "ab"],
        num_workers=[2, 2],
        types=[((0,), None), ((1,), None)],
        num_slots=[2, 2],
        cost=np.array([[0.0, 0.1], [0.1, 0.0]]),
    )
    with patch.object(separating, "MOST_ASSIGNMENTS", 1):
        counts = spread.solve()
    assert counts is not None
    assert counts.tolist() == [[1, 1], [1, 1]]
