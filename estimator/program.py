"""The joint between planning and running: a plan compiled to one ordered list of actions per worker.

The estimator replays these lists to predict a step; the executor interprets the very same lists. They are free of
deadlock by construction: passes are ordered as some execution had them (a fixed schedule or a simulated one), sends
never wait, every receive has its send earlier in that execution, and reductions follow all passes in one global order.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from estimator.costs import Costs
from estimator.schedule import Hop, Journey, ListScheduler, Pass, order
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Plan, Reduction
from kintsugi.core.profile import Profile


class ActionKind(StrEnum):
    """What a worker does next."""

    FORWARD = "F"
    BACKWARD = "B"
    SEND_ACTIVATION = "SEND_F"
    RECEIVE_ACTIVATION = "RECV_F"
    SEND_GRADIENT = "SEND_B"
    RECEIVE_GRADIENT = "RECV_B"
    REDUCE = "REDUCE"
    APPLY = "APPLY"


PASSES = frozenset({ActionKind.FORWARD, ActionKind.BACKWARD})
SENDS = frozenset({ActionKind.SEND_ACTIVATION, ActionKind.SEND_GRADIENT})
RECEIVES = frozenset({ActionKind.RECEIVE_ACTIVATION, ActionKind.RECEIVE_GRADIENT})


@dataclass(frozen=True, slots=True)
class Action:
    """One action. Passes and messages name micro-batch, stage and layers [layer_start, layer_stop); messages their peer."""

    kind: ActionKind
    microbatch: int = -1
    stage: int = -1
    layer_start: int = 0
    layer_stop: int = 0
    peer: str = ""
    reduction: int = -1
    """Index into the program's reductions."""

    @property
    def boundary(self) -> int:
        """The layer in front of which the message's tensors stand: activations leave below, gradients above."""
        outgoing = self.kind in (ActionKind.SEND_ACTIVATION, ActionKind.RECEIVE_GRADIENT)
        return self.layer_stop if outgoing else self.layer_start

    def __str__(self) -> str:
        """Text form, such as `2F0[4:8]`, `2SEND_F0[4:8]>w03`, `REDUCE1` or `APPLY`."""
        if self.kind is ActionKind.APPLY:
            return "APPLY"
        if self.kind is ActionKind.REDUCE:
            return f"REDUCE{self.reduction}"
        text = f"{self.stage}{self.kind.value}{self.microbatch}[{self.layer_start}:{self.layer_stop}]"
        return f"{text}>{self.peer}" if self.peer else text


_ACTION = re.compile(r"(\d+)(F|B|SEND_F|RECV_F|SEND_B|RECV_B)(\d+)\[(\d+):(\d+)\](?:>(.+))?")


def parse_action(text: str) -> Action:
    """Read an action's text form back.

    Raises:
        InvalidInputError: the text is no action.
    """
    if text == "APPLY":
        return Action(ActionKind.APPLY)
    if match := re.fullmatch(r"REDUCE(\d+)", text):
        return Action(ActionKind.REDUCE, reduction=int(match[1]))
    match = _ACTION.fullmatch(text)
    if match is None:
        raise InvalidInputError("is no action such as 2F0[4:8]", field="action", value=text)
    stage, kind, microbatch, start, stop, peer = match.groups()
    return Action(ActionKind(kind), int(microbatch), int(stage), int(start), int(stop), peer or "")


@dataclass(frozen=True)
class Program:
    """One ordered action list per worker, and the reductions that REDUCE actions name."""

    actions: Mapping[str, tuple[Action, ...]]
    reductions: tuple[Reduction, ...]

    @cached_property
    def texts(self) -> dict[str, tuple[str, ...]]:
        """Every worker's list in text form."""
        return {worker: tuple(map(str, actions)) for worker, actions in self.actions.items()}

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of every worker's list."""
        return {worker: list_digest(texts) for worker, texts in self.texts.items()}

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over all lists; a worker refuses a list that came with another one."""
        return checksum(self.digests, self.reductions)


def list_digest(texts: tuple[str, ...]) -> str:
    """SHA-256 of one worker's list in text form, in hexadecimal."""
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()


def checksum(digests: Mapping[str, str], reductions: tuple[Reduction, ...]) -> str:
    """SHA-256 over the digests of all lists and over the reductions, in hexadecimal."""
    lines = [f"{worker} {digests[worker]}" for worker in sorted(digests)]
    lines += [f"{reduction.layers} {reduction.workers} {reduction.num_bytes}" for reduction in reductions]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def compile_program(plan: Plan, profile: Profile, cluster: Cluster) -> Program:
    """Compile `plan` to one action list per worker, in slot order.

    Pipelines that no failure touched keep the schedule's fixed order. Those that gave micro-batches away or took them
    in are list-scheduled together. O(A log A) for A actions.
    """
    costs = Costs(profile, cluster)
    touched = _touched_pipelines(plan)
    passes = _fixed_passes(plan, touched)
    if touched:
        passes |= _rerouted_passes(plan, costs, touched)
    reductions = tuple(reduction for round_ in plan.rounds for reduction in round_)
    shared: dict[str, list[Action]] = {worker: [] for worker in plan.workers}
    for index, reduction in enumerate(reductions):
        for worker in reduction.workers:
            shared[worker].append(Action(ActionKind.REDUCE, reduction=index))
    apply = Action(ActionKind.APPLY)
    actions = {worker: (*_with_messages(worker, passes[worker], plan), *shared[worker], apply) for worker in plan.workers}
    return Program(actions=actions, reductions=reductions)


