"""Invariants of plans, and their views."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Reduction, Route, Schedule, Slot, Stage
from tests.core import samples
from tests.core.refusals import refuses


def stage(start, stop, worker="w00"):
    return Stage(layer_start=start, layer_stop=stop, worker=worker)


def pipeline(*stages, num_microbatches=1):
    return Pipeline(num_microbatches=num_microbatches, stages=stages)


GRID = Plan(
    pipelines=(
        pipeline(stage(0, 2, "w00"), stage(2, 4, "w01"), num_microbatches=2),
        pipeline(stage(0, 1, "w02"), stage(1, 4, "w03"), num_microbatches=3),
    )
)


@pytest.mark.parametrize(
    ("start", "stop", "worker", "field"),
    [(-1, 2, "w00", "layer_start"), (2, 2, "w00", "layer_stop"), (3, 2, "w00", "layer_stop"), (0, 1, "", "worker")],
)
def test_stage_refuses(start, stop, worker, field):
    with refuses(field):
        stage(start, stop, worker)


def test_stages_follow_each_other():
    with refuses("stages", []):
        pipeline()
    with refuses("stages[0].layer_start", 1, "must be 0"):
        pipeline(stage(1, 2))
    with refuses("stages[1].layer_start", 3, "must be 2"):
        pipeline(stage(0, 2), stage(3, 4))
    with refuses("stages[1].layer_start", 1, "must be 2"):
        pipeline(stage(0, 2), stage(1, 4))
    with refuses("num_microbatches", 0):
        pipeline(stage(0, 1), num_microbatches=0)


def test_plan_refuses_pipelines_that_do_not_fit_together():
    with refuses("pipelines", []):
        Plan(pipelines=())
    with refuses("generation", -1):
        replace(GRID, generation=-1)
    with refuses("pipelines", 65_537, "not credible"):
        Plan(pipelines=(pipeline(stage(0, 1, "w00"), num_microbatches=65_536), pipeline(stage(0, 1, "w01"))))
    many = [pipeline(stage(0, 1, f"w{n:04d}"), num_microbatches=64) for n in range(1025)]
    assert Plan(pipelines=tuple(many)).num_microbatches == 65_600
    with refuses("pipelines", 65_601, "not credible"):
        Plan(pipelines=(*many[1:], pipeline(stage(0, 1, "w"), num_microbatches=65)))
    with refuses("pipelines[1]", 3, "holds 3 layers where pipelines[0] holds 4"):
        Plan(pipelines=(pipeline(stage(0, 4, "w00")), pipeline(stage(0, 3, "w01"))))


def test_a_worker_holds_one_stage_and_the_second_is_named():
    with refuses("pipelines[1].stages[1].worker", "w01", "twice"):
        Plan(pipelines=(GRID.pipelines[0], pipeline(stage(0, 2, None), stage(2, 4, "w01"))))


def round_of(*workers, **changes):
    stages = tuple(stage(n, n + 1, worker) for n, worker in enumerate(workers))
    return Plan(schedule=Schedule.INTERLEAVED, pipelines=(pipeline(*stages), *changes.pop("others", ())), **changes)


def test_the_stages_of_an_interleaved_pipeline_go_round_its_workers():
    plan = round_of("w00", "w01", "w00", "w01")
    assert plan.workers == ("w00", "w01")
    assert (plan.pipelines[0].num_workers, plan.pipelines[0].stages_per_worker) == (2, 2)
    assert plan.slots_of["w01"] == (Slot(pipeline=0, stage=1), Slot(pipeline=0, stage=3))
    assert plan.layers_of == {"w00": (0, 2), "w01": (1, 3)}
    assert plan.holders == (("w00",), ("w01",), ("w00",), ("w01",))
    assert [plan.holds("w00", stage(n, n + 1)) for n in range(4)] == [True, False, True, False]
    assert not plan.holds("w00", stage(0, 2))
    with refuses("pipelines[0].stages[2].worker", "w00", "twice"):
        replace(plan, schedule=Schedule.ONE_F_ONE_B)


def test_stages_that_do_not_go_round_are_refused():
    with refuses("pipelines[0].stages[1].worker", "w00", "must be w01: the stages go round the 1 workers"):
        round_of("w01", "w00", "w00", "w01")
    with refuses("pipelines[0].stages", 3, "a multiple of the 2 workers"):
        round_of("w00", "w01", "w00")
    with refuses("pipelines[0].stages[3].worker", "w01", "must be null"):
        round_of("w00", None, "w00", "w01")
    with refuses("pipelines[1].stages[0].worker", "w01", "twice"):
        round_of("w00", "w01", "w00", "w01", others=(pipeline(stage(0, 4, "w01")),))


def test_all_slots_of_a_dead_worker_are_dead_and_routed():
    other = pipeline(*(stage(n, n + 1, f"w{2 + n % 2:02d}") for n in range(4)))
    routes = tuple(Route(microbatch=0, pipeline=0, stage=s, worker="w03") for s in (1, 3))
    plan = round_of("w00", None, "w00", None, others=(other,), routes=routes)
    assert plan.dead_slots == (Slot(pipeline=0, stage=1), Slot(pipeline=0, stage=3))
    assert plan.num_holders == (2, 1, 2, 1)
    assert plan.worker_for(0, 0, 3) == "w03"
    with refuses("pipelines[0].stages[3]", None, "not every micro-batch"):
        replace(plan, routes=routes[:1])
    with refuses("routes[0].worker", "w02", "holds its layers"):
        replace(plan, routes=(replace(routes[0], worker="w02"), routes[1]))


def test_idle_workers_hold_nothing_and_stand_once():
    with refuses("idle_workers[0].worker", "w03", "holds a stage"):
        replace(GRID, idle_workers=(IdleWorker(worker="w03", reason="?"),))
    with refuses("idle_workers[1].worker", "w09", "twice"):
        replace(GRID, idle_workers=(IdleWorker(worker="w09", reason="slow"),) * 2)


def test_no_worker_takes_part_twice_in_a_round():
    reduction = Reduction(layers=(0,), workers=("w00", "w02"), num_bytes=8)
    assert replace(GRID, rounds=((reduction,), (reduction,))).rounds
    with refuses("rounds[0][2]", "w00", "twice"):
        replace(GRID, rounds=((reduction, reduction),))
    with refuses("rounds[0]", "w07", "no worker of the plan"):
        replace(GRID, rounds=((replace(reduction, workers=("w00", "w07")),),))


@pytest.mark.parametrize("layer", [-1, GRID.num_layers])
def test_rounds_reduce_layers_of_the_plan(layer):
    reduction = Reduction(layers=(0, layer), workers=("w00", "w02"), num_bytes=8)
    with refuses("rounds[1][0].layers[1]", layer, f"numbered from 0 to {GRID.num_layers - 1}"):
        replace(GRID, rounds=((), (reduction,)))


@pytest.mark.parametrize(("field", "value"), [("layers", ()), ("workers", ()), ("num_bytes", -1)])
def test_reduction_refuses(field, value):
    with refuses(field):
        Reduction(**{"layers": (0,), "workers": ("w00",), "num_bytes": 8, field: value})


def test_a_dead_slot_needs_a_route_for_every_microbatch():
    plan = samples.rerouted()
    with refuses("pipelines[1].stages[0]", None, "not every micro-batch"):
        replace(plan, routes=plan.routes[:1])
    with refuses("routes[2]", fragment="twice"):
        replace(plan, routes=(*plan.routes, plan.routes[0]))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"pipeline": 2}, "routes[0]"),
        ({"pipeline": -1}, "routes[0]"),
        ({"stage": 2}, "routes[0]"),
        ({"stage": 1}, "routes[0].worker"),
        ({"stage": 1, "worker": "w01"}, "routes[0].worker"),
        ({"worker": "w01"}, "routes[0].worker"),
        ({"worker": "w99"}, "routes[0].worker"),
        ({"microbatch": 0}, "routes[0].microbatch"),
        ({"microbatch": 4}, "routes[0].microbatch"),
    ],
)
def test_routes_lead_from_dead_slots_to_holders_of_their_layers(changes, field):
    plan = samples.rerouted()
    with refuses(field):
        replace(plan, routes=(replace(plan.routes[0], **changes), *plan.routes))


def test_a_holder_of_more_layers_may_take_a_route():
    plan = Plan(
        pipelines=(pipeline(stage(0, 4, "w00")), pipeline(stage(0, 2, None), stage(2, 4, "w01"))),
        routes=(Route(microbatch=1, pipeline=1, stage=0, worker="w00"),),
    )
    assert plan.worker_for(1, 1, 0) == "w00"


def test_views_of_a_rerouted_plan():
    plan = samples.rerouted()
    assert plan.dp == 2
    assert plan.num_layers == 4
    assert plan.num_microbatches == 4
    assert plan.workers == ("w00", "w01", "w03")
    assert plan.dead_slots == (Slot(pipeline=1, stage=0),)
    assert plan.holders == (("w00",), ("w00",), ("w01", "w03"), ("w01", "w03"))
    assert plan.microbatches_of(1) == range(2, 4)
    assert [plan.worker_for(2, 1, n) for n in (0, 1)] == ["w00", "w03"]
    assert plan.slots_of == {
        "w00": (Slot(pipeline=0, stage=0),),
        "w01": (Slot(pipeline=0, stage=1),),
        "w03": (Slot(pipeline=1, stage=1),),
    }


@given(samples.plans())
def test_microbatches_are_numbered_over_all_pipelines_in_order(plan):
    numbers = [m for index in range(plan.dp) for m in plan.microbatches_of(index)]
    assert numbers == list(range(plan.num_microbatches))


@given(samples.plans(), st.data())
def test_every_layer_has_one_holder_per_pipeline(plan, data):
    layer = data.draw(st.integers(0, plan.num_layers - 1))
    assert [plan.pipeline_of[worker] for worker in plan.holders[layer]] == list(range(plan.dp))
    assert all(list(layers) == [n for s in plan.stages_of[worker] for n in s.layers] for worker, layers in plan.layers_of.items())
    assert all(layer in plan.layers_of[worker] for worker in plan.holders[layer])


@given(st.integers(0, 5), st.integers(1, 5), st.integers(0, 5), st.integers(1, 5))
def test_holding_is_inclusion_of_layers(start, length, other_start, other_length):
    one, other = stage(start, start + length), stage(other_start, other_start + other_length)
    assert one.holds(other) == (set(other.layers) <= set(one.layers))
