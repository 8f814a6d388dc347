"""The estimator's replay: a program's actions timed one by one, as messages and reductions allow."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from estimator.costs import Costs
from estimator.layers import StageTimes
from estimator.program import BACKWARDS, PASSES, RECEIVES, SENDS, Action, ActionKind, Message, Program


@dataclass(frozen=True, slots=True)
class Timing:
    """When one action of one worker starts and ends, in seconds from the start of the step.

    Reductions, whose start is when they begin to move bytes, may overlap with passes.
    """

    worker: str
    action: Action
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Replay:
    """A step as the estimator's replay of a program tells it."""

    timings: Mapping[str, tuple[Timing, ...]]
    pipeline_seconds: float
    """To the end of the last backward pass of any worker."""
    reduced_seconds: float
    """To the end of the last reduction, or of the last pass."""
    iteration_seconds: float
    """To the end of the last update."""


class _Replayer:
    """Advances every worker along its list as far as messages allow, until all lists are done."""

    def __init__(self, program: Program, costs: Costs) -> None:
        self._program = program
        self._costs = costs
        self._free = dict.fromkeys(program.actions, 0.0)
        self._position = dict.fromkeys(program.actions, 0)
        self._timings: dict[str, list[Timing]] = {worker: [] for worker in program.actions}
        self._arrivals: dict[Message, float] = {}
        self._waiting: dict[Message, str] = {}
        self._begun: dict[int, dict[str, int]] = defaultdict(dict)
        """Where in the timings of each of its workers a reduction stands."""
        self._link_free = dict.fromkeys(program.actions, 0.0)
        self._runnable = list(program.actions)

    def run(self) -> Replay:
        while self._runnable:
            self._advance(self._runnable.pop())
        pipeline_seconds = max(
            (t.end_seconds for items in self._timings.values() for t in items if t.action.kind in BACKWARDS), default=0.0
        )
        self._reduce_all()
        reduced_seconds = max(*self._free.values(), *self._link_free.values())
        iteration_seconds = self._apply(reduced_seconds)
        timings = {worker: tuple(items) for worker, items in self._timings.items()}
        return Replay(timings, pipeline_seconds, reduced_seconds, iteration_seconds)

    def _advance(self, worker: str) -> None:
        actions = self._program.actions[worker]
        while (action := actions[self._position[worker]]).kind is not ActionKind.APPLY:
            if not self._perform(worker, action):
                return
            self._position[worker] += 1

    def _perform(self, worker: str, action: Action) -> bool:
        """Time one action; False when it has to wait for another worker first."""
        if action.kind in PASSES:
            times = self._costs.stage(worker, action.layer_start, action.layer_stop)
            self._record(worker, action, self._free[worker], pass_seconds(action.kind, times))
            return True
        if action.kind in SENDS:
            return self._send(worker, action)
        if action.kind in RECEIVES:
            return self._receive(worker, action)
        self._begun[action.reduction][worker] = len(self._timings[worker])
        self._record(worker, action, self._free[worker], 0.0)
        return True

    def _send(self, worker: str, action: Action) -> bool:
        key = action.message
        self._arrivals[key] = self._free[worker] + self._costs.boundary_seconds(worker, action.peer, action.boundary)
        self._record(worker, action, self._free[worker], 0.0)
        if key in self._waiting:
            self._runnable.append(self._waiting.pop(key))
        return True

    def _receive(self, worker: str, action: Action) -> bool:
        key = action.message
        if key not in self._arrivals:
            self._waiting[key] = worker
            return False
        start = self._free[worker]
        self._record(worker, action, start, max(self._arrivals[key] - start, 0.0))
        return True

    def _reduce_all(self) -> None:
        """Reductions run beside passes, one at a time on each worker; each when all its workers have begun it and are free."""
        for index, reduction in enumerate(self._program.reductions):
            begun = {worker: self._timings[worker][place] for worker, place in self._begun[index].items()}
            assert begun.keys() == set(reduction.workers), f"not all workers of reduction {index} begin it"
            start = max(max(self._link_free[worker], timing.start_seconds) for worker, timing in begun.items())
            end = start + self._costs.reduction_seconds(reduction)
            for worker, timing in begun.items():
                self._link_free[worker] = end
                self._timings[worker][self._begun[index][worker]] = replace(timing, start_seconds=start, end_seconds=end)

    def _apply(self, reduced_seconds: float) -> float:
        """Nobody updates before the norm is reduced over all workers: the commit point."""
        for worker, actions in self._program.actions.items():
            assert self._position[worker] == len(actions) - 1, f"deadlock: {worker} waits at {actions[self._position[worker]]}"
        commit = reduced_seconds + self._costs.commit_seconds(len(self._program.actions))
        for worker, actions in self._program.actions.items():
            self._free[worker] = commit
            seconds = sum(self._costs.stage(worker, start, stop).optimizer_seconds for start, stop in self._layers[worker])
            self._record(worker, actions[-1], commit, seconds)
        return max(self._free.values())

    @cached_property
    def _layers(self) -> dict[str, list[tuple[int, int]]]:
        """The layers that each worker passes, as disjoint ranges: its own stages, for those it stands in for lie in them."""
        result: dict[str, list[tuple[int, int]]] = {}
        for worker, actions in self._program.actions.items():
            ranges = result[worker] = []
            for start, stop in sorted({(a.layer_start, a.layer_stop) for a in actions if a.kind in PASSES}):
                if ranges and start < ranges[-1][1]:
                    ranges[-1] = ranges[-1][0], max(stop, ranges[-1][1])
                else:
                    ranges.append((start, stop))
        return result

    def _record(self, worker: str, action: Action, start: float, seconds: float) -> None:
        self._free[worker] = start + seconds
        self._timings[worker].append(Timing(worker, action, start, start + seconds))


def pass_seconds(kind: ActionKind, times: StageTimes) -> float:
    """What one pass takes on a worker with these times."""
    match kind:
        case ActionKind.FORWARD:
            return times.forward_seconds
        case ActionKind.BACKWARD_INPUT:
            return times.backward_input_seconds
        case ActionKind.BACKWARD_WEIGHT:
            return times.backward_weight_seconds
        case _:
            return times.backward_seconds


def replay(program: Program, costs: Costs) -> Replay:
    """Time every action of a step under `costs`; links have latency and rate, passes of one worker follow each other.

    O(A) for A actions.
    """
    return _Replayer(program, costs).run()
