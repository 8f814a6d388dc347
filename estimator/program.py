"""The joint between planning and running: a plan compiled to one ordered list of actions per worker.

The estimator replays these lists to predict a step; the executor interprets the very same lists. They are free of
deadlock by construction: passes are ordered as some execution had them (a fixed schedule or a simulated one), sends
never wait, and every receive has its send earlier in that execution.

REDUCE starts a reduction and does not wait; it stands right after the last pass through its layers on that worker. A
worker carries its reductions out one at a time, in the order of its list, beside its passes; APPLY waits for all of them.
All lists have their reductions in one global order. No pass waits for a reduction, so all are started; of those that are not
done, the first in that order has all its workers free for it. Hence nobody waits for ever.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from estimator.costs import Costs
from estimator.interleaved import worker_order
from estimator.list_schedule import PlacedPass
from estimator.rerouted import rerouted_schedules, touched_pipelines
from estimator.schedule import Pass
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Plan, Reduction
from kintsugi.core.profile import Profile


class ActionKind(StrEnum):
    """What a worker does next."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_ACTIVATION = "SEND_F"
    RECEIVE_ACTIVATION = "RECV_F"
    SEND_GRADIENT = "SEND_B"
    RECEIVE_GRADIENT = "RECV_B"
    REDUCE = "REDUCE"
    APPLY = "APPLY"


BACKWARDS = frozenset({ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT})
PASSES = BACKWARDS | {ActionKind.FORWARD}
SENDS = frozenset({ActionKind.SEND_ACTIVATION, ActionKind.SEND_GRADIENT})
RECEIVES = frozenset({ActionKind.RECEIVE_ACTIVATION, ActionKind.RECEIVE_GRADIENT})
_MESSAGES = SENDS | RECEIVES
_OF_GRADIENTS = frozenset({ActionKind.SEND_GRADIENT, ActionKind.RECEIVE_GRADIENT})

Message = tuple[int, int, bool]
"""What is sent once in a step: the micro-batch, the boundary that it crosses, and whether gradients cross it."""


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

    @property
    def message(self) -> Message:
        """What a send or a receive carries; the same at both ends, and of no other message of the step."""
        return self.microbatch, self.boundary, self.kind in _OF_GRADIENTS

    def __str__(self) -> str:
        """Text form, such as `2F0[4:8]`, `2SEND_F0[4:8]>w03`, `REDUCE1` or `APPLY`."""
        if self.kind is ActionKind.APPLY:
            return "APPLY"
        if self.kind is ActionKind.REDUCE:
            return f"REDUCE{self.reduction}"
        text = f"{self.stage}{self.kind.value}{self.microbatch}[{self.layer_start}:{self.layer_stop}]"
        return f"{text}>{self.peer}" if self.peer else text


