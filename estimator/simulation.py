"""The event-driven simulation behind list scheduling, as machine code.

Passes are numbered journey by journey and stage by stage; kinds are the numbers of `estimator.schedule`.
Records, and few arrays of them, because machine code counts references to every array that a function takes.
"""

import numpy as np
import numpy.typing as npt

from estimator.compiled import borrowing, compiled
from estimator.schedule import BACKWARD, FORWARD, INPUT, WEIGHT

Records = npt.NDArray[np.void]

HALT = np.dtype(
    [
        ("worker", "i8"),
        ("key", "i8"),  # what limits the passes
        ("is_first", "i8"),  # stage of its pipeline
        ("is_last", "i8"),
        ("num_bytes", "i8"),  # of activations
        ("deferred_bytes", "i8"),  # what waits for a weight part
        ("forward", "f8"),  # seconds, like the next three
        ("input", "f8"),
        ("weight", "f8"),
        ("delay", "f8"),  # to the next stage, each way
    ]
)
"""A stage of a way: what all micro-batches that go that way find there."""

OP = np.dtype(
    [
        ("ready", "f8"),  # when it last became ready
        ("halt", "i4"),
        ("rank", "i4"),  # preference among passes that became ready at once
    ]
)
"""A micro-batch in a stage."""

KEY = np.dtype([("limit", "i8"), ("in_flight", "i8"), ("head", "i8"), ("tail", "i8")])
"""What limits micro-batches between forward and backward pass, and where its queue of forward passes begins and ends."""

DESK = np.dtype(
    [
        ("first_key", "i8"),
        ("stop_key", "i8"),
        ("budget", "f8"),  # bytes of activations beyond which weight parts are not put off
        ("input_excess", "i8"),  # bytes that an input part takes beyond what other passes do
        ("weight_excess", "i8"),  # the same of a weight part
        ("backward_head", "i8"),
        ("backward_tail", "i8"),
        ("weight_head", "i8"),
        ("weight_tail", "i8"),
        ("is_busy", "i8"),
        ("is_touched", "i8"),
        ("was_backward", "i8"),
        ("held", "i8"),
        ("held_bytes", "i8"),
        ("most", "i8"),
        ("most_bytes", "i8"),
        ("first_placed", "i8"),
        ("num_placed", "i8"),
        ("end", "f8"),
        ("busy", "f8"),
    ]
)
"""A worker: what it may do, what waits for it, and what it did."""

WAITING = np.dtype([("forward", "i4"), ("backward", "i4"), ("weight", "i4")])
"""A place in the queues of forward passes (by key), backward passes and weight parts (by worker)."""

PLACED = np.dtype([("end", "f8"), ("op", "i4"), ("kind", "i4")])
"""A pass in a worker's order, and when it is through."""

EVENT = np.dtype([("seconds", "f8"), ("code", "i8")])


@borrowing
def _push(events: Records, size: int, seconds: float, code: int) -> None:
    """Add to a heap of four below each, the earliest first; order among events of one time does not matter."""
    place = size
    while place > 0:
        parent = (place - 1) >> 2
        if events[parent].seconds <= seconds:
            break
        events[place].seconds, events[place].code = events[parent].seconds, events[parent].code
        place = parent
    events[place].seconds, events[place].code = seconds, code


@borrowing
def _pop(events: Records, size: int) -> int:
    """Take the earliest of `size` events; its code."""
    earliest = events[0].code
    last = size - 1
    seconds, code = events[last].seconds, events[last].code
    place, first = 0, 1
    while first < last:
        child, least = first, events[first].seconds
        for other in range(first + 1, min(first + 4, last)):
            if events[other].seconds < least:
                child, least = other, events[other].seconds
        if least >= seconds:
            break
        events[place].seconds, events[place].code = least, events[child].code
        place, first = child, 4 * child + 1
    events[place].seconds, events[place].code = seconds, code
    return int(earliest)


@borrowing
def _code(kind: int, op: int, is_completion: int) -> int:
    """An event as a number: a pass becomes ready or is through."""
    return (op << 3) | (kind << 1) | is_completion


