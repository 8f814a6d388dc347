"""Programs are complete, free of deadlock and within limits; their replay equals an independent reckoning."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.interleaved import stage_limit
from estimator.layers import LayerSums
from estimator.pipeline import symmetric_seconds
from estimator.program import (
    PASSES,
    RECEIVES,
    SENDS,
    Action,
    ActionKind,
    Program,
    checksum,
    compile_program,
    parse_action,
)
from estimator.replay import pass_seconds, replay
from estimator.schedule import ORDERS
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Pipeline, Plan, Policy, Route, Schedule, Stage
from restorer.rounds import colour_rounds
from tests.builders import FREE, grid_plan, layer, profile_of, uniform_profile

NUM_LAYERS = 6
LAYERS = [
    layer(f"block{n}", forward_seconds=0.01 * (1 + n % 3), backward_weight_seconds=0.02 * (1 + n % 2), output_bytes=n * 10**7)
    for n in range(NUM_LAYERS)
]
PROFILE = profile_of(LAYERS)
WHOLE = [ActionKind.FORWARD, ActionKind.BACKWARD]
SPLIT = [ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT]
TIGHT = profile_of(LAYERS, memory_bytes=2_200_000_000)


def cluster_of(plan_workers, speeds) -> Cluster:
    workers = tuple(
        Worker(id=w, host=f"h{n // 2}", speed_ratio=s) for n, (w, s) in enumerate(zip(plan_workers, speeds, strict=True))
    )
    return Cluster(name="mixed", workers=workers)


@st.composite
def mended_plans(draw) -> Plan:
    """Pipelines of different cuts; some slots are dead, and their micro-batches go to living holders at random."""
    pipelines, count = [], 0
    schedule = draw(st.sampled_from(list(ORDERS)))
    is_interleaved = schedule.is_interleaved
    for _ in range(draw(st.integers(1, 3))):
        inner = draw(st.sets(st.integers(1, NUM_LAYERS - 1), max_size=5 if is_interleaved else 3))
        cuts = [0, *sorted(inner), NUM_LAYERS]
        lengths = [n for n in range(1, len(cuts)) if (len(cuts) - 1) % n == 0]
        length = draw(st.sampled_from(lengths)) if is_interleaved else len(cuts) - 1
        stages = [
            Stage(layer_start=start, layer_stop=stop, worker=f"w{count + s % length:02d}")
            for s, (start, stop) in enumerate(itertools.pairwise(cuts))
        ]
        count += length
        pipelines.append(Pipeline(num_microbatches=draw(st.integers(1, 5)), stages=tuple(stages)))
    plan = Plan(schedule=schedule, pipelines=tuple(pipelines))
    living = list(plan.workers)
    for worker in draw(st.permutations(living))[: draw(st.integers(0, 3))]:
        dead = [stage for w in plan.workers if w not in living or w == worker for stage in plan.stages_of[w]]
        if all(any(plan.holds(w, stage) for w in living if w != worker) for stage in dead):
            living.remove(worker)
    return with_rounds(without(plan, living, draw))


def without(plan: Plan, living, draw) -> Plan:
    pipelines, routes = [], []
    for p, pipeline in enumerate(plan.pipelines):
        stages = []
        for s, stage in enumerate(pipeline.stages):
            is_alive = stage.worker in living
            stages.append(stage if is_alive else replace(stage, worker=None))
            holders = [w for w in living if plan.holds(w, stage)]
            if not is_alive:
                routes += [
                    Route(microbatch=m, pipeline=p, stage=s, worker=draw(st.sampled_from(holders))) for m in plan.microbatches_of(p)
                ]
        pipelines.append(replace(pipeline, stages=tuple(stages)))
    return replace(plan, policy=Policy.DATA_REROUTING, pipelines=tuple(pipelines), routes=tuple(routes))


def with_rounds(plan: Plan) -> Plan:
    return replace(plan, rounds=colour_rounds(plan, PROFILE))


def all_cluster(plan: Plan) -> Cluster:
    return cluster_of(plan.workers, [1.0 + 0.5 * (n % 3) for n in range(len(plan.workers))])


def reckoned(program: Program, plan: Plan, costs: Costs) -> dict[tuple[str, int], float]:
    """End of every action as the longest way to it, by a recursion that fails on a cycle."""
    ends = begun_or_done(program, plan, costs)
    done = reduced(program, costs, ends)
    commit = max([*ends.values(), *done.values()]) + costs.commit_seconds(len(program.actions))
    for worker, actions in program.actions.items():
        update = sum(costs.stage(worker, s.layer_start, s.layer_stop).optimizer_seconds for s in plan.stages_of[worker])
        for index, action in enumerate(actions):
            if action.kind is ActionKind.REDUCE:
                ends[worker, index] = done[action.reduction]
        ends[worker, len(actions) - 1] = commit + update
    return ends


def begun_or_done(program: Program, plan: Plan, costs: Costs) -> dict[tuple[str, int], float]:
    """End of every pass and message, and beginning of every reduction; all but the updates."""
    index_of = {(w, action): i for w, actions in program.actions.items() for i, action in enumerate(actions)}
    assert len(index_of) == sum(map(len, program.actions.values())), "no action stands twice in a list"
    ends: dict[tuple[str, int], float] = {}
    under_way: set[tuple[str, int]] = set()

    def end(worker: str, index: int) -> float:
        if index < 0:
            return 0.0
        place = (worker, index)
        if place not in ends:
            assert place not in under_way, f"deadlock at {worker} {program.actions[worker][index]}"
            under_way.add(place)
            ends[place] = reckon(worker, index)
        return ends[place]

    def reckon(worker: str, index: int) -> float:
        action = program.actions[worker][index]
        start = end(worker, index - 1)
        if action.kind in PASSES:
            times = costs.stage(worker, action.layer_start, action.layer_stop)
            return start + pass_seconds(action.kind, times)
        if action.kind in RECEIVES:
            sent = index_of[action.peer, partner(action, worker, plan)]
            return max(start, end(action.peer, sent) + costs.boundary_seconds(action.peer, worker, action.boundary))
        assert action.kind in SENDS | {ActionKind.REDUCE}
        return start

    for worker, actions in program.actions.items():
        end(worker, len(actions) - 2)
    return ends


def reduced(program: Program, costs: Costs, begun: Mapping[tuple[str, int], float]) -> dict[int, float]:
    """End of every reduction: after all its workers began it, and after the reduction before it on each of them."""

    @cache
    def end(index: int) -> float:
        action = Action(ActionKind.REDUCE, reduction=index)
        arrivals = []
        for member in program.reductions[index].workers:
            place = program.actions[member].index(action)
            arrivals.append(begun[member, place])
            earlier = [a.reduction for a in program.actions[member][:place] if a.kind is ActionKind.REDUCE]
            arrivals += [end(earlier[-1])] if earlier else []
        return max(arrivals) + costs.reduction_seconds(program.reductions[index])

    return {index: end(index) for index in range(len(program.reductions))}


def partner(action: Action, worker: str, plan: Plan) -> Action:
    """The other end of a message, as it stands in the peer's list."""
    others = {
        ActionKind.SEND_ACTIVATION: (ActionKind.RECEIVE_ACTIVATION, 1),
        ActionKind.RECEIVE_ACTIVATION: (ActionKind.SEND_ACTIVATION, -1),
        ActionKind.SEND_GRADIENT: (ActionKind.RECEIVE_GRADIENT, -1),
        ActionKind.RECEIVE_GRADIENT: (ActionKind.SEND_GRADIENT, 1),
    }
    kind, offset = others[action.kind]
    pipeline = next(p for p in range(plan.dp) if action.microbatch in plan.microbatches_of(p))
    stage = plan.pipelines[pipeline].stages[action.stage + offset]
    return Action(kind, action.microbatch, action.stage + offset, stage.layer_start, stage.layer_stop, worker)