_ACTION = re.compile(r"(\d+)(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)(\d+)\[(\d+):(\d+)\](?:>(.+))?")


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
    def places(self) -> dict[str, tuple[int, ...]]:
        """For each send and receive of every worker, in its list's order: its place among its peer's with this worker, from 0.

        -1 for one that the peer's list lacks, which no compiled program has.
        """
        place_of: dict[tuple[str, Message], int] = {}
        for worker, actions in self.actions.items():
            num_messages: Counter[str] = Counter()
            for action in messages(actions):
                place_of[worker, action.message] = num_messages[action.peer]
                num_messages[action.peer] += 1
        return {
            worker: tuple(place_of.get((action.peer, action.message), -1) for action in messages(actions))
            for worker, actions in self.actions.items()
        }

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of every worker's list and places."""
        return {worker: list_digest(texts, self.places[worker]) for worker, texts in self.texts.items()}

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over all lists; a worker refuses a list that came with another one."""
        return checksum(self.digests, self.reductions)


def messages(actions: Sequence[Action]) -> list[Action]:
    """The sends and receives of a list, in its order."""
    return [action for action in actions if action.kind in _MESSAGES]


def list_digest(texts: tuple[str, ...], places: tuple[int, ...]) -> str:
    """SHA-256 of one worker's list in text form and of its messages' places, in hexadecimal."""
    return hashlib.sha256(" ".join((*texts, *map(str, places))).encode()).hexdigest()


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
    touched = touched_pipelines(plan)
    passes = _fixed_passes(plan, touched)
    if touched:
        passes |= {worker: schedule.passes for worker, schedule in rerouted_schedules(plan, costs, touched).items()}
    reductions = tuple(reduction for round_ in plan.rounds for reduction in round_)
    shared: dict[str, list[int]] = {worker: [] for worker in plan.workers}
    for index, reduction in enumerate(reductions):
        for worker in reduction.workers:
            shared[worker].append(index)
    actions = {}
    for worker in plan.workers:
        begun = _begun_after(passes[worker], plan, reductions, shared[worker])
        actions[worker] = (*_with_reductions(worker, passes[worker], plan, begun), Action(ActionKind.APPLY))
    return Program(actions=actions, reductions=reductions)


def _begun_after(
    passes: Sequence[PlacedPass], plan: Plan, reductions: Sequence[Reduction], own: Sequence[int]
) -> dict[int, list[Action]]:
    """Which reductions begin after each pass of a worker, by its index; -1 for those whose layers it passes never.

    That is the last pass through their layers, or where a reduction that precedes in the global order begins.
    """
    last: dict[tuple[int, int], int] = {}
    for index, item in enumerate(passes):
        stage = plan.pipelines[item.pipeline].stages[item.stage]
        last[stage.layer_start, stage.layer_stop] = index
    result: dict[int, list[Action]] = defaultdict(list)
    place = -1
    for reduction in own:
        touched = (at for (start, stop), at in last.items() if any(start <= n < stop for n in reductions[reduction].layers))
        place = max(place, max(touched, default=-1))
        result[place].append(Action(ActionKind.REDUCE, reduction=reduction))
    return result


def _with_reductions(
    worker: str, passes: Sequence[PlacedPass], plan: Plan, begun: Mapping[int, Sequence[Action]]
) -> Iterator[Action]:
    """Passes with their messages, and the reductions that begin after each."""
    yield from begun.get(-1, ())
    for index, item in enumerate(passes):
        yield from _with_messages(worker, item, plan)
        yield from begun.get(index, ())


def _fixed_passes(plan: Plan, touched: frozenset[int]) -> dict[str, tuple[PlacedPass, ...]]:
    result: dict[str, tuple[PlacedPass, ...]] = {}
    for index, pipeline in enumerate(plan.pipelines):
        if index in touched:
            continue
        first, num_workers = plan.microbatches_of(index).start, pipeline.num_workers
        for place, stage in enumerate(pipeline.stages[:num_workers]):
            assert stage.worker is not None
            steps = worker_order(plan.schedule, place, num_workers, len(pipeline.stages), pipeline.num_microbatches)
            result[stage.worker] = tuple(PlacedPass(step.kind, first + step.microbatch, index, s) for s, step in steps)
    return result


def _with_messages(worker: str, item: PlacedPass, plan: Plan) -> Iterator[Action]:
    """A pass with the receive before it and the send after it; no message where the neighbour is the worker itself."""
    stages = plan.pipelines[item.pipeline].stages
    stage = stages[item.stage]
    at = (item.microbatch, item.stage, stage.layer_start, stage.layer_stop)
    below = plan.worker_for(item.microbatch, item.pipeline, item.stage - 1) if item.stage > 0 else worker
    above = plan.worker_for(item.microbatch, item.pipeline, item.stage + 1) if item.stage + 1 < len(stages) else worker
    kind = ActionKind(item.kind.value)
    if item.kind is Pass.FORWARD:
        if below != worker:
            yield Action(ActionKind.RECEIVE_ACTIVATION, *at, peer=below)
        yield Action(kind, *at)
        if above != worker:
            yield Action(ActionKind.SEND_ACTIVATION, *at, peer=above)
    elif item.kind is Pass.BACKWARD_WEIGHT:
        yield Action(kind, *at)
    else:
        if above != worker:
            yield Action(ActionKind.RECEIVE_GRADIENT, *at, peer=above)
        yield Action(kind, *at)
        if below != worker:
            yield Action(ActionKind.SEND_GRADIENT, *at, peer=below)