@borrowing
def _is_before(ops: Records, one: int, other: int) -> bool:
    """Whether a pass that waits is preferred to another."""
    if ops[one].ready != ops[other].ready:
        return bool(ops[one].ready < ops[other].ready)
    return bool(ops[one].rank < ops[other].rank)


@borrowing
def _admit(  # noqa: PLR0917
    halts: Records, ops: Records, keys: Records, desks: Records, waiting: Records, kind: int, op: int, now: float
) -> None:
    """A pass becomes ready: it joins its queue, in order."""
    ops[op].ready = now
    halt = ops[op].halt
    key, worker = halts[halt].key, halts[halt].worker
    if kind == FORWARD:
        place = keys[key].tail
        keys[key].tail += 1
        while place > keys[key].head and _is_before(ops, op, waiting[place - 1].forward):
            waiting[place].forward = waiting[place - 1].forward
            place -= 1
        waiting[place].forward = op
    else:
        place = desks[worker].backward_tail
        desks[worker].backward_tail += 1
        while place > desks[worker].backward_head and _is_before(ops, op, waiting[place - 1].backward):
            waiting[place].backward = waiting[place - 1].backward
            place -= 1
        waiting[place].backward = op


@borrowing
def _next_key(halts: Records, ops: Records, keys: Records, desks: Records, waiting: Records, worker: int) -> int:  # noqa: PLR0917
    """Key of the forward pass that waits longest where there is room; -1 where weight parts must make room first."""
    best, first = -1, -1
    for key in range(desks[worker].first_key, desks[worker].stop_key):
        if keys[key].head < keys[key].tail and keys[key].in_flight < keys[key].limit:
            op = waiting[keys[key].head].forward
            if best < 0 or _is_before(ops, op, first):
                best, first = key, op
    if best < 0 or desks[worker].weight_head == desks[worker].weight_tail:
        return best
    held = desks[worker].held_bytes + halts[ops[first].halt].num_bytes
    return best if held + max(desks[worker].weight_excess, 0) <= desks[worker].budget else -1


@borrowing
def _is_parted(halts: Records, desks: Records, halt: int, worker: int) -> bool:
    """Whether a backward pass may be split: there is memory for its input part, and then for any weight part."""
    left = desks[worker].budget - desks[worker].held_bytes
    grown = halts[halt].deferred_bytes - halts[halt].num_bytes + max(desks[worker].weight_excess, 0)
    return bool(not halts[halt].is_first and desks[worker].input_excess <= left and grown <= left)


@borrowing
def _choose(  # noqa: PLR0917
    halts: Records, ops: Records, keys: Records, desks: Records, waiting: Records, worker: int, is_split: bool
) -> tuple[int, int]:
    """Kind and number of a worker's next pass; -1 where it is busy or nothing is ready.

    In turn, as in 1F1B: after a backward pass a forward one where there is room, else the backward that waits longest.
    Weight parts come last.
    """
    if desks[worker].is_busy:
        return -1, -1
    has_backward = desks[worker].backward_head < desks[worker].backward_tail
    if desks[worker].was_backward or not has_backward:
        key = _next_key(halts, ops, keys, desks, waiting, worker)
        if key >= 0:
            keys[key].in_flight += 1
            keys[key].head += 1
            return FORWARD, int(waiting[keys[key].head - 1].forward)
    if has_backward:
        desks[worker].backward_head += 1
        op = waiting[desks[worker].backward_head - 1].backward
        return (INPUT if is_split and _is_parted(halts, desks, ops[op].halt, worker) else BACKWARD), int(op)
    if desks[worker].weight_head < desks[worker].weight_tail:
        desks[worker].weight_head += 1
        return WEIGHT, int(waiting[desks[worker].weight_head - 1].weight)
    return -1, -1