@given(mended_plans())
@settings(max_examples=150, deadline=None)
def test_every_pass_stands_on_the_worker_of_its_slot_or_route(plan):
    program = compile_program(plan, PROFILE, all_cluster(plan))
    expected = {
        (plan.worker_for(m, p, s), m, s, stage.layer_start, stage.layer_stop)
        for p, pipeline in enumerate(plan.pipelines)
        for m in plan.microbatches_of(p)
        for s, stage in enumerate(pipeline.stages)
    }
    found = defaultdict(list)
    for worker, actions in program.actions.items():
        for a in actions:
            if a.kind in PASSES:
                found[worker, a.microbatch, a.stage, a.layer_start, a.layer_stop].append(a.kind)
    assert set(found) == expected
    for (_, _, stage, _, _), kinds in found.items():
        assert kinds in (WHOLE, SPLIT) if stage else kinds == WHOLE
    assert tuple(program.actions) == plan.workers


@given(mended_plans())
@settings(max_examples=150, deadline=None)
def test_every_message_has_two_ends_and_no_worker_writes_to_itself(plan):
    program = compile_program(plan, PROFILE, all_cluster(plan))
    messages = [(w, a) for w, actions in program.actions.items() for a in actions if a.kind in SENDS | RECEIVES]
    there = Counter(messages)
    for worker, action in messages:
        other = partner(action, worker, plan)
        assert action.peer != worker
        assert there[action.peer, other] == 1
        assert other.boundary == action.boundary
        assert there[worker, action] == 1


