"""Schedules as Chrome traces (the Trace Event Format, which Perfetto and chrome://tracing load).

A predicted step and a measured one are the same nouns here, actions with their times, and so give the same names, tracks
and arguments: laid beside each other they can be compared slice by slice. A group of steps is a process of the trace. Every
worker is a track of it, and its reductions, which run beside its passes, are a second one right below; nothing overlaps
within a track. Times are rounded to whole nanoseconds, as Perfetto keeps them; `start_seconds` and `end_seconds` among a
slice's arguments are exact.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimator.costs import Costs
from estimator.program import RECEIVES, SENDS, Action, ActionKind, compile_program
from estimator.replay import Timing, replay
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile

Event = dict[str, Any]

CATEGORIES = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.BACKWARD_INPUT: "backward",
    ActionKind.BACKWARD_WEIGHT: "weight",
    ActionKind.SEND_ACTIVATION: "send",
    ActionKind.SEND_GRADIENT: "send",
    ActionKind.RECEIVE_ACTIVATION: "receive",
    ActionKind.RECEIVE_GRADIENT: "receive",
    ActionKind.REDUCE: "reduce",
    ActionKind.APPLY: "apply",
}
"""What a slice is about; comparisons sum over these."""

_NANOSECONDS = 1e9
_TRACKS_PER_WORKER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """The actions of one step with their times, worker by worker."""

    timings: Mapping[str, Sequence[Timing]]
    step: int | None = None
    """Index of the optimizer update; null for a prediction, which is of any step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceGroup:
    """Steps of one plan, predicted or measured: a process of the trace."""

    title: str
    plan: Plan
    steps: Sequence[TracedStep]


def predicted_group(plan: Plan, profile: Profile, cluster: Cluster, *, begin_seconds: float = 0.0) -> TraceGroup:
    """One step of `plan` as the estimator's replay of its program tells it, from `begin_seconds` on. O(A) for A actions.

    Raises:
        InvalidInputError: the plan has other layers than the profile, or workers that the cluster lacks.
    """
    plan.require_layers(profile.num_layers)
    plan.require_workers(cluster.by_id)
    timetable = replay(compile_program(plan, profile, cluster), Costs(profile, cluster)).timings
    if begin_seconds:
        timetable = {worker: tuple(later(timing, begin_seconds) for timing in own) for worker, own in timetable.items()}
    return TraceGroup(title=f"predicted, generation {plan.generation}", plan=plan, steps=(TracedStep(timings=timetable),))


def trace_document(groups: Sequence[TraceGroup], **metadata: str) -> dict[str, Any]:
    """The trace of all groups as JSON data, `metadata` in its `otherData`."""
    events = [event for number, group in enumerate(groups, 1) for event in _events(group, number)]
    return {"displayTimeUnit": "ms", "otherData": metadata, "traceEvents": events}


def dumps(document: Mapping[str, Any]) -> str:
    """A trace as text, one event per line."""
    head = {name: value for name, value in document.items() if name != "traceEvents"}
    lines = ",\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in document["traceEvents"])
    return f'{json.dumps(head)[:-1]}, "traceEvents": [\n{lines}\n]}}\n'


def action_name(action: Action) -> str:
    """What a slice is called: `F3`, `B3`, `I3`, `W3`, `send F3`, `receive B3`, `reduce 1`, `apply`."""
    if action.kind is ActionKind.APPLY:
        return "apply"
    if action.kind is ActionKind.REDUCE:
        return f"reduce {action.reduction}"
    if action.kind in SENDS | RECEIVES:
        return f"{CATEGORIES[action.kind]} {action.kind.value[-1]}{action.microbatch}"
    return f"{action.kind.value}{action.microbatch}"


def message_key(timing: Timing) -> tuple[object, ...]:
    """The same for a send and its receive within a step."""
    action = timing.action
    ends = (timing.worker, action.peer) if action.kind in SENDS else (action.peer, timing.worker)
    return (*ends, action.microbatch, action.boundary, action.kind.value[-1])


def _events(group: TraceGroup, process: int) -> Iterator[Event]:
    workers = group.plan.workers
    yield _metadata("process_name", process, 0, name=group.title)
    yield _metadata("process_sort_index", process, 0, sort_index=process)
    for place, worker in enumerate(workers):
        slots = group.plan.slots_of[worker]
        stages = ", ".join(str(slot.stage) for slot in slots)
        tracks = (f"{worker} pipeline {slots[0].pipeline} stage {stages}", f"{worker} reductions")
        for track, name in enumerate(tracks, 1 + place * _TRACKS_PER_WORKER):
            yield _metadata("thread_name", process, track, name=name)
            yield _metadata("thread_sort_index", process, track, sort_index=track)
    flows: dict[tuple[object, ...], str] = {}
    for step in group.steps:
        for place, worker in enumerate(workers):
            for timing in step.timings.get(worker, ()):
                yield _slice(timing, process, 1 + place * _TRACKS_PER_WORKER, step.step, flows)


def _metadata(kind: str, process: int, track: int, **arguments: object) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": arguments}


def _slice(timing: Timing, process: int, track: int, step: int | None, flows: dict[tuple[object, ...], str]) -> Event:
    action = timing.action
    start, end = (round(seconds * _NANOSECONDS) for seconds in (timing.start_seconds, timing.end_seconds))
    event: Event = {
        "ph": "X",
        "name": action_name(action),
        "cat": CATEGORIES[action.kind],
        "pid": process,
        "tid": track + (action.kind is ActionKind.REDUCE),
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "args": _arguments(timing, step),
    }
    if action.peer:
        event["bind_id"] = flows.setdefault((step, *message_key(timing)), f"0x{process:x}{len(flows):08x}")
        event["flow_out" if action.kind in SENDS else "flow_in"] = True
    return event


def _arguments(timing: Timing, step: int | None) -> dict[str, object]:
    action = timing.action
    result: dict[str, object] = {"start_seconds": timing.start_seconds, "end_seconds": timing.end_seconds}
    if step is not None:
        result["step"] = step
    if action.kind is ActionKind.REDUCE:
        result["reduction"] = action.reduction
    elif action.kind is not ActionKind.APPLY:
        result |= {
            "stage": action.stage,
            "microbatch": action.microbatch,
            "layers": f"{action.layer_start}-{action.layer_stop - 1}",
        }
    if action.peer:
        result["peer"] = action.peer
    return result


def later(timing: Timing, seconds: float) -> Timing:
    """The same action `seconds` later."""
    return Timing(timing.worker, timing.action, timing.start_seconds + seconds, timing.end_seconds + seconds)
