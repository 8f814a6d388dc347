"""What the holders of a layer say of it is heard by all, as often as was asked for."""

from dataclasses import replace
from pathlib import Path

import torch

from kintsugi.core.decision import Migration, StateKind, Transfer
from kintsugi.runtime.control.preparation import at_stake
from kintsugi.runtime.messages import Prepare, Restore
from kintsugi.runtime.verdicts import Verdict
from kintsugi.runtime.workers.replicas import Comparison, slots_of, state_digest
from kintsugi.runtime.workers.stager import arriving
from kintsugi.runtime.workers.state import ModelState
from tests.builders import grid_plan
from tests.runtime.jobs import odd_job


def test_a_digest_of_a_layer_is_of_parameters_moments_and_buffers():
    job = odd_job()
    state = ModelState.initial(job, range(len(job.layers)))
    for parameter in state.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    state.update(0)
    layer = next(number for number, module in state.modules.items() if list(module.parameters()))
    parameter = next(state.modules[layer].parameters())
    moments = [value for each in state.optimizers.values() for value in each.state.get(parameter, {}).values()]
    seen = {state_digest(state, layer)}
    for tensor in (parameter.detach(), *moments):
        tensor.view(-1)[0] += 1.0
        seen.add(state_digest(state, layer))
    assert len(seen) == 2 + len(moments) > 2


def comparison_of(worker, plan, **options) -> Comparison:
    return Comparison(worker, plan.workers, slots_of(plan), **options)


def told_by_all(plan, states, kinds=None) -> tuple[Comparison, list[float]]:
    """What an all-reduce makes of what every worker says."""
    comparisons = {worker: comparison_of(worker, plan, kind=(kinds or {}).get(worker, 5), every_steps=1) for worker in plan.workers}
    heard = sum(comparisons[worker].statement(states[worker]) for worker in plan.workers)
    return comparisons[plan.workers[0]], heard.tolist()


def states_of(plan) -> dict[str, ModelState]:
    return {worker: ModelState.initial(odd_job(), plan.layers_of[worker]) for worker in plan.workers}


def test_what_all_workers_of_a_plan_say_is_heard_exactly():
    plan = grid_plan(len(odd_job().layers), [2, 1, 3], [2, 2, 2])
    states = states_of(plan)
    comparison, heard = told_by_all(plan, states)
    assert comparison.verdict(heard) == Verdict()
    wrong = plan.workers[-1]
    layer = next(number for number in plan.layers_of[wrong] if list(states[wrong].modules[number].parameters()))
    with torch.no_grad():
        next(states[wrong].modules[layer].parameters()).view(-1)[0].mul_(1 + 2**-52)
    comparison, heard = told_by_all(plan, states)
    assert comparison.verdict(heard) == Verdict((layer,), (wrong,))
    comparison, heard = told_by_all(plan, states, {wrong: 6})
    assert comparison.verdict(heard) == Verdict()


def test_who_has_begun_anew_in_the_place_of_a_holder_says_nothing():
    plan = grid_plan(len(odd_job().layers), [1, 1, 1], [2, 2, 2])
    states = states_of(plan) | {"w01": None}
    comparison, heard = told_by_all(plan, states)
    assert comparison.verdict(heard) == Verdict()
    with torch.no_grad():
        next(iter(states["w02"].parameters.values())).view(-1)[0].mul_(1 + 2**-52)
    comparison, heard = told_by_all(plan, states)
    found = comparison.verdict(heard)
    assert (found.wrong, found.unsettled) == ((), found.layers)
    assert found.layers


def test_layers_are_at_stake_where_others_get_them_or_one_who_is_left_lets_go():
    applied, following = grid_plan(4, [2, 2, 1], [1, 1, 1]), grid_plan(4, [1, 2], [1, 1])
    assert applied.holders[:2] == (("w00", "w02", "w04"),) * 2
    assert following.holders == (("w00", "w01"),) * 2 + (("w00", "w02"),) * 2
    gone = {"w03"}
    assert at_stake(applied, applied, applied.workers) == ()
    assert at_stake(applied, following, [worker for worker in applied.workers if worker not in gone]) == (
        *((layer, holder) for layer in (0, 1) for holder in ("w00", "w02", "w04")),
        *((layer, holder) for layer in (2, 3) for holder in ("w01", "w04")),
    )
    assert at_stake(applied, following, ("w00",)) == ()
    grown = grid_plan(4, [2, 2, 1, 1], [1, 1, 1, 1])
    assert {layer for layer, _ in at_stake(applied, grown, applied.workers)} == set(range(4))


def test_comparisons_are_due_as_often_as_asked_and_about_every_checkpoint():
    plan = grid_plan(4, [1, 1], [2, 2])
    due = []
    comparison = comparison_of("w00", plan, every_steps=4)
    for step in range(5, 14):
        due.append(comparison.is_due(step))
        comparison.took(has_checkpoint=step == 9)
    assert [step for step, is_due in zip(range(5, 14), due, strict=True) if is_due] == [5, 8, 10, 12]


def test_nothing_is_compared_where_that_is_not_asked_for_or_no_layer_has_two_holders():
    assert not comparison_of("w00", grid_plan(4, [1, 1], [2, 2])).is_due(0)
    assert not comparison_of("w00", grid_plan(4, [2], [4]), every_steps=1).is_due(0)


def test_who_gets_a_layer_with_an_attempt_only_says_what_its_source_says():
    plan = grid_plan(3, [1, 1, 1], [1, 1, 1])
    transfer = Transfer(source="w00", target="w01", layer=2, kind=StateKind.PARAMETER, num_bytes=8)
    message = Prepare(
        attempt=1,
        plan=plan,
        actions=(),
        places=(),
        digests={},
        reductions=(),
        checksum="",
        members=plan.workers,
        migration=Migration(transfers=(transfer,)),
        record=None,
        start_step=4,
        is_initial=False,
    )
    assert {worker: arriving(message, worker) for worker in plan.workers} == {"w00": set(), "w01": {2}, "w02": set()}
    read = replace(message, restore=Restore(folder=Path("step-4"), layers=(1,), is_whole=False))
    assert {worker: arriving(read, worker) for worker in plan.workers} == {"w00": {1}, "w01": {1, 2}, "w02": {1}}


def test_who_copied_a_layer_is_no_witness_until_it_was_compared_whatever_attempts_end_before():
    layers = frozenset(range(len(odd_job().layers)))
    plan = grid_plan(len(layers), [1, 1, 1], [len(layers)] * 3)
    states = states_of(plan)
    for worker in ("w00", "w02"):
        with torch.no_grad():
            next(iter(states[worker].parameters.values())).view(-1)[0].mul_(1 + 2**-52)
    comparisons = {worker: comparison_of(worker, plan, every_steps=1, copied=layers) for worker in plan.workers[2:]}
    comparisons |= {worker: comparison_of(worker, plan, every_steps=1) for worker in plan.workers[:2]}
    heard = sum(comparisons[worker].statement(states[worker]) for worker in plan.workers).tolist()
    assert comparisons["w02"].copied == layers
    for comparison in comparisons.values():
        found = comparison.verdict(heard)
        assert found.layers
        assert not found.wrong  # one against one and its copy
        assert not comparison.copied