@dataclass(frozen=True, slots=True)
class _Pass:
    kind: Pass
    microbatch: int
    pipeline: int
    stage: int


def _fixed_passes(plan: Plan, touched: frozenset[int]) -> dict[str, tuple[_Pass, ...]]:
    result: dict[str, tuple[_Pass, ...]] = {}
    for index, pipeline in enumerate(plan.pipelines):
        if index in touched:
            continue
        first = plan.microbatches_of(index).start
        for s, stage in enumerate(pipeline.stages):
            assert stage.worker is not None
            steps = order(plan.schedule, s, len(pipeline.stages), pipeline.num_microbatches)
            result[stage.worker] = tuple(_Pass(step.kind, first + step.microbatch, index, s) for step in steps)
    return result


def fewest_replicas(plan: Plan, start: int, stop: int) -> int:
    """Holders of the least replicated of layers start..stop-1: what optimizer state is divided by under zero1."""
    return min(len(plan.holders[layer]) for layer in range(start, stop))


def _touched_pipelines(plan: Plan) -> frozenset[int]:
    givers = {slot.pipeline for slot in plan.dead_slots}
    takers = {plan.slot_of[route.worker].pipeline for route in plan.routes}
    return frozenset(givers | takers)


def _rerouted_passes(plan: Plan, costs: Costs, touched: frozenset[int]) -> dict[str, tuple[_Pass, ...]]:
    pipeline_of = {m: index for index in sorted(touched) for m in plan.microbatches_of(index)}
    journeys = [_journey(plan, costs, index, m) for m, index in pipeline_of.items()]
    passes = _list_schedule(journeys, plan, is_limit_shared=False)
    if all(_fits(worker, items, plan, costs) for worker, items in passes.items()):
        return passes
    return _list_schedule(journeys, plan, is_limit_shared=True)


def _list_schedule(journeys: list[Journey], plan: Plan, *, is_limit_shared: bool) -> dict[str, tuple[_Pass, ...]]:
    pipeline_of = {journey.microbatch: journey.pipeline for journey in journeys}
    placed = ListScheduler(journeys, plan.schedule, is_limit_shared=is_limit_shared).run()
    return {
        worker: tuple(_Pass(item.kind, item.microbatch, pipeline_of[item.microbatch], item.stage) for item in items)
        for worker, items in placed.items()
    }


def _fits(worker: str, passes: tuple[_Pass, ...], plan: Plan, costs: Costs) -> bool:
    own = plan.stage_of[worker]
    held = static = costs.sums.static_bytes(own.layer_start, own.layer_stop, fewest_replicas(plan, own.layer_start, own.layer_stop))
    most = static
    for item in passes:
        stage = plan.pipelines[item.pipeline].stages[item.stage]
        num_bytes = costs.sums.activation_bytes(stage.layer_start, stage.layer_stop)
        held += num_bytes if item.kind is Pass.FORWARD else -num_bytes
        most = max(most, held)
    return most <= costs.usable_bytes(worker)


def _journey(plan: Plan, costs: Costs, pipeline: int, microbatch: int) -> Journey:
    stages = plan.pipelines[pipeline].stages
    workers = [plan.worker_for(microbatch, pipeline, s) for s in range(len(stages))]
    hops = tuple(
        Hop(
            worker=worker,
            forward_seconds=costs.stage(worker, stage.layer_start, stage.layer_stop).forward_seconds,
            backward_seconds=costs.stage(worker, stage.layer_start, stage.layer_stop).backward_seconds,
            delay_seconds=costs.boundary_seconds(worker, following, stage.layer_stop) if following else 0.0,
        )
        for worker, following, stage in zip(workers, [*workers[1:], ""], stages, strict=True)
    )
    return Journey(microbatch=microbatch, pipeline=pipeline, turn=microbatch - plan.microbatches_of(pipeline).start, hops=hops)


def _with_messages(worker: str, passes: tuple[_Pass, ...], plan: Plan) -> Iterator[Action]:
    """Each pass with the receive before it and the send after it; no message where the neighbour is the worker itself."""
    for item in passes:
        stages = plan.pipelines[item.pipeline].stages
        stage = stages[item.stage]
        at = (item.microbatch, item.stage, stage.layer_start, stage.layer_stop)
        below = plan.worker_for(item.microbatch, item.pipeline, item.stage - 1) if item.stage > 0 else worker
        above = plan.worker_for(item.microbatch, item.pipeline, item.stage + 1) if item.stage + 1 < len(stages) else worker
        if item.kind is Pass.FORWARD:
            if below != worker:
                yield Action(ActionKind.RECEIVE_ACTIVATION, *at, peer=below)
            yield Action(ActionKind.FORWARD, *at)
            if above != worker:
                yield Action(ActionKind.SEND_ACTIVATION, *at, peer=above)
        else:
            if above != worker:
                yield Action(ActionKind.RECEIVE_GRADIENT, *at, peer=above)
            yield Action(ActionKind.BACKWARD, *at)
            if below != worker:
                yield Action(ActionKind.SEND_GRADIENT, *at, peer=below)


