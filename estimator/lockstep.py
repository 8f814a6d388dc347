"""The recurrence of 1F1B by vectors, for long pipelines: all stages of one parity at once.

At any clock even stages pass one way and odd ones the other, so that none waits for another that passes the same way. All that
the machine code reads and writes lies in one array, at places that are known when it is compiled: it would go stage by stage
where arrays might overlap, numbers be negative or a choice be a branch. So what stages do whose turn it is not is reckoned,
too, and dropped.
"""

from collections.abc import Callable

import numpy as np

from estimator.arrays import Floats
from estimator.compiled import borrowing, compiled

FEWEST_STAGES = 20
"""In shorter pipelines vectors win nothing."""

MOST_STAGES = 256

_CHUNK = 16
"""Stages of one parity are gone through so many at a time, of which vectors leave none over."""

_CHUNKS = np.uint64(_CHUNK)

_HALF = np.uint64(MOST_STAGES // 2 + _CHUNK)
"""Room for the stages of one parity, and for neighbours that do not exist."""

_FREE, _PASSED, _RETURNED, _FORWARD, _BACKWARD, _WEIGHT, _BEFORE, _AFTER, _SIZE = np.arange(9, dtype=np.uint64) * 2 * _HALF
"""Where in the array lies when even stages are free, and behind it odd ones; when passes end, whose neighbour's are one place
further; what passes take; and the delays of the links before and after a stage."""


def _passes_forward(parity: int) -> Callable[[Floats, int, int], None]:
    own, other = np.uint64(parity) * _HALF, np.uint64(1 - parity) * _HALF
    free, passed, forward, before = (np.uint64(place + own) for place in (_FREE, _PASSED + np.uint64(1), _FORWARD, _BEFORE))
    near = np.uint64(_PASSED + other + np.uint64(parity))

    @borrowing
    def forward_passes(state: Floats, first: int, stop: int) -> None:
        """Those of a parity's stages from one on until another, which may be none."""
        for k in range(np.uint64(first) // _CHUNKS * _CHUNKS, np.uint64(stop + _CHUNK - 1) // _CHUNKS * _CHUNKS):
            start, arrived = state[free + k], state[near + k] + state[before + k]
            end = (arrived if arrived > start else start) + state[forward + k]
            is_own = (np.int64(k) >= first) & (np.int64(k) < stop)
            state[free + k] = end if is_own else start
            state[passed + k] = end if is_own else start

    return forward_passes


def _passes_backward(parity: int) -> Callable[[Floats, int, int, int], None]:
    own, other = np.uint64(parity) * _HALF, np.uint64(1 - parity) * _HALF
    free, backward, weight, after = (np.uint64(place + own) for place in (_FREE, _BACKWARD, _WEIGHT, _AFTER))
    returned, near = np.uint64(_RETURNED + np.uint64(1) + own), np.uint64(_RETURNED + np.uint64(1 + parity) + other)

    @borrowing
    def backward_passes(state: Floats, first: int, stop: int, stop_weight: int) -> None:
        """Those of a parity's stages from one on until another, which may be none; and weight parts of the first ones."""
        for k in range(np.uint64(first) // _CHUNKS * _CHUNKS, np.uint64(stop + _CHUNK - 1) // _CHUNKS * _CHUNKS):
            start, arrived = state[free + k], state[near + k] + state[after + k]
            end = (arrived if arrived > start else start) + state[backward + k]
            is_own = (np.int64(k) >= first) & (np.int64(k) < stop)
            state[returned + k] = end if is_own else state[returned + k]
            later = end + (state[weight + k] if np.int64(k) < stop_weight else 0.0)
            state[free + k] = later if is_own else start

    return backward_passes


_even_forward, _odd_forward = _passes_forward(0), _passes_forward(1)
_even_backward, _odd_backward = _passes_backward(0), _passes_backward(1)


@borrowing
def _run(state: Floats, num_stages: int, num_microbatches: int) -> None:
    """All clocks, as in `estimator.pipeline.stagewise_ends`."""
    for clock in range(2 * (num_microbatches + num_stages) - 1):
        first, stop = max(0, clock - 2 * num_microbatches + 1), min(num_stages, clock + 1)
        first_back, stop_back = max(0, 2 * num_stages - clock - 1), min(num_stages, 2 * (num_stages + num_microbatches) - clock - 1)
        stop_weight = clock + 2 - 2 * num_stages
        if clock & 1:
            _odd_forward(state, first >> 1, stop >> 1)
            _even_backward(state, (first_back + 1) >> 1, (stop_back + 1) >> 1, (stop_weight + 1) >> 1)
        else:
            _even_forward(state, (first + 1) >> 1, (stop + 1) >> 1)
            _odd_backward(state, first_back >> 1, stop_back >> 1, stop_weight >> 1)


@compiled
def lockstep_ends(forward: Floats, backward: Floats, weight: Floats, delays: Floats, num_microbatches: int) -> Floats:
    """When each stage is through, as `estimator.pipeline.stagewise_ends` finds it, to the last bit; `MOST_STAGES` at most.

    Args:
        forward: seconds of one micro-batch, shape [stages] like the next two.
        backward: what the stage before waits for.
        weight: what is put off.
        delays: of the links between stages, shape [stages - 1].
        num_microbatches: that enter the pipeline.
    """
    num_stages, state = len(forward), np.zeros(_SIZE)
    state[_PASSED:_FORWARD] = -np.inf
    for stage in range(num_stages):
        place = np.uint64(stage & 1) * _HALF + np.uint64(stage >> 1)
        state[_FORWARD + place], state[_BACKWARD + place] = forward[stage], backward[stage]
        state[_WEIGHT + place] = weight[stage]
        if stage > 0:
            state[_BEFORE + place] = delays[stage - 1]
        if stage < num_stages - 1:
            state[_AFTER + place] = delays[stage]
    _run(state, num_stages, num_microbatches)
    ends = np.zeros(num_stages)
    for stage in range(num_stages):
        put_off = min(stage, num_microbatches) * weight[stage]
        ends[stage] = state[_FREE + np.uint64(stage & 1) * _HALF + np.uint64(stage >> 1)] + put_off
    return ends
