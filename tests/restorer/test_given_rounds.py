"""Rounds of plans from outside: none are made up for, those that keep replicas equal stay, all others are refused by name."""

from dataclasses import replace

import pytest

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Reduction
from restorer.given_rounds import require_summed, with_rounds
from restorer.rounds import colour_rounds
from tests.builders import grid_plan, transformer_profile, uniform_profile
from tests.core.refusals import refuses

PROFILE = uniform_profile(4)
GRID = grid_plan(4, [2, 2, 1], [2, 2, 2])
WHOLE = replace(GRID, rounds=colour_rounds(GRID, PROFILE))
BYTES = PROFILE.layers[0].gradient_bytes
FRONT, BACK = ("w00", "w02", "w04"), ("w01", "w03", "w04")
"""Who holds layers 0 and 1, and who layers 2 and 3."""


def reduced(layers, workers, num_bytes=None):
    return Reduction(layers=tuple(layers), workers=workers, num_bytes=BYTES * len(layers) if num_bytes is None else num_bytes)


def with_those(*rounds):
    return replace(GRID, rounds=rounds)


def test_a_plan_without_rounds_gets_those_of_the_planner():
    costs = Costs(PROFILE, Cluster.uniform(5))
    assert with_rounds(GRID, costs) == WHOLE
    assert with_rounds(WHOLE, costs) is WHOLE


@pytest.mark.parametrize(
    "rounds",
    [
        [[reduced([0], FRONT)], [reduced([1], FRONT)], [reduced([2, 3], BACK)]],
        [[reduced([3, 2], BACK[::-1])], [reduced([0, 1], FRONT)]],
        [[reduced([n], FRONT if n < 2 else BACK)] for n in (3, 1, 2, 0)],
    ],
)
def test_rounds_may_be_split_and_ordered_in_any_way(rounds):
    require_summed(with_those(*map(tuple, rounds)), PROFILE)


@pytest.mark.parametrize(
    ("rounds", "field", "value", "fragment"),
    [
        ([reduced([0, 1], FRONT)], "rounds", 2, "do not reduce layer 2, which w01, w03, w04 have to"),
        ([reduced([0, 1], FRONT[:2]), reduced([2, 3], BACK)], "rounds[0][0].workers", "w04", "lack w04, which holds layer 0"),
        ([reduced([0, 1], FRONT), reduced([2, 3], (*BACK, "w00"))], "rounds[1][0].workers", "w00", "no part in layer 2"),
        ([reduced([0, 1, 2, 3], (*FRONT, "w01", "w03"))], "rounds[0][0].workers", "w01", "no part in layer 0"),
        ([reduced([0, 1, 1], FRONT), reduced([2, 3], BACK)], "rounds[0][0].layers[2]", 1, "by plan.rounds[0][0] already"),
        ([reduced([0, 1], FRONT), reduced([2, 3], BACK), reduced([3], BACK)], "rounds[2][0].layers[0]", 3, "rounds[1][0] already"),
        ([reduced([0, 1], FRONT), reduced([2, 3], BACK, 7)], "rounds[1][0].num_bytes", 7, f"must be {2 * BYTES}"),
    ],
)
def test_rounds_that_would_let_replicas_drift_apart_are_refused(rounds, field, value, fragment):
    with refuses(f"plan.{field}", value, fragment):
        require_summed(with_those(*((reduction,) for reduction in rounds)), PROFILE)


def test_every_refusal_says_the_way_out():
    with refuses("plan.rounds", 2, "leave rounds out to have them made"):
        require_summed(with_those((reduced([0, 1], FRONT),)), PROFILE)


def test_layers_that_share_parameters_are_reduced_in_one_over_the_holders_of_all():
    profile = transformer_profile(2)
    for lengths in ([2, 1], [2], [1]):
        plan = grid_plan(4, lengths, [1] * len(lengths))
        require_summed(with_rounds(plan, Costs(profile, Cluster.uniform(3))), profile)
    plan, embedding = grid_plan(4, [2], [1]), profile.layers[0]
    one = Reduction(layers=(0, 3), workers=("w00", "w01"), num_bytes=embedding.gradient_bytes)
    require_summed(replace(plan, rounds=((one,),)), profile)
    with refuses("plan.rounds", 0, "do not reduce layer 0"):
        require_summed(replace(plan, rounds=((),)), profile)
    apart = (replace(one, layers=(0,)),), (replace(one, layers=(3,), num_bytes=0),)
    with refuses("plan.rounds[1][0].layers", 3, "must reduce layer 3 in one with layer 0, for they share parameters"):
        require_summed(replace(plan, rounds=apart), profile)
