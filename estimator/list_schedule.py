"""Orders of passes for micro-batches whose ways share workers, as in rerouted pipelines: event-driven list scheduling."""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from estimator.schedule import LAST_PASSES, Pass
from kintsugi.core.plan import Schedule


@dataclass(frozen=True, slots=True)
class Hop:
    """One stage of one micro-batch's way, on the worker that computes it."""

    worker: str
    forward_seconds: float
    backward_input_seconds: float
    backward_weight_seconds: float
    delay_seconds: float
    """Link delay between this stage and the next, each way; 0 after the last."""
    activation_bytes: int = 0
    """Held from the forward pass to the last backward pass."""


@dataclass(frozen=True, slots=True)
class Journey:
    """A micro-batch's way through all stages; `turn` is its place in its own pipeline."""

    microbatch: int
    pipeline: int
    turn: int
    hops: tuple[Hop, ...]


class PlacedPass(NamedTuple):
    """A pass in a worker's order; `microbatch` counts over all pipelines."""

    kind: Pass
    microbatch: int
    pipeline: int
    stage: int


@dataclass(frozen=True, slots=True)
class WorkerSchedule:
    """What one worker computes, in order, and what that makes it hold."""

    passes: tuple[PlacedPass, ...]
    end_seconds: float
    """End of the last pass."""
    busy_seconds: float
    num_in_flight: int
    """Most micro-batches whose activations are held at once."""
    activation_bytes: int
    """Most bytes of activations held at once."""


class _Task(NamedTuple):
    """A pass that is ready; ordered as a worker prefers it: what became ready first, then its turn, then its number."""

    ready_seconds: float
    turn: int
    microbatch: int
    stage: int
    journey_index: int


_LimitKey = tuple[int, int]
"""Stages left, and the pipeline (or -1 for all): what a limit on micro-batches in flight counts."""


class _Desk:
    """One worker's waiting tasks, and what was placed on it."""

    def __init__(self, budget_bytes: float) -> None:
        self.budget_bytes = budget_bytes
        self.is_busy = False
        self.was_backward = False
        self.backwards: list[_Task] = []
        self.forwards: dict[_LimitKey, list[_Task]] = defaultdict(list)
        self.weights: deque[_Task] = deque()
        self.in_flight: Counter[_LimitKey] = Counter()
        self.passes: list[PlacedPass] = []
        self.end_seconds = self.busy_seconds = 0.0
        self.held = self.held_bytes = self.most = self.most_bytes = 0

    def hold(self, num_bytes: int) -> None:
        self.held += 1
        self.held_bytes += num_bytes
        self.most, self.most_bytes = max(self.most, self.held), max(self.most_bytes, self.held_bytes)

    def release(self, num_bytes: int) -> None:
        self.held -= 1
        self.held_bytes -= num_bytes


