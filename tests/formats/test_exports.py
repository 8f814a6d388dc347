"""One text for all pipelines that are alike; where they differ, one each, and it is said so."""

import json
from dataclasses import replace

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Schedule
from kintsugi.formats.exports import ExportFormat, exported
from kintsugi.formats.torchtitan import module_fqns
from tests.builders import grid_plan, layer, profile_of, transformer_profile, uniform_profile
from tests.core.samples import rerouted

PROFILE = transformer_profile(6)


@pytest.mark.parametrize("form", list(ExportFormat))
def test_equal_pipelines_have_one_text(form):
    result = exported(grid_plan(8, [2, 2], [4, 4]), PROFILE, form)
    assert [part.pipelines for part in result.parts] == [(0, 1)]
    assert result.note == ""


@pytest.mark.parametrize("form", list(ExportFormat))
def test_pipelines_that_differ_have_one_each(form):
    result = exported(grid_plan(8, [2, 3, 2], [4, 4, 4]), PROFILE, form)
    assert [part.pipelines for part in result.parts] == [(0, 2), (1,)]
    assert "differ" in result.note


@pytest.mark.parametrize("form", [ExportFormat.TORCHTITAN, ExportFormat.CSV])
@pytest.mark.parametrize("num_workers", [2, 4])
def test_pipelines_of_as_many_workers_or_stages_alone_are_not_alike(form, num_workers):
    around = grid_plan(8, [2], [4], schedule=Schedule.INTERLEAVED, stages_per_worker=2)
    (straight,) = grid_plan(8, [num_workers], [4]).pipelines
    others = tuple(replace(stage, worker=f"x{stage.worker}") for stage in straight.stages)
    plan = replace(around, pipelines=(*around.pipelines, replace(straight, stages=others)))
    assert [part.pipelines for part in exported(plan, PROFILE, form).parts] == [(0,), (1,)]


@pytest.mark.parametrize("form", list(ExportFormat))
def test_a_plan_with_a_dead_slot_is_refused(form):
    with pytest.raises(InvalidInputError, match="dead"):
        exported(rerouted(), uniform_profile(4), form)


def test_unequal_shares_of_equal_pipelines_are_told():
    plan = grid_plan(8, [2, 2], [5, 3])
    assert "(5, 3)" in exported(plan, PROFILE, ExportFormat.MEGATRON).note
    assert len(exported(plan, PROFILE, ExportFormat.CSV).parts) == 2


def test_a_profile_of_another_model_is_refused():
    with pytest.raises(InvalidInputError, match="where the profile has 8"):
        exported(grid_plan(6, [2], [4]), PROFILE, ExportFormat.MEGATRON)


def test_torchtitan_has_every_module_once_and_in_order():
    plan = grid_plan(8, [3], [4])
    text = exported(plan, PROFILE, ExportFormat.TORCHTITAN).parts[0].text
    assert json.loads(text) == [
        ["tok_embeddings", "layers.0", "layers.1"],
        ["layers.2", "layers.3", "layers.4"],
        ["layers.5", "norm", "output"],
    ]


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("embedding", "b0", "b1", "norm", "output"), [["tok_embeddings", "layers.0", "layers.1"], ["norm", "output"]]),
        (("b0", "b1", "b2"), [["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "norm", "output"]]),
    ],
)
def test_torchtitan_has_norm_and_output_last_whether_the_profile_names_them_or_not(names, parts):
    plan = grid_plan(len(names), [2], [4])
    assert module_fqns(plan, plan.pipelines[0], profile_of([layer(name) for name in names])) == parts


def test_what_torchtitan_cannot_hold_is_refused():
    plan = grid_plan(4, [4], [4])
    with pytest.raises(InvalidInputError, match="keeps together"):
        module_fqns(plan, plan.pipelines[0], profile_of([layer(n) for n in ("embedding", "block0", "norm", "output")]))
    with pytest.raises(InvalidInputError, match="multi-token prediction"):
        module_fqns(plan, plan.pipelines[0], profile_of([layer(n) for n in ("embedding", "block0", "mtp0", "head")]))
