"""Orders of forward and backward passes: fixed ones for whole pipelines, list-scheduled ones for rerouted pipelines.

A fixed order keeps five invariants: every micro-batch passes forward once and backward once; forward comes first;
micro-batches pass in order; a stage never holds more micro-batches in flight than its limit; the orders of all
stages together admit an execution (no deadlock).
"""

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Schedule


class Pass(StrEnum):
    """What a worker computes for one micro-batch in one stage."""

    FORWARD = "F"
    BACKWARD = "B"
    """Input and weight part in one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of one micro-batch; `microbatch` counts within the pipeline."""

    kind: Pass
    microbatch: int

    def text(self, stage: int) -> str:
        """The field's notation, such as `2F0`: stage 2, forward, micro-batch 0."""
        return f"{stage}{self.kind.value}{self.microbatch}"


def parse(text: str) -> tuple[int, Step]:
    """Read `2F0` back: the stage and the step.

    Raises:
        InvalidInputError: the text is no step.
    """
    match = re.fullmatch(r"(\d+)([FB])(\d+)", text)
    if match is None:
        raise InvalidInputError("is no step such as 2F0", field="step", value=text)
    return int(match[1]), Step(Pass(match[2]), int(match[3]))


def num_in_flight(stage: int, num_stages: int, num_microbatches: int) -> int:
    """Most micro-batches that 1F1B holds in flight at a stage: min(N_pp - i, N_m)."""
    return min(num_stages - stage, num_microbatches)


def one_forward_one_backward(stage: int, num_stages: int, num_microbatches: int) -> tuple[Step, ...]:
    """1F1B: warmup forwards, then one forward and one backward in turn, then the cooldown. 2 * M steps."""
    warmup = num_in_flight(stage, num_stages, num_microbatches) - 1
    steps = [Step(Pass.FORWARD, m) for m in range(warmup)]
    for m in range(warmup, num_microbatches):
        steps += [Step(Pass.FORWARD, m), Step(Pass.BACKWARD, m - warmup)]
    steps += [Step(Pass.BACKWARD, m) for m in range(num_microbatches - warmup, num_microbatches)]
    return tuple(steps)


def gpipe(stage: int, num_stages: int, num_microbatches: int) -> tuple[Step, ...]:  # noqa: ARG001  # one signature for all
    """GPipe: all forwards, then all backwards in reverse order. 2 * M steps."""
    forwards = [Step(Pass.FORWARD, m) for m in range(num_microbatches)]
    return (*forwards, *(Step(Pass.BACKWARD, m) for m in reversed(range(num_microbatches))))


ORDERS: dict[Schedule, Callable[[int, int, int], tuple[Step, ...]]] = {
    Schedule.ONE_F_ONE_B: one_forward_one_backward,
    Schedule.GPIPE: gpipe,
}


def require_known(schedule: Schedule) -> Schedule:
    """`schedule`, when this version has an order for it.

    Raises:
        InvalidInputError: it has none.
    """
    if schedule not in ORDERS:
        known = ", ".join(known.value for known in ORDERS)
        raise InvalidInputError(f"is not available in this version; choose one of {known}", field="schedule", value=schedule.value)
    return schedule


def order(schedule: Schedule, stage: int, num_stages: int, num_microbatches: int) -> tuple[Step, ...]:
    """The order of passes of one stage. Shape [2 * num_microbatches].

    Raises:
        InvalidInputError: the schedule has no order in this version.
    """
    return ORDERS[require_known(schedule)](stage, num_stages, num_microbatches)


def limit(schedule: Schedule, stages_left: int) -> int | None:
    """Most micro-batches in flight on a worker with `stages_left` stages to go, its own included; None is no limit."""
    return None if schedule is Schedule.GPIPE else stages_left


@dataclass(frozen=True, slots=True)
class Hop:
    """One stage of one micro-batch's way, on the worker that computes it."""

    worker: str
    forward_seconds: float
    backward_seconds: float
    delay_seconds: float
    """Link delay between this stage and the next, each way; 0 after the last."""


@dataclass(frozen=True, slots=True)
class Journey:
    """A micro-batch's way through all stages; `turn` is its place in its own pipeline."""

    microbatch: int
    pipeline: int
    turn: int
    hops: tuple[Hop, ...]


@dataclass(frozen=True, slots=True, order=True)
class _Task:
    """Ordered as a worker prefers them: what became ready first, then its turn, then its number."""

    ready_seconds: float
    turn: int
    microbatch: int
    stage: int
    kind: Pass
    journey_index: int


@dataclass(frozen=True, slots=True)
class ScheduledPass:
    """A pass as a list schedule placed it; `stage` counts along the micro-batch's journey."""

    kind: Pass
    microbatch: int
    stage: int


_LimitKey = tuple[int, int]
"""Stages left, and the pipeline (or -1 for all): what a limit on micro-batches in flight counts."""


class _Desk:
    """One worker's waiting tasks, and what was placed on it."""

    def __init__(self) -> None:
        self.is_busy = False
        self.backwards: list[_Task] = []
        self.forwards: dict[_LimitKey, list[_Task]] = defaultdict(list)
        self.in_flight: Counter[_LimitKey] = Counter()
        self.placed: list[ScheduledPass] = []