@dataclass(frozen=True, slots=True)
class Timing:
    """When one action of one worker starts and ends, in seconds from the start of the step."""

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
    iteration_seconds: float
    """To the end of the last update."""


_MessageKey = tuple[int, int, bool]


class _Replayer:
    """Advances every worker along its list as far as messages allow, until all lists are done."""

    def __init__(self, program: Program, costs: Costs) -> None:
        self._program = program
        self._costs = costs
        self._free = dict.fromkeys(program.actions, 0.0)
        self._position = dict.fromkeys(program.actions, 0)
        self._timings: dict[str, list[Timing]] = {worker: [] for worker in program.actions}
        self._arrivals: dict[_MessageKey, float] = {}
        self._waiting: dict[_MessageKey, str] = {}
        self._at_reduction: dict[int, dict[str, float]] = defaultdict(dict)
        self._runnable = list(program.actions)

    def run(self) -> Replay:
        while self._runnable:
            self._advance(self._runnable.pop())
        pipeline_seconds = max(
            (t.end_seconds for items in self._timings.values() for t in items if t.action.kind is ActionKind.BACKWARD), default=0.0
        )
        iteration_seconds = self._apply()
        return Replay({w: tuple(items) for w, items in self._timings.items()}, pipeline_seconds, iteration_seconds)

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
            seconds = times.forward_seconds if action.kind is ActionKind.FORWARD else times.backward_seconds
            self._record(worker, action, self._free[worker], seconds)
            return True
        if action.kind in SENDS:
            return self._send(worker, action)
        if action.kind in RECEIVES:
            return self._receive(worker, action)
        return self._reduce(worker, action)

    def _send(self, worker: str, action: Action) -> bool:
        key = _message_key(action)
        self._arrivals[key] = self._free[worker] + self._costs.boundary_seconds(worker, action.peer, action.boundary)
        self._record(worker, action, self._free[worker], 0.0)
        if key in self._waiting:
            self._runnable.append(self._waiting.pop(key))
        return True

    def _receive(self, worker: str, action: Action) -> bool:
        key = _message_key(action)
        if key not in self._arrivals:
            self._waiting[key] = worker
            return False
        start = self._free[worker]
        self._record(worker, action, start, max(self._arrivals[key] - start, 0.0))
        return True

    def _reduce(self, worker: str, action: Action) -> bool:
        """Reductions start when all their workers have come; the last to come times it for all."""
        present = self._at_reduction[action.reduction]
        reduction = self._program.reductions[action.reduction]
        present[worker] = self._free[worker]
        if len(present) < len(reduction.workers):
            return False
        end = max(present.values()) + self._costs.reduction_seconds(reduction)
        for member in reduction.workers:
            self._record(member, action, present[member], end - present[member])
            if member != worker:
                self._position[member] += 1
                self._runnable.append(member)
        return True

    def _apply(self) -> float:
        """Nobody updates before the norm is reduced over all workers: the commit point."""
        for worker, actions in self._program.actions.items():
            assert self._position[worker] == len(actions) - 1, f"deadlock: {worker} waits at {actions[self._position[worker]]}"
        commit = max(self._free.values()) + self._costs.commit_seconds(len(self._program.actions))
        for worker, actions in self._program.actions.items():
            start, stop = self._layers[worker]
            self._free[worker] = commit
            self._record(worker, actions[-1], commit, self._costs.stage(worker, start, stop).optimizer_seconds)
        return max(self._free.values())

    @cached_property
    def _layers(self) -> dict[str, tuple[int, int]]:
        """The widest layer range that each worker passes: its own stage."""
        ranges = {}
        for worker, actions in self._program.actions.items():
            passes = [action for action in actions if action.kind in PASSES]
            ranges[worker] = (min((a.layer_start for a in passes), default=0), max((a.layer_stop for a in passes), default=0))
        return ranges

    def _record(self, worker: str, action: Action, start: float, seconds: float) -> None:
        self._free[worker] = start + seconds
        self._timings[worker].append(Timing(worker, action, start, start + seconds))


def _message_key(action: Action) -> _MessageKey:
    is_gradient = action.kind in (ActionKind.SEND_GRADIENT, ActionKind.RECEIVE_GRADIENT)
    return action.microbatch, action.boundary, is_gradient


def replay(program: Program, costs: Costs) -> Replay:
    """Time every action of a step under `costs`; links have latency and rate, passes of one worker follow each other.

    O(A) for A actions.
    """
    return _Replayer(program, costs).run()
