"""Layouts say what the plan says, and every rule of Megatron-LM's own check is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Pipeline, Plan, Policy, Schedule, Stage
from kintsugi.formats.megatron import layout, require_valid, stages_of
from kintsugi.formats.modules import ModuleKind, module_kinds
from planner.replan import replan
from restorer.rounds import colour_rounds
from tests.builders import grid_plan, layer, profile_of, snapshot_of, transformer_profile, uniform_profile


def named(*names):
    return profile_of([layer(name) for name in names])


def of(plan, profile):
    return layout(plan, plan.pipelines[0], profile)


def cut(num_layers, *stops, schedule=Schedule.ONE_F_ONE_B):
    starts = (0, *stops)
    stages = tuple(
        Stage(layer_start=a, layer_stop=b, worker=f"w{i:02d}")
        for i, (a, b) in enumerate(zip(starts, (*stops, num_layers), strict=True))
    )
    return Plan(schedule=schedule, pipelines=(Pipeline(num_microbatches=4, stages=stages),))


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Ettt|tttL", ("Ettt", "tttL")),
        ("Et*3|(tt|)*29,m|L", ("Ettt", *["tt"] * 29, "m", "L")),
        ("E,(t|)*2,t*2,L", ("Et", "t", "ttL")),
        ("E|(t|t)*2|L", ("E", "t", "tt", "t", "L")),
        ("E||tL", ("E", "", "tL")),
    ],
)
def test_the_grammar(text, stages):
    assert stages_of(text) == stages


@pytest.mark.parametrize("text", ["Exx|L", "Et*|L", "E(t|L", "E t|L", "e|t|l"])
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(InvalidInputError, match="belongs"):
        stages_of(text)


@pytest.mark.parametrize(
    ("text", "ranks", "why"),
    [
        ("Et|t|tL", 2, "no multiple of 2"),
        ("tE|tL", 2, "must begin with the embedding"),
        ("Et|EtL", 2, "hold it once"),
        ("Et|tL|L", 3, "cannot be on different stages"),
        ("Et|Lt", 2, "must end with the loss"),
        ("Em|tL", 2, "after all decoder layers"),
        ("Et|m|mL", 3, "within one stage"),
        ("Et|m|t|L", 2, "after all decoder layers"),
        ("E|tm||L", 2, "the last of its rank"),
    ],
)
def test_the_rules_of_megatron(text, ranks, why):
    with pytest.raises(InvalidInputError, match=why):
        require_valid(text, ranks)


@pytest.mark.parametrize(("text", "ranks"), [("Et*7|(t|)*2L", 4), ("Ett|t|t|tmL", 4), ("E|t|m|L", 2)])
def test_what_megatron_takes(text, ranks):
    require_valid(text, ranks)


def test_a_layout_of_a_plan():
    assert of(cut(8, 2, 4, 6), transformer_profile(6)) == "Et|(tt|)*2tL"
    assert of(cut(8, 5), transformer_profile(6)) == "Et*4|ttL"


def test_virtual_stages_are_in_the_order_of_megatrons_own():
    plan = grid_plan(8, [2], [4], schedule=Schedule.INTERLEAVED, stages_per_worker=2)
    text = of(plan, transformer_profile(6))
    assert stages_of(text) == ("Et", "tt", "tt", "tL")
    by_rank = [stages_of(text)[rank::2] for rank in range(2)]
    held = [["".join("E" if n == 0 else "L" if n == 7 else "t" for n in s.layers) for s in plan.stages_of[w]] for w in plan.workers]
    assert [list(own) for own in by_rank] == held
    assert len(stages_of(text)) // 2 == plan.pipelines[0].stages_per_worker


@given(st.data())
def test_a_layout_read_back_is_the_plan(data):
    num_blocks = data.draw(st.integers(1, 20))
    stops = sorted(data.draw(st.sets(st.integers(1, num_blocks + 1), max_size=6)))
    plan = cut(num_blocks + 2, *stops)
    stages = stages_of(of(plan, transformer_profile(num_blocks)))
    decoders = [sum(1 <= n <= num_blocks for n in stage.layers) for stage in plan.pipelines[0].stages]
    assert [stage.count("t") for stage in stages] == decoders
    assert "E" in stages[0]
    assert "L" in stages[-1]


def test_embedding_and_head_within_the_outer_layers_stay_there():
    assert of(cut(4, 2), uniform_profile(4)) == "Ett|ttL"


def test_norm_and_head_are_one_letter_on_one_stage_alone():
    profile = named("tok_embeddings", "layers.0", "layers.1", "norm", "output")
    assert of(cut(5, 2), profile) == "Et|tL"
    with pytest.raises(InvalidInputError, match="cannot be on different stages"):
        of(cut(5, 4), profile)


def test_multi_token_prediction():
    assert of(cut(5, 2), named("embedding", "block0", "block1", "mtp0", "head")) == "Et|tmL"


@pytest.mark.parametrize("schedule", [Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2])
def test_schedules_that_megatron_does_not_have_are_refused(schedule):
    with pytest.raises(InvalidInputError, match="no schedule of Megatron-LM"):
        of(cut(8, 4, schedule=schedule), transformer_profile(6))


def test_interleaved_micro_batches_come_in_groups():
    plan = grid_plan(8, [2], [5], schedule=Schedule.INTERLEAVED, stages_per_worker=2)
    with pytest.raises(InvalidInputError, match="multiple of the 2 pipeline ranks"):
        of(plan, transformer_profile(6))


def test_a_dead_slot_is_refused():
    profile = transformer_profile(6)
    plan = grid_plan(8, [2, 2], [4, 4])
    before = plan.amended(rounds=colour_rounds(plan, profile))
    asked = snapshot_of(profile, Cluster.uniform(4), 8, plan=before, lost=["w03"], policy=Policy.DATA_REROUTING)
    with pytest.raises(InvalidInputError, match="which Megatron-LM cannot express"):
        of(replan(asked).plan, profile)


@pytest.mark.parametrize(
    "name", ["embedding", "embed", "tok_embeddings", "model.embed_tokens", "transformer.wte", "word_embeddings"]
)
def test_embeddings_are_known_by_their_names(name):
    assert module_kinds(named(name, "block", "lm_head"))[0] is ModuleKind.EMBEDDING


@pytest.mark.parametrize("name", ["head", "lm_head", "output", "final_norm", "model.norm", "transformer.ln_f", "loss"])
def test_heads_are_known_by_their_names(name):
    assert module_kinds(named("embedding", "block", name))[-1] is ModuleKind.HEAD


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (("embedding", "block", "norm", "head"), "embedding decoder head head"),
        (("embedding", "norm", "head"), "embedding decoder head"),
        (("norm", "head"), "decoder head"),
        (("head",), "decoder"),
        (("embedding",), "embedding"),
    ],
)
def test_every_layer_has_a_kind_and_one_beside_the_embedding_is_a_decoder(names, kinds):
    assert " ".join(module_kinds(named(*names))) == kinds