class ListScheduler:
    """Event-driven list scheduling of micro-batches whose ways share workers (rerouted pipelines).

    The order is read off one simulated execution, so it admits an execution. What a worker serves has a limit on the
    micro-batches in flight: its stage's number of stages to go, for each pipeline apart or, where memory is tight, shared
    by all pipelines, so that rerouting needs no more activation memory than the plan it departs from. Either way the
    last stages, whose limit is one, always drain. O(n log n) for n passes.
    """

    def __init__(self, journeys: Sequence[Journey], schedule: Schedule, *, is_limit_shared: bool) -> None:
        self._journeys = journeys
        self._schedule = schedule
        self._is_limit_shared = is_limit_shared
        self._desks = {hop.worker: _Desk() for journey in journeys for hop in journey.hops}
        self._arrivals: list[_Task] = []
        self._completions: list[tuple[float, int, str, _Task]] = []
        self._sequence = 0

    def run(self) -> dict[str, tuple[ScheduledPass, ...]]:
        """Order of passes per worker; every journey is complete."""
        for index in range(len(self._journeys)):
            self._arrive(0.0, index, 0, Pass.FORWARD)
        while (now := self._next_seconds()) < math.inf:
            for worker in self._take_due(now):
                self._dispatch(worker, now)
        placed = {worker: tuple(desk.placed) for worker, desk in self._desks.items()}
        assert sum(map(len, placed.values())) == sum(2 * len(journey.hops) for journey in self._journeys)
        return placed

    def _next_seconds(self) -> float:
        arrival = self._arrivals[0].ready_seconds if self._arrivals else math.inf
        return min(arrival, self._completions[0][0] if self._completions else math.inf)

    def _arrive(self, seconds: float, index: int, stage: int, kind: Pass) -> None:
        journey = self._journeys[index]
        heapq.heappush(self._arrivals, _Task(seconds, journey.turn, journey.microbatch, stage, kind, index))

    def _take_due(self, now: float) -> list[str]:
        """Move what is due at `now` to the desks; the workers to look at, each once, in order of their names."""
        touched = set()
        while self._completions and self._completions[0][0] <= now:
            _, _, worker, task = heapq.heappop(self._completions)
            self._complete(worker, task, now)
            touched.add(worker)
        while self._arrivals and self._arrivals[0].ready_seconds <= now:
            task = heapq.heappop(self._arrivals)
            worker = self._hop(task).worker
            desk = self._desks[worker]
            heapq.heappush(desk.forwards[self._limit_key(task)] if task.kind is Pass.FORWARD else desk.backwards, task)
            touched.add(worker)
        return sorted(touched)

    def _hop(self, task: _Task) -> Hop:
        return self._journeys[task.journey_index].hops[task.stage]

    def _limit_key(self, task: _Task) -> _LimitKey:
        journey = self._journeys[task.journey_index]
        return len(journey.hops) - task.stage, -1 if self._is_limit_shared else journey.pipeline

    def _complete(self, worker: str, task: _Task, now: float) -> None:
        desk = self._desks[worker]
        desk.is_busy = False
        hops = self._journeys[task.journey_index].hops
        if task.kind is Pass.FORWARD:
            if task.stage + 1 < len(hops):
                self._arrive(now + hops[task.stage].delay_seconds, task.journey_index, task.stage + 1, Pass.FORWARD)
            else:
                self._arrive(now, task.journey_index, task.stage, Pass.BACKWARD)
            return
        desk.in_flight[self._limit_key(task)] -= 1
        if task.stage > 0:
            self._arrive(now + hops[task.stage - 1].delay_seconds, task.journey_index, task.stage - 1, Pass.BACKWARD)

    def _dispatch(self, worker: str, now: float) -> None:
        desk = self._desks[worker]
        if desk.is_busy:
            return
        task = self._choose(desk)
        if task is None:
            return
        hop = self._hop(task)
        desk.is_busy = True
        desk.placed.append(ScheduledPass(task.kind, task.microbatch, task.stage))
        self._sequence += 1
        duration = hop.forward_seconds if task.kind is Pass.FORWARD else hop.backward_seconds
        heapq.heappush(self._completions, (now + duration, self._sequence, worker, task))

    def _choose(self, desk: _Desk) -> _Task | None:
        """In turn, as in 1F1B: after a backward pass a forward one where there is room, else the backward that waits longest."""
        was_backward = bool(desk.placed) and desk.placed[-1].kind is Pass.BACKWARD
        if desk.backwards and not was_backward:
            return heapq.heappop(desk.backwards)
        forward = self._take_forward(desk)
        if forward is None and desk.backwards:
            return heapq.heappop(desk.backwards)
        return forward

    def _take_forward(self, desk: _Desk) -> _Task | None:
        open_keys = [key for key, tasks in desk.forwards.items() if tasks and self._has_room(desk, key)]
        if not open_keys:
            return None
        key = min(open_keys, key=lambda key: desk.forwards[key][0])
        desk.in_flight[key] += 1
        return heapq.heappop(desk.forwards[key])

    def _has_room(self, desk: _Desk, key: _LimitKey) -> bool:
        most = limit(self._schedule, key[0])
        return most is None or desk.in_flight[key] < most