@borrowing
def _begin(  # noqa: PLR0917
    halts: Records, ops: Records, desks: Records, placed: Records, kind: int, op: int, now: float
) -> float:
    """Begin a pass now; when it will be through."""
    halt = ops[op].halt
    worker, seconds = halts[halt].worker, halts[halt].forward
    running = desks[worker].held_bytes
    if kind == FORWARD:
        desks[worker].held += 1
        desks[worker].held_bytes += halts[halt].num_bytes
        desks[worker].most = max(desks[worker].most, desks[worker].held)
        running = desks[worker].held_bytes
    elif kind == BACKWARD:
        seconds = halts[halt].input + halts[halt].weight
    elif kind == INPUT:
        seconds = halts[halt].input
        running += desks[worker].input_excess
    else:
        seconds = halts[halt].weight
        running += desks[worker].weight_excess
    desks[worker].most_bytes = max(desks[worker].most_bytes, running)
    if kind != WEIGHT:
        desks[worker].was_backward = kind != FORWARD
    place = desks[worker].first_placed + desks[worker].num_placed
    placed[place].kind, placed[place].op, placed[place].end = kind, op, now + seconds
    desks[worker].num_placed += 1
    desks[worker].is_busy = 1
    desks[worker].end = now + seconds
    desks[worker].busy += seconds
    return float(now + seconds)


@borrowing
def _finish(  # noqa: PLR0917
    halts: Records, ops: Records, keys: Records, desks: Records, waiting: Records, kind: int, op: int, now: float
) -> tuple[float, int, int]:
    """End a pass: when which kind of pass of which number becomes ready by that; -1 where none does."""
    halt = ops[op].halt
    worker = halts[halt].worker
    desks[worker].is_busy = 0
    if kind == FORWARD:
        return (now, BACKWARD, op) if halts[halt].is_last else (now + halts[halt].delay, FORWARD, op + 1)
    if kind == INPUT:
        desks[worker].held_bytes += halts[halt].deferred_bytes
    else:
        desks[worker].held -= 1
    desks[worker].held_bytes -= halts[halt].deferred_bytes if kind == WEIGHT else halts[halt].num_bytes
    if kind == WEIGHT:
        return now, -1, -1
    keys[halts[halt].key].in_flight -= 1
    if kind == INPUT:
        waiting[desks[worker].weight_tail].weight = op
        desks[worker].weight_tail += 1
    return (now, -1, -1) if halts[halt].is_first else (now + halts[halt - 1].delay, BACKWARD, op - 1)


@compiled
def simulate(halts: Records, ops: Records, keys: Records, desks: Records, placed: Records, is_split: bool) -> int:  # noqa: PLR0917
    """One execution of all passes in which no worker waits while it could do something. O(n log n) for n passes.

    Args:
        halts: all stages of all ways, dtype HALT; those of one way follow each other.
        ops: all passes, dtype OP; changed.
        keys: all limits, dtype KEY, sorted by worker; changed.
        desks: all workers, dtype DESK; changed.
        placed: what every worker does, from its `first_placed` on, dtype PLACED; changed.
        is_split: whether backward passes are split, but for those of first stages.

    Returns:
        How many micro-batches in stages are finished.
    """
    waiting, events, size = np.empty(len(ops), WAITING), np.empty(len(ops), EVENT), 0
    touched, finished = np.empty(len(desks), np.int64), 0
    for op in range(len(ops)):
        if halts[ops[op].halt].is_first:
            _push(events, size, 0.0, _code(FORWARD, op, 0))
            size += 1
    while size > 0:
        now, num_touched = events[0].seconds, 0
        while size > 0 and events[0].seconds <= now:
            code = _pop(events, size)
            size -= 1
            kind, op = (code >> 1) & 3, code >> 3
            worker = halts[ops[op].halt].worker
            if not desks[worker].is_touched:
                desks[worker].is_touched, touched[num_touched] = 1, worker
                num_touched += 1
            if not code & 1:
                _admit(halts, ops, keys, desks, waiting, kind, op, now)
                continue
            finished += kind in (BACKWARD, WEIGHT)
            seconds, kind, op = _finish(halts, ops, keys, desks, waiting, kind, op, now)
            if kind >= 0:
                _push(events, size, seconds, _code(kind, op, 0))
                size += 1
        for worker in touched[:num_touched]:
            desks[worker].is_touched = 0
            kind, op = _choose(halts, ops, keys, desks, waiting, worker, is_split)
            if kind >= 0:
                _push(events, size, _begin(halts, ops, desks, placed, kind, op, now), _code(kind, op, 1))
                size += 1
    return finished
