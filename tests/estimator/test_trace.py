"""A trace read back is the timetable: same durations, nothing overlaps within a track, every message has two ends."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from estimator.program import RECEIVES, SENDS, ActionKind, compile_program
from estimator.replay import replay
from estimator.trace import CATEGORIES, TracedStep, TraceGroup, action_name, dumps, predicted_group, trace_document
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Policy, Schedule
from planner.replan import replan
from restorer.rounds import colour_rounds
from tests.builders import grid_plan, snapshot_of, transformer_profile, uniform_profile

PROFILE = transformer_profile(6)


def with_rounds(plan, profile):
    return plan.amended(rounds=colour_rounds(plan, profile))


def read_back(*groups):
    return json.loads(dumps(trace_document(groups, source="test")))


def slices(document):
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def names(document, kind):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == kind}


def require_valid(document):
    """What the format asks of events, and that no two slices of a track overlap."""
    tracks = defaultdict(list)
    for event in document["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    for event in slices(document):
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        start = round(event["ts"] * 1e3)
        tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1e3)))
    for spans in tracks.values():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            assert end <= start
    assert tracks.keys() <= names(document, "thread_name").keys()


def require_paired_flows(document):
    ends = defaultdict(list)
    for event in slices(document):
        if "bind_id" in event:
            ends[event["bind_id"]].append(event)
    for pair in ends.values():
        out, into = sorted(pair, key=lambda event: "flow_in" in event)
        assert out["flow_out"]
        assert into["flow_in"]
        assert out["name"].removeprefix("send ") == into["name"].removeprefix("receive ")
        assert out["ts"] <= into["ts"] + into["dur"]
    return ends


@pytest.mark.parametrize(
    "schedule", [Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.INTERLEAVED]
)
def test_a_trace_is_the_estimators_timetable(schedule):
    virtual = 2 if schedule is Schedule.INTERLEAVED else 1
    plan = with_rounds(grid_plan(8, [2, 2], [4, 4], schedule=schedule, stages_per_worker=virtual), PROFILE)
    cluster = Cluster.uniform(4)
    document = read_back(predicted_group(plan, PROFILE, cluster))
    require_valid(document)
    timetable = replay(compile_program(plan, PROFILE, cluster), Costs(PROFILE, cluster)).timings
    track_of = {name.split()[0]: track for track, name in names(document, "thread_name").items() if "reductions" not in name}
    for worker, timings in timetable.items():
        pid, tid = track_of[worker]
        own = [event for event in slices(document) if event["pid"] == pid and event["tid"] in (tid, tid + 1)]
        read = sorted((e["name"], e["args"]["start_seconds"], e["args"]["end_seconds"]) for e in own)
        assert read == sorted((action_name(t.action), t.start_seconds, t.end_seconds) for t in timings)
        for event in own:
            seconds = event["args"]["end_seconds"] - event["args"]["start_seconds"]
            assert event["dur"] / 1e6 == pytest.approx(seconds, abs=1e-9)
    messages = sum(t.action.kind in SENDS for own in timetable.values() for t in own)
    assert len(require_paired_flows(document)) == messages > 0


def test_a_rerouted_plan_has_a_trace_too():
    profile, cluster = uniform_profile(4), Cluster.uniform(4)
    plan = with_rounds(grid_plan(4, [2, 2], [4, 4]), profile)
    rerouted = replan(snapshot_of(profile, cluster, 8, plan=plan, lost=["w03"], policy=Policy.DATA_REROUTING)).plan
    document = read_back(predicted_group(rerouted, profile, cluster))
    require_valid(document)
    require_paired_flows(document)
    passed = {event["args"]["microbatch"] for event in slices(document) if event["cat"] == "forward"}
    assert passed == set(range(8))


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    microbatches=st.integers(1, 6),
    schedule=st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.ZB_H1]),
)
@settings(max_examples=25, deadline=None)
def test_any_plan_gives_a_valid_trace(lengths, microbatches, schedule):
    profile = uniform_profile(5)
    plan = with_rounds(grid_plan(5, lengths, [microbatches] * len(lengths), schedule=schedule), profile)
    document = read_back(predicted_group(plan, profile, Cluster.uniform(sum(lengths)), begin_seconds=1.25))
    require_valid(document)
    require_paired_flows(document)
    assert min(event["ts"] for event in slices(document)) >= 1.25e6


def test_groups_are_processes_with_the_same_names():
    cluster = Cluster.uniform(2)
    plan = with_rounds(grid_plan(8, [2], [3]), PROFILE)
    predicted = predicted_group(plan, PROFILE, cluster)
    measured = TraceGroup(title="measured", plan=plan, steps=[TracedStep(step=7, timings=predicted.steps[0].timings)])
    document = read_back(predicted, measured)
    require_valid(document)
    require_paired_flows(document)
    assert set(names(document, "process_name").values()) == {"predicted, generation 0", "measured"}
    seen = [sorted((e["tid"], e["name"]) for e in slices(document) if e["pid"] == pid) for pid in (1, 2)]
    assert seen[0] == seen[1]
    assert {e["args"].get("step") for e in slices(document)} == {None, 7}


def test_every_kind_of_action_has_a_category_and_messages_their_own_names():
    assert set(CATEGORIES) == set(ActionKind)
    program = compile_program(with_rounds(grid_plan(8, [2, 2], [2, 2]), PROFILE), PROFILE, Cluster.uniform(4))
    told = {action_name(action) for actions in program.actions.values() for action in actions}
    assert {"F0", "B3", "send F1", "receive B0", "reduce 0", "apply"} <= told
    assert not SENDS & RECEIVES