@given(mended_plans())
@settings(max_examples=150, deadline=None)
def test_reductions_begin_in_one_global_order_when_their_layers_are_done_and_the_update_is_last(plan):
    program = compile_program(plan, PROFILE, all_cluster(plan))
    for worker, actions in program.actions.items():
        kinds = [action.kind for action in actions]
        assert kinds[-1] is ActionKind.APPLY
        assert kinds.count(ActionKind.APPLY) == 1
        begun = [(place, action.reduction) for place, action in enumerate(actions) if action.kind is ActionKind.REDUCE]
        assert [index for _, index in begun] == [i for i, r in enumerate(program.reductions) if worker in r.workers]
        due = -1
        for place, index in begun:
            layers = program.reductions[index].layers
            passes = [
                at for at, a in enumerate(actions) if a.kind in PASSES and any(a.layer_start <= n < a.layer_stop for n in layers)
            ]
            due = max([due, *passes])
            assert due < place
            later = [a for a in actions[due + 1 : place] if a.kind in PASSES]
            assert not later, "nothing is computed between the last pass through its layers and its beginning"


@given(mended_plans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_replay_equals_an_independent_reckoning(plan, is_tight):
    cluster = all_cluster(plan)
    costs = Costs(TIGHT if is_tight else PROFILE, cluster)
    program = compile_program(plan, costs.profile, cluster)
    ends = reckoned(program, plan, costs)
    step = replay(program, costs)
    for worker, timings in step.timings.items():
        assert [t.action for t in timings] == list(program.actions[worker])
        assert [t.end_seconds for t in timings] == pytest.approx([ends[worker, i] for i in range(len(timings))])
        for is_reduction in (False, True):
            own = [t for t in timings if (t.action.kind is ActionKind.REDUCE) == is_reduction]
            assert all(one.end_seconds <= two.start_seconds + 1e-12 for one, two in itertools.pairwise(own))
    assert step.iteration_seconds == pytest.approx(max(ends.values()))


@given(mended_plans())
@settings(max_examples=150, deadline=None)
def test_no_stage_holds_more_between_forward_and_backward_than_its_schedule_has_there(plan):
    if plan.schedule is Schedule.GPIPE:
        plan = replace(plan, schedule=Schedule.ONE_F_ONE_B)
    for is_tight in (False, True):
        program = compile_program(plan, TIGHT if is_tight else PROFILE, all_cluster(plan))
        for worker, actions in program.actions.items():
            held: Counter[tuple[int, int]] = Counter()
            for action in actions:
                if action.kind in PASSES and action.kind is not ActionKind.BACKWARD_WEIGHT:
                    pipeline = next(p for p in range(plan.dp) if action.microbatch in plan.microbatches_of(p))
                    key = (pipeline, len(plan.pipelines[pipeline].stages) - action.stage)
                    held[key] += 1 if action.kind is ActionKind.FORWARD else -1
                    assert held[key] <= limit_of(plan, pipeline, action.stage), worker


def limit_of(plan: Plan, pipeline: int, stage: int) -> int:
    """Most micro-batches in flight in a stage of a rerouted pipeline."""
    own = plan.pipelines[pipeline]
    if own.stages_per_worker == 1:
        to_go = len(own.stages) - stage
        return 2 * to_go - 1 if plan.schedule in (Schedule.EAGER_1F1B, Schedule.ZB_H2) else to_go
    return stage_limit(stage, own.num_workers, len(own.stages), own.num_microbatches)


def held_bytes(actions, sums: LayerSums) -> tuple[int, int]:
    """Most micro-batches whose activations a worker holds, and their most bytes, read off its list."""
    held = num_bytes = most = most_bytes = 0
    for action in actions:
        if action.kind is ActionKind.FORWARD:
            held, num_bytes = held + 1, num_bytes + sums.activation_bytes(action.layer_start, action.layer_stop)
        elif action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT):
            held, num_bytes = held - 1, num_bytes - sums.activation_bytes(action.layer_start, action.layer_stop)
        most, most_bytes = max(most, held), max(most_bytes, num_bytes)
    assert held == num_bytes == 0
    return most, most_bytes


