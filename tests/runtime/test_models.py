"""What a user brings is checked, its shapes are known before it is built, and its randomness depends on the place alone."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import (
    TrainingJob,
    batch_of,
    build_layer,
    canonical_name,
    collate,
    loss_of,
    made,
    model_shape,
    run_layer,
    sampler_of,
    seed_for,
    seed_generators,
    train_layer,
)
from tests.core.refusals import refuses
from tests.runtime.jobs import Vectors, drawing_job, odd_job, tiny_gpt, twice_named_job


@pytest.mark.parametrize("make_job", [tiny_gpt, odd_job])
def test_shapes_are_those_of_a_real_pass(make_job):
    job = make_job()
    shape = model_shape(job)
    batch = collate([job.dataset[n] for n in range(job.microbatch_size)], "cpu")
    values = ()
    for index, layer in enumerate(job.layers):
        assert tuple((t.shape, t.dtype, t.requires_grad) for t in values) == tuple(
            (torch.Size(spec.shape), spec.dtype, spec.requires_grad) for spec in shape.boundaries[index]
        )
        module = build_layer(job, index)
        values = run_layer(layer, module, values, batch)
        expected = {canonical_name(layer, n): tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad}
        assert shape.parameters[index] == expected
    assert len(shape.boundaries) == len(job.layers) + 1


class Doubling(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.cat([values, values], dim=1)


@pytest.mark.parametrize(("make", "widths", "num_built"), [(nn.Identity, [3, 3, 3], 1), (Doubling, [6, 12, 24], 3)])
def test_layers_are_traced_once_where_they_take_what_is_alike(make, widths, num_built):
    def build() -> nn.Module:
        built.append(make())
        return built[-1]

    built: list[nn.Module] = []
    first = Layer(name="first", build=lambda: nn.Linear(1, 3), inputs=("input",))
    later = [Layer(name=f"later{index}", build=build) for index in range(3)]
    job = replace(
        tiny_gpt(), layers=[first, *later], dataset=[{"input": torch.zeros(1)}] * 16, microbatch_size=2, dtype=torch.float32
    )
    assert [specs[0].shape for specs in model_shape(job).boundaries[2:]] == [(2, width) for width in widths]
    assert len(built) == num_built


def test_frozen_parameters_are_not_reduced_and_ties_bear_their_owners_name():
    shape = model_shape(odd_job())
    assert "entry.frozen" not in shape.parameters[0]
    assert "entry.weight" in shape.parameters[-1]
    assert "mixer3.inner.weight" in shape.parameters[2]
    assert shape.owner_layer["mixer3.inner.weight"] == 2


def test_layers_are_built_the_same_whatever_was_drawn_before():
    job = tiny_gpt()
    torch.manual_seed(1)
    one = build_layer(job, 2).state_dict()
    torch.manual_seed(2)
    other = build_layer(job, 2).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], value) for name, value in build_layer(job, 3).state_dict().items())


@pytest.mark.parametrize(("device", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_the_generators_of_the_processor_and_of_the_jobs_device_are_seeded_and_no_others(monkeypatch, device, index):
    """With processors' generators in the place of devices'."""
    generators = torch.Generator(), torch.Generator()
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    before = [generator.initial_seed() for generator in generators]
    job = replace(tiny_gpt(), device=device)
    seed_generators(job, 2, 3)
    seed = seed_for(job, 2, 3)
    assert torch.default_generator.initial_seed() == seed
    assert [generator.initial_seed() for generator in generators] == [seed if n == index else before[n] for n in range(2)]


def test_seeds_of_different_places_differ():
    job = tiny_gpt()
    places = [(2, step, m, layer) for step in range(20) for m in range(8) for layer in range(10)]
    seeds = {seed_for(job, *place) for place in places} | {seed_for(replace(job, seed=1), *place) for place in places}
    assert len(seeds) == 2 * len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_what_samples_draw_depends_on_step_and_micro_batch_alone():
    job = drawing_job()
    sampler = sampler_of(job)
    places = [(step, microbatch) for step in range(2) for microbatch in range(3)]
    first = {place: batch_of(job, sampler, *place)["drawn"] for place in places}
    assert len({drawn for batch in first.values() for drawn in batch[:, :3].flatten().tolist()}) == len(places) * 2 * 3
    for place in reversed(places):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        assert torch.equal(batch_of(job, sampler, *place)["drawn"], first[place])


def test_what_layers_and_the_loss_draw_depends_on_the_place_alone():
    job = drawing_job()
    batch = batch_of(job, sampler_of(job), 0, 0)

    def passed(step: int, microbatch: int, scramble: int) -> float:
        values = ()
        for index in range(len(job.layers)):
            torch.manual_seed(scramble), random.seed(scramble), np.random.seed(scramble)
            module = build_layer(job, index)
            torch.manual_seed(scramble), random.seed(scramble), np.random.seed(scramble)
            values = train_layer(job, index, module, values, batch, step=step, microbatch=microbatch)
        return loss_of(job, values, batch)[0].item()

    losses = [{passed(step, microbatch, scramble) for scramble in range(2)} for step in range(2) for microbatch in range(2)]
    assert [len(own) for own in losses] == [1] * 4
    assert len(set.union(*losses)) == 4


def test_an_input_that_the_data_lacks_is_named():
    job = odd_job()
    layer = replace(job.layers[0], inputs=("pixels",))
    with pytest.raises(InvalidInputError, match="pixels: layer 'entry' wants it; the data set gives values, mask, target"):
        run_layer(layer, build_layer(job, 0), (), collate([job.dataset[0]], "cpu"))


@pytest.mark.parametrize("name", ["microbatch_size", "num_microbatches", "num_steps"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(InvalidInputError, match=f"{name}: must be a whole number above 0, not 0"):
        replace(tiny_gpt(), **{name: 0})


@pytest.mark.parametrize("name", ["microbatch_size", "num_microbatches", "num_steps", "seed"])
@pytest.mark.parametrize("value", [1.5, 2.0, "3", True, None])
def test_what_is_no_whole_number_is_refused(name, value):
    with refuses(name, fragment=f", not {value!r}"):
        replace(tiny_gpt(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max_grad_norm", -1.0, "leave it out (None) to clip nothing"),
        ("max_grad_norm", 0.0, "must be a number above 0, not 0.0"),
        ("max_grad_norm", math.nan, "must be a number above 0, not nan"),
        ("max_grad_norm", "1", "must be a number above 0, not '1'"),
        ("dtype", torch.int64, "types of real numbers, such as torch.float32, not torch.int64"),
        ("dtype", torch.complex64, "not torch.complex64"),
        ("dtype", "float64", "not 'float64'"),
        ("optimizer", None, "must be a function, not None"),
        ("loss", 0.5, "must be a function, not 0.5"),
        ("learning_rate_factor", 0.5, "must be a function, not 0.5"),
    ],
)
def test_values_that_nothing_can_be_trained_with_are_refused(name, value, told):
    with refuses(name, ..., told):
        replace(tiny_gpt(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("max_grad_norm", math.inf), ("max_grad_norm", 1), ("seed", -1), ("dtype", torch.float16)]
)
def test_odd_values_that_can_be_trained_with_are_taken(name, value):
    assert getattr(replace(tiny_gpt(), **{name: value}), name) == value


def test_layers_need_names_of_their_own():
    job = tiny_gpt()
    for layers in ([], [*job.layers, job.layers[0]]):
        with pytest.raises(InvalidInputError, match="layers: must be at least one layer, each with a name of its own"):
            replace(job, layers=layers)


def test_a_data_set_without_a_length_is_refused():
    class Streamed(IterableDataset):
        def __iter__(self):
            yield {"values": torch.ones(6)}

    with refuses("dataset", "Streamed", "without a length; give a map-style one"):
        replace(odd_job(), dataset=Streamed())


def test_a_loader_is_no_data_set():
    with refuses("dataset", "DataLoader", "is a DataLoader without samples by their index; give a map-style one"):
        replace(odd_job(), dataset=DataLoader(Vectors(100)))


def test_a_data_set_smaller_than_a_batch_is_refused():
    with pytest.raises(InvalidInputError, match="fewer than one global batch of 3200"):
        replace(tiny_gpt(), num_microbatches=1600)


@pytest.mark.parametrize("target", ["nobody.weight", "head.weight", "embedding", "mixed", "embedding."])
def test_ties_to_what_is_not_there_are_refused(target):
    job = tiny_gpt()
    head = replace(job.layers[-1], tied={"weight": target})
    with pytest.raises(InvalidInputError, match="no own parameter of another layer"):
        replace(job, layers=[*job.layers[:-1], head])


def test_chains_of_ties_are_refused():
    job = odd_job()
    chained = Layer(name="chained", build=nn.Identity, tied={"weight": "exit.weight"})
    with pytest.raises(InvalidInputError, match="no own parameter"):
        replace(job, layers=[*job.layers, chained])


def renamed(job: TrainingJob, tied: dict[str, str]) -> TrainingJob:
    """The odd job's exit with other ties, and layers whose names have dots."""
    names = {"entry": "enc", "mixer0": "enc.0", "mixer3": "enc.0.deep", "exit": "dec.0"}
    layers = [replace(layer, name=names.get(layer.name, layer.name), tied={}) for layer in job.layers]
    return replace(job, layers=[*layers[:-1], replace(layers[-1], tied=tied)])


