"""Divisible demands over columns that load machines: the least longest load, as machine code, with a proven lower bound.

A demand may be split over its columns; a whole demand in column c loads up to three machines (a source, the hosts' limits). The
longest load is approached by sharpening soft maxima, `sum exp(sharpness * load)`: its gradient gives every machine a price, and
part of a demand moves from its dearest column in use to its cheapest until their prices meet. Prices also prove a bound: by
the time T every machine has worked for T at most, so for any prices w

    sum over demands of  min over its columns of  sum (w * load)  <=  T * sum over machines of  w

(linear programming duality; the prices of a soft maximum with sharpness s are within `log(machines) / s` of the best). Bad
prices give a worse bound, never a wrong one.
"""

from typing import NamedTuple

import numpy as np

from estimator.arrays import Floats, Ints
from estimator.compiled import compiled

SHARPNESS = (8.0, 32.0, 128.0, 512.0, 2048.0)
"""Relative to the longest load."""

MOST_SWEEPS = 60
"""Over all demands, for each sharpness."""

MOST_MOVES = 8
"""Of one demand in one sweep."""

HALVINGS = 20
"""Of the part that moves, until the prices of both columns meet."""

LEAST_PART = 1e-6
"""Of a demand; sharing is done when no more than this moves."""

CLOSE = 1e-3
"""Relative distance of prices that are taken as equal."""

_STEEPEST = 60.0
"""Exponents beyond which prices do not grow: such machines are not used anyway."""


class Columns(NamedTuple):
    """What the demands may be split over."""

    first: Ints
    """Columns `first[d]` to `first[d + 1]` are those of demand d, at least one. Shape [demands + 1]."""
    machine: Ints
    """The machines that a column loads, -1 for none. Shape [columns, 3]."""
    load: Floats
    """By how many seconds, were the whole demand in it. Shape [columns, 3]."""


class _State(NamedTuple):
    """How far sharing has come."""

    share: Floats
    """Of its demand in each column. Shape [columns]."""
    ends: Floats
    """When each machine is through. Shape [machines]."""
    price: Floats
    """Of a second of each machine. Shape [machines]."""


class _Scale(NamedTuple):
    """What the soft maximum is taken of: `steepness * (load - top)`."""

    steepness: float
    top: float


@compiled
def balance(columns: Columns, num_machines: int, bound: float, tolerance: float) -> tuple[Floats, float]:
    """Shares of the demands in their columns, and a bound below which no sharing gets the longest load.

    Args:
        columns: of all demands.
        num_machines: of which the columns load some.
        bound: that is known already, in seconds.
        tolerance: relative distance from the bound that is good enough.
    """
    state = _start(columns, num_machines)
    is_loaded = np.zeros(num_machines)
    for m in columns.machine.ravel():
        if m >= 0:
            is_loaded[m] = 1.0
    for sharpness in SHARPNESS:
        for _ in range(MOST_SWEEPS):
            top = max(state.ends.max(), 1e-300)
            state.price[:] = is_loaded * np.exp(np.minimum((state.ends / top - 1) * sharpness, _STEEPEST))
            bound = max(bound, _bound(columns, state.price))
            if top <= bound * (1 + tolerance):
                return state.share, bound
            if _sweep(columns, state, _Scale(sharpness / top, top)) < LEAST_PART:
                break
    return state.share, bound


@compiled
def _start(columns: Columns, num_machines: int) -> _State:
    """Every demand, in order, whole in the column where it ends first."""
    state = _State(np.zeros(len(columns.machine)), np.zeros(num_machines), np.zeros(num_machines))
    for demand in range(len(columns.first) - 1):
        best, soonest = columns.first[demand], np.inf
        for column in range(columns.first[demand], columns.first[demand + 1]):
            end = 0.0
            for k in range(3):
                m = columns.machine[column, k]
                if m >= 0:
                    end = max(end, state.ends[m] + columns.load[column, k])
            if end < soonest:
                best, soonest = column, end
        _add(columns, state, best, 1.0)
    return state