@given(mended_plans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_estimate_is_that_of_the_program(plan, is_tight):
    profile, cluster = TIGHT if is_tight else PROFILE, all_cluster(plan)
    costs = Costs(profile, cluster)
    program = compile_program(plan, profile, cluster)
    step, price = replay(program, costs), estimate(plan, profile, cluster)
    assert price.pipeline_seconds == pytest.approx(step.pipeline_seconds, rel=1e-12)
    assert price.iteration_seconds == pytest.approx(step.iteration_seconds, rel=1e-12)
    kinds = {action.kind for actions in program.actions.values() for action in actions}
    assert price.splits_backward == (ActionKind.BACKWARD_INPUT in kinds)
    for stage in price.stages:
        most, num_bytes = held_bytes(program.actions[stage.worker], costs.sums)
        static = sum(
            layer.parameter_bytes + layer.gradient_bytes + layer.optimizer_bytes
            for layer in (profile.layers[index] for index in plan.layers_of[stage.worker])
        )
        assert (stage.num_in_flight, stage.peak_memory_bytes) == (most, static + num_bytes)
        passes = [t for t in step.timings[stage.worker] if t.action.kind in PASSES]
        assert stage.busy_seconds == pytest.approx(sum(t.end_seconds - t.start_seconds for t in passes))


@given(mended_plans(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_slower_worker_never_shortens_the_step(plan, data):
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=len(plan.workers), max_size=len(plan.workers)))
    cluster = cluster_of(plan.workers, speeds)
    program = compile_program(plan, PROFILE, cluster)
    slow = data.draw(st.integers(0, len(speeds) - 1))
    slower = cluster_of(plan.workers, [s * (0.5 if n == slow else 1.0) for n, s in enumerate(speeds)])
    before, after = replay(program, Costs(PROFILE, cluster)), replay(program, Costs(PROFILE, slower))
    assert after.iteration_seconds >= before.iteration_seconds * (1 - 1e-12)
    assert after.pipeline_seconds >= before.pipeline_seconds * (1 - 1e-12)


@pytest.mark.parametrize("pp", range(1, 6))
@pytest.mark.parametrize("microbatches", [1, 2, 5, 8])
def test_equal_stages_without_delays_take_what_equation_9_says(pp, microbatches):
    profile = uniform_profile(pp, inter_host=FREE, intra_host=FREE)
    plan = grid_plan(pp, [pp, pp], [microbatches, microbatches])
    cluster = Cluster.uniform(2 * pp)
    step = replay(compile_program(plan, profile, cluster), Costs(profile, cluster))
    assert step.pipeline_seconds == pytest.approx(symmetric_seconds(pp, microbatches, 0.010, 0.020))


@given(mended_plans())
@settings(max_examples=50, deadline=None)
def test_texts_read_back(plan):
    program = compile_program(plan, PROFILE, all_cluster(plan))
    for worker, texts in program.texts.items():
        assert tuple(map(parse_action, texts)) == program.actions[worker]


@given(st.text(st.characters(exclude_categories=("C",)), min_size=1).filter(str.isprintable))
def test_texts_with_any_peer_read_back(peer):
    action = Action(ActionKind.SEND_GRADIENT, 3, 1, 2, 4, peer)
    assert parse_action(str(action)) == action


@pytest.mark.parametrize("text", ["", "REDUCE", "REDUCE-1", "2F0", "2F0[4]", "F0[0:1]", "2SEND0[0:1]>w01", "apply", "2F0[4:8]>"])
def test_what_is_no_action_is_refused(text):
    with pytest.raises(InvalidInputError, match="action: is no action"):
        parse_action(text)


@given(mended_plans(), st.data())
@settings(max_examples=80, deadline=None)
def test_the_checksum_changes_with_any_action(plan, data):
    program = compile_program(plan, PROFILE, all_cluster(plan))
    worker = data.draw(st.sampled_from(plan.workers))
    actions = list(program.actions[worker])
    index = data.draw(st.integers(0, len(actions) - 1))
    change = data.draw(st.sampled_from(["drop", "repeat", "renumber", "swap"]))
    if change == "drop":
        del actions[index]
    elif change == "repeat":
        actions.insert(index, actions[index])
    elif change == "renumber":
        changed = replace(actions[index], microbatch=actions[index].microbatch + 1, reduction=actions[index].reduction + 1)
        actions[index] = changed if str(changed) != str(actions[index]) else Action(ActionKind.REDUCE, reduction=99)
    else:
        actions[index - 1], actions[index] = actions[index], actions[index - 1]
    other = Program({**program.actions, worker: tuple(actions)}, program.reductions)
    assert (other.checksum == program.checksum) == (other.texts == program.texts)
    assert compile_program(plan, PROFILE, all_cluster(plan)).checksum == program.checksum


def test_the_checksum_covers_reductions_and_who_does_what():
    plan = with_rounds(grid_plan(NUM_LAYERS, [2, 2], [2, 2]))
    program = compile_program(plan, PROFILE, Cluster.uniform(4))
    first, *rest = program.reductions
    digests = defaultdict(str, program.digests)
    assert checksum(digests, (replace(first, num_bytes=first.num_bytes + 1), *rest)) != program.checksum
    digests["w00"], digests["w01"] = digests["w01"], digests["w00"]
    assert checksum(digests, program.reductions) != program.checksum
