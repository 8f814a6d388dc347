"""Models of published size: as many parameters as published, in the places that the analytical profiles put them."""

from dataclasses import replace
from math import prod

import pytest
import torch

from kintsugi.runtime.gpt import GptShape, gpt2_medium_job, gpt_layers
from kintsugi.runtime.llama import LLAMA2_7B, llama2_7b_job, llama3_8b_job, llama_job, rotated, rotation
from kintsugi.runtime.models import build_layer, collate, model_shape, run_layer
from tests.profiles.test_files import SCRIPT
from tests.runtime.jobs import TINY_LLAMA as TINY

LLAMA3_8B_DECODER = replace(SCRIPT.LLAMA2_7B, key_value_heads=8, feed_forward=14336, vocabulary=128256)
MODELS = {
    "llama2-7b": (llama2_7b_job, SCRIPT.LLAMA2_7B, 6_738_415_616),
    "llama3-8b": (llama3_8b_job, LLAMA3_8B_DECODER, 8_030_261_248),
    "gpt2-medium": (gpt2_medium_job, SCRIPT.GPT2_MEDIUM, 354_823_168),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_as_many_as_published_and_where_the_analytical_profile_has_them(name):
    make_job, decoder, published = MODELS[name]
    job = make_job()
    shape = model_shape(job)
    sizes = [{key: prod(own) for key, own in layer.items()} for layer in shape.parameters]
    assert sum({key: size for layer in sizes for key, size in layer.items()}.values()) == published == decoder.num_parameters
    blocks = [decoder.block_parameters] * decoder.num_blocks
    assert [sum(layer.values()) for layer in sizes] == [decoder.embedding_parameters, *blocks, decoder.head_parameters]
    crossing = (job.microbatch_size, decoder.sequence, decoder.hidden)
    assert {specs[0].shape for specs in shape.boundaries[1:-1]} == {crossing}
    assert shape.boundaries[-1][0].shape == (*crossing[:2], decoder.vocabulary)


@pytest.mark.parametrize(("name", "make_job"), [("LLAMA2_7B", llama2_7b_job), ("GPT2_MEDIUM", gpt2_medium_job)])
def test_tokens_are_of_the_vocabulary(name, make_job):
    sample, again = make_job().dataset[3], make_job().dataset[3]
    vocabulary = getattr(SCRIPT, name).vocabulary
    assert torch.equal(sample["tokens"], again["tokens"])
    assert torch.equal(sample["tokens"][1:], sample["targets"][:-1])
    assert 0.9 * vocabulary < int(sample["tokens"].max()) < vocabulary


def outputs_of(job, tokens):
    values = ()
    for index, layer in enumerate(job.layers):
        values = run_layer(layer, build_layer(job, index), values, {"tokens": tokens})
    return values[0]


def test_a_token_is_told_by_those_up_to_itself():
    job = llama_job(TINY, dtype=torch.float64)
    tokens = collate([job.dataset[0]], "cpu")["tokens"]
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % TINY.vocabulary
    before, after = outputs_of(job, tokens), outputs_of(job, changed)
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 6:], after[0, 6:])


def test_rotated_products_depend_on_distances_alone():
    turn = rotation(12, 6, 100.0, torch.device("cpu"), torch.float64)
    query, key = (torch.randn(6, dtype=torch.float64) for _ in range(2))
    products = rotated(query.expand(1, 1, 12, 6), *turn)[0, 0] @ rotated(key.expand(1, 1, 12, 6), *turn)[0, 0].T
    for distance in range(-3, 4):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal))
    assert torch.allclose(products[0, 0], query @ key)
    assert not torch.allclose(products[0, 1], query @ key)


def test_grouped_heads_share_keys_and_values():
    """Repeated for every head of a group, keys and values give what sharing gives."""
    grouped, whole = (llama_job(shape, dtype=torch.float64) for shape in (TINY, replace(TINY, num_key_value_heads=4)))
    block, plain = build_layer(grouped, 1), build_layer(whole, 1)
    state = block.state_dict()
    for name in ("attention.key.weight", "attention.value.weight"):
        state[name] = state[name].unflatten(0, (2, 4)).repeat_interleave(2, dim=0).flatten(0, 1)
    plain.load_state_dict(state)
    hidden = torch.randn(1, 8, TINY.width, dtype=torch.float64)
    assert torch.allclose(block(hidden), plain(hidden), rtol=1e-12)


def test_the_vocabulary_of_a_gpt_is_chosen():
    embedding, *_, head = gpt_layers(GptShape(vocabulary=300, width=8))
    assert (len(embedding.build().tokens.weight), len(head.build().weight)) == (300, 300)


def test_llama2_has_a_head_of_its_own():
    assert all(not layer.tied for layer in llama2_7b_job().layers)
    assert len(llama2_7b_job().layers) == LLAMA2_7B.num_blocks + 2