@pytest.mark.parametrize(
    ("tied", "value", "told"),
    [
        ({"weight": "entry.wieght"}, "wieght", "no parameter of layer 'entry'; it has weight, frozen"),
        ({"weightX": "entry.weight"}, "weightX", "no parameter of layer 'exit'; it has weight, bias"),
        ({"weight": "mixer0.temperature"}, "mixer0.temperature", "are of different shapes, (6, 6) and ()"),
        ({"bias": "entry.frozen"}, "entry.frozen", "only one of them is trained"),
    ],
)
def test_ties_of_parameters_that_are_not_there_or_differ_are_refused(tied, value, told):
    job = odd_job()
    with refuses("tied", value, told):
        model_shape(replace(job, layers=[*job.layers[:-1], replace(job.layers[-1], tied=tied)]))


@pytest.mark.parametrize(
    ("tied", "value"), [({"inner.weight": "entry.weight"}, "inner.weight"), ({"weight": "entry.inner.weight"}, "inner.weight")]
)
def test_a_tie_says_the_first_of_several_names(tied, value):
    job = twice_named_job()
    with refuses("tied", value, "has as 'weight', too: say 'weight', which goes for both"):
        model_shape(replace(job, layers=[*job.layers[:-1], replace(job.layers[-1], tied=tied)]))