class ListScheduler:
    """Event-driven list scheduling of micro-batches whose ways share workers (rerouted pipelines).

    The order is read off one simulated execution, so it admits an execution. What a worker serves has a limit on the
    micro-batches between forward and backward pass: its stage's number of stages to go, for each pipeline apart or, where
    memory is tight, shared by all pipelines, so that rerouting needs no more activation memory than the plan it departs
    from. Either way the last stages, whose limit is one, always drain.

    With a split backward pass (ReCycle; Gandhi et al., SOSP 2024) input parts are scheduled as backward passes are, and
    weight parts wait until their worker has nothing else to do, or no memory left for another forward pass; first stages,
    for whose input part nobody waits, pass backward in one. O(n log n) for n passes.
    """

    def __init__(
        self,
        journeys: Sequence[Journey],
        schedule: Schedule,
        *,
        is_limit_shared: bool,
        is_split: bool = False,
        budget_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """Prepare; `run` schedules.

        Args:
            journeys: of all micro-batches that share workers.
            schedule: sets the limits.
            is_limit_shared: whether the pipelines that a worker serves share its limits.
            is_split: whether backward passes are split.
            budget_bytes: of activations, by worker; weight parts are not put off beyond it. None is no limit.
        """
        self._journeys = journeys
        self._is_limited = schedule is not Schedule.GPIPE
        self._is_limit_shared = is_limit_shared
        self._is_split = is_split
        budgets: Mapping[str, float] = budget_bytes or {}
        workers = sorted({hop.worker for journey in journeys for hop in journey.hops})
        self._desks = {worker: _Desk(budgets.get(worker, float("inf"))) for worker in workers}
        self._events: list[tuple[float, int, bool, Pass, _Task]] = []
        self._sequence = 0

    def run(self) -> dict[str, WorkerSchedule]:
        """Every worker's schedule; every journey is complete."""
        for index in range(len(self._journeys)):
            self._arrive(0.0, index, 0, Pass.FORWARD)
        while self._events:
            now = self._events[0][0]
            for worker in sorted(self._take_due(now)):
                self._dispatch(self._desks[worker], now)
        num_last = sum(item.kind in LAST_PASSES for desk in self._desks.values() for item in desk.passes)
        assert num_last == sum(len(journey.hops) for journey in self._journeys), "some journey is incomplete"
        return {
            worker: WorkerSchedule(tuple(desk.passes), desk.end_seconds, desk.busy_seconds, desk.most, desk.most_bytes)
            for worker, desk in self._desks.items()
        }

    def _arrive(self, seconds: float, index: int, stage: int, kind: Pass) -> None:
        journey = self._journeys[index]
        self._push(seconds, False, kind, _Task(seconds, journey.turn, journey.microbatch, stage, index))

    def _push(self, seconds: float, is_completion: bool, kind: Pass, task: _Task) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (seconds, self._sequence, is_completion, kind, task))

    def _take_due(self, now: float) -> set[str]:
        """Move what is due at `now` to the desks; the workers to look at."""
        events, touched = self._events, set()
        while events and events[0][0] <= now:
            _, _, is_completion, kind, task = heapq.heappop(events)
            hops = self._journeys[task.journey_index].hops
            worker = hops[task.stage].worker
            desk = self._desks[worker]
            if is_completion:
                desk.is_busy = False
                self._follow(desk, kind, task, hops, now)
            elif kind is Pass.FORWARD:
                heapq.heappush(desk.forwards[self._limit_key(task)], task)
            else:
                heapq.heappush(desk.backwards, task)
            touched.add(worker)
        return touched

    def _limit_key(self, task: _Task) -> _LimitKey:
        journey = self._journeys[task.journey_index]
        return len(journey.hops) - task.stage, -1 if self._is_limit_shared else journey.pipeline

    def _follow(self, desk: _Desk, kind: Pass, task: _Task, hops: tuple[Hop, ...], now: float) -> None:
        """What a pass that is through makes possible."""
        stage, index = task.stage, task.journey_index
        if kind is Pass.FORWARD:
            if stage + 1 < len(hops):
                self._arrive(now + hops[stage].delay_seconds, index, stage + 1, Pass.FORWARD)
            else:
                self._arrive(now, index, stage, Pass.BACKWARD)
            return
        if kind in LAST_PASSES:
            desk.release(hops[stage].activation_bytes)
        if kind is Pass.BACKWARD_WEIGHT:
            return
        desk.in_flight[self._limit_key(task)] -= 1
        if kind is Pass.BACKWARD_INPUT:
            desk.weights.append(task)
        if stage > 0:
            self._arrive(now + hops[stage - 1].delay_seconds, index, stage - 1, Pass.BACKWARD)

    def _dispatch(self, desk: _Desk, now: float) -> None:
        if desk.is_busy:
            return
        chosen = self._choose(desk)
        if chosen is None:
            return
        kind, task = chosen
        journey = self._journeys[task.journey_index]
        seconds = self._start(desk, kind, journey.hops[task.stage])
        desk.passes.append(PlacedPass(kind, task.microbatch, journey.pipeline, task.stage))
        desk.is_busy, desk.end_seconds = True, now + seconds
        desk.busy_seconds += seconds
        self._push(now + seconds, True, kind, task)

    @staticmethod
    def _start(desk: _Desk, kind: Pass, hop: Hop) -> float:
        """Seconds that a pass takes."""
        if kind is Pass.BACKWARD_WEIGHT:
            return hop.backward_weight_seconds
        desk.was_backward = kind is not Pass.FORWARD
        if kind is Pass.FORWARD:
            desk.hold(hop.activation_bytes)
            return hop.forward_seconds
        if kind is Pass.BACKWARD_INPUT:
            return hop.backward_input_seconds
        return hop.backward_input_seconds + hop.backward_weight_seconds

    def _choose(self, desk: _Desk) -> tuple[Pass, _Task] | None:
        """In turn, as in 1F1B: after a backward pass a forward one where there is room, else the backward that waits longest.

        Weight parts come last.
        """
        if desk.was_backward or not desk.backwards:
            forward = self._take_forward(desk)
            if forward is not None:
                return Pass.FORWARD, forward
        if desk.backwards:
            task = heapq.heappop(desk.backwards)
            return Pass.BACKWARD_INPUT if self._is_split and task.stage > 0 else Pass.BACKWARD, task
        if desk.weights:
            return Pass.BACKWARD_WEIGHT, desk.weights.popleft()
        return None

    def _take_forward(self, desk: _Desk) -> _Task | None:
        best: _LimitKey | None = None
        for key, tasks in desk.forwards.items():
            is_open = tasks and (not self._is_limited or desk.in_flight[key] < key[0])
            if is_open and (best is None or tasks[0] < desk.forwards[best][0]):
                best = key
        if best is None or not self._has_memory(desk, desk.forwards[best][0]):
            return None
        desk.in_flight[best] += 1
        return heapq.heappop(desk.forwards[best])

    def _has_memory(self, desk: _Desk, task: _Task) -> bool:
        """Where weight parts wait they make room first."""
        if not desk.weights:
            return True
        num_bytes = self._journeys[task.journey_index].hops[task.stage].activation_bytes
        return desk.held_bytes + num_bytes <= desk.budget_bytes
