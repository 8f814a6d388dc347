"""Every parameter counts once in the norm, and is summed over all who hold it."""

from collections import Counter
from dataclasses import replace

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.models import model_shape
from kintsugi.runtime.workers.ownership import holders_of_parameters, owned_parameters, require_reduced
from restorer.rounds import colour_rounds
from tests.builders import grid_plan
from tests.runtime.jobs import odd_job, profile_for, tiny_gpt

GRIDS = ([1], [3], [2, 3], [1, 4, 2])


def flat(rounds):
    return [reduction for round_ in rounds for reduction in round_]


@pytest.mark.parametrize("lengths", GRIDS)
@pytest.mark.parametrize("make_job", [tiny_gpt, odd_job])
def test_every_parameter_has_one_owner_among_its_holders(make_job, lengths):
    job = make_job()
    shape, plan = model_shape(job), grid_plan(len(job.layers), lengths, [1] * len(lengths))
    owned = Counter(name for worker in plan.workers for name in owned_parameters(worker, plan, shape))
    assert owned == Counter(shape.owner_layer.keys())
    for worker in plan.workers:
        for name in owned_parameters(worker, plan, shape):
            assert worker in holders_of_parameters(plan, shape)[name]


@pytest.mark.parametrize("lengths", GRIDS)
@pytest.mark.parametrize("make_job", [tiny_gpt, odd_job])
def test_the_plans_rounds_reduce_everything(make_job, lengths):
    job = make_job()
    plan = grid_plan(len(job.layers), lengths, [1] * len(lengths))
    require_reduced(plan, model_shape(job), flat(colour_rounds(plan, profile_for(job))))


def test_a_plan_without_rounds_is_refused():
    job = tiny_gpt()
    with pytest.raises(InvalidInputError, match=r"rounds: parameter embedding\.tokens\.weight is held by"):
        require_reduced(grid_plan(len(job.layers), [2, 2], [1, 1]), model_shape(job), ())


def test_a_profile_that_does_not_know_of_a_tie_is_refused():
    job = tiny_gpt()
    profile = profile_for(job)
    untied = replace(profile, layers=tuple(replace(layer, tied_to=None) for layer in profile.layers))
    plan = grid_plan(len(job.layers), [2, 2], [1, 1])
    with pytest.raises(InvalidInputError, match="profile and job must name the same layers and ties"):
        require_reduced(plan, model_shape(job), flat(colour_rounds(plan, untied)))