@pytest.mark.parametrize(("target", "owner"), [("enc.weight", 0), ("enc.0.inner.weight", 1), ("enc.0.deep.inner.weight", 4)])
def test_a_tie_is_to_the_layer_of_the_longest_name_that_it_begins_with(target, owner):
    shape = model_shape(renamed(odd_job(), {"weight": target}))
    assert shape.owner_layer[target] == owner
    assert target in shape.parameters[-1]


def test_a_parameter_that_two_layers_could_have_is_refused():
    job = odd_job()
    layers = [replace(layer, name={"mixer1": "mixer0.inner"}.get(layer.name, layer.name)) for layer in job.layers]
    with refuses("layers", "mixer0", "'mixer0.inner.weight' could be a parameter of layer 'mixer0' or of layer 'mixer0.inner'"):
        model_shape(replace(job, layers=layers))


def test_what_a_layer_draws_while_it_is_followed_is_the_same_in_every_process():
    class Either(nn.Module):
        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return values * random.randint(1, 9)

    job = odd_job()
    job = replace(job, layers=[job.layers[0], Layer(name="either", build=Either), *job.layers[1:]][:2])
    shapes = []
    for seed in range(4):
        random.seed(seed)
        shapes.append(model_shape(job).boundaries)
    assert all(shape == shapes[0] for shape in shapes)


def test_what_a_job_is_made_of_is_drawn_alike_in_every_process():
    def draws() -> TrainingJob:
        drawn.append((random.random(), np.random.random(), torch.rand(()).item()))
        return odd_job()

    drawn: list[tuple[float, float, float]] = []
    for seed in range(2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        made(draws)
    assert drawn[0] == drawn[1]