@compiled
def _add(columns: Columns, state: _State, column: int, part: float) -> None:
    state.share[column] += part
    for k in range(3):
        m = columns.machine[column, k]
        if m >= 0:
            state.ends[m] += part * columns.load[column, k]


@compiled
def _price(columns: Columns, price: Floats, column: int) -> float:
    total = 0.0
    for k in range(3):
        m = columns.machine[column, k]
        if m >= 0:
            total += price[m] * columns.load[column, k]
    return total


@compiled
def _sweep(columns: Columns, state: _State, scale: _Scale) -> float:
    """Move parts of every demand; returns the largest."""
    largest = 0.0
    for demand in range(len(columns.first) - 1):
        for _ in range(MOST_MOVES):
            cheap, dear = _extremes(columns, state, demand)
            if cheap == dear:
                break
            part = _part(columns, state, (cheap, dear), scale)
            _add(columns, state, dear, -part)
            _add(columns, state, cheap, part)
            for column in (cheap, dear):
                for k in range(3):
                    m = columns.machine[column, k]
                    if m >= 0:
                        state.price[m] = np.exp(min((state.ends[m] - scale.top) * scale.steepness, _STEEPEST))
            largest = max(largest, part)
            if part < LEAST_PART:
                break
    return largest


@compiled
def _extremes(columns: Columns, state: _State, demand: int) -> tuple[int, int]:
    """The cheapest column of a demand and its dearest in use; the same one twice where prices meet."""
    cheap, dear, low, high = columns.first[demand], columns.first[demand], np.inf, -1.0
    for column in range(columns.first[demand], columns.first[demand + 1]):
        own = _price(columns, state.price, column)
        if own < low:
            cheap, low = column, own
        if state.share[column] > 0.0 and own > high:
            dear, high = column, own
    return (cheap, dear) if high - low > CLOSE * high else (dear, dear)


@compiled
def _part(columns: Columns, state: _State, pair: tuple[int, int], scale: _Scale) -> float:
    """How much to move from the second column to the first until their prices meet."""
    most = float(state.share[pair[1]])
    if _slope(columns, state, pair, most, scale) <= 0.0:
        return most
    part = 0.0
    for _ in range(HALVINGS):
        middle = (part + most) / 2
        if _slope(columns, state, pair, middle, scale) > 0.0:
            most = middle
        else:
            part = middle
    return part


@compiled
def _slope(columns: Columns, state: _State, pair: tuple[int, int], part: float, scale: _Scale) -> float:
    """How the soft maximum grows when more than `part` moves; a machine of both columns feels the difference."""
    cheap, dear = pair
    total = 0.0
    for k in range(3):
        gaining, losing = columns.machine[cheap, k], columns.machine[dear, k]
        up, down = columns.load[cheap, k], columns.load[dear, k]
        if gaining >= 0:
            rate = up - down if losing == gaining else up
            total += rate * np.exp(min((state.ends[gaining] + part * rate - scale.top) * scale.steepness, _STEEPEST))
        if losing >= 0 and losing != gaining:
            total -= down * np.exp(min((state.ends[losing] - part * down - scale.top) * scale.steepness, _STEEPEST))
    return total


@compiled
def _bound(columns: Columns, price: Floats) -> float:
    """The bound that prices prove."""
    volume = 0.0
    for demand in range(len(columns.first) - 1):
        least = np.inf
        for column in range(columns.first[demand], columns.first[demand + 1]):
            least = min(least, _price(columns, price, column))
        volume += least
    return float(volume / price.sum())


@compiled
def water_level(bottom: Floats, width: Floats, volume: float) -> float:
    """The level at which vessels hold `volume`: the sum of `max(0, level - bottom) * width`; O(n log n).

    Args:
        bottom: of each vessel.
        width: of each vessel, positive for one at least.
        volume: at least 0.
    """
    filled, total_width, level = volume, 0.0, 0.0
    for vessel in np.argsort(bottom):
        if total_width > 0.0 and level <= bottom[vessel]:
            break
        filled += bottom[vessel] * width[vessel]
        total_width += width[vessel]
        level = filled / total_width if total_width > 0.0 else np.inf
    return level
