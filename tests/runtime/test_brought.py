"""What a user's own functions give wrongly is refused by name, with the way out."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.brought import as_announced, finite_factor
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.measuring.sweeper import Sweeper
from kintsugi.runtime.models import NamedParameters, TrainingJob, build_layer, collate, loss_of, model_shape, run_layer
from kintsugi.runtime.train import train
from kintsugi.runtime.workers.state import ModelState
from restorer.transport import TensorSpec
from tests.core.refusals import refuses
from tests.runtime.jobs import odd_job, tiny_gpt
from tests.runtime.workers.test_executor import Alone, executor_of


@pytest.mark.parametrize(
    ("samples", "value", "told"),
    [
        ([(torch.ones(1), torch.ones(1))], "tuple", "gives a tuple as a sample; return a mapping"),
        ([{"name": "cat"}], "name", "gives 'name' as a str, of which torch makes no tensor"),
        ([{"z": torch.ones(1)}, {"z": torch.ones(2)}], "z", "in shapes (1,) and (2,) within one micro-batch: pad"),
        ([{"z": 1, "y": 2}, {"z": 1}], "y", "gives a sample without 'y'"),
        ([{"z": 1}, {"z": 1, "y": 2}], "y", "gives a sample without 'y'"),
    ],
)
def test_samples_that_cannot_be_stacked_are_refused(samples, value, told):
    with refuses("dataset", value, told):
        collate(samples, "cpu")


class Returning(nn.Module):
    """Returns what a function makes of what it takes."""

    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def forward(self, values: Tensor, **fields: Tensor):
        return self.make(values, **fields)


def with_layer(make, inputs: tuple[str, ...] = ()) -> TrainingJob:
    """A linear layer, one that runs `make`, and another linear one."""
    job = odd_job()
    linear = partial(nn.Linear, 6, 6)
    odd = Layer(name="odd", build=partial(Returning, make), inputs=inputs)
    entry = Layer(name="entry", build=partial(Entry, linear), inputs=("values",))
    return replace(job, layers=[entry, odd, Layer(name="exit", build=linear)])


class Entry(nn.Module):
    """Applies a module to the field `values`."""

    def __init__(self, build) -> None:
        super().__init__()
        self.inner = build()

    def forward(self, *, values: Tensor) -> Tensor:
        return self.inner(values)


RETURNED = {
    "dict": (lambda values: {"hidden": values}, "layer 'odd' returns a dict; return a tensor or a tuple of tensors"),
    "nothing": (lambda _: None, "layer 'odd' returns a NoneType"),
    "nested": (lambda values: (values, (values, values)), "layer 'odd' returns a tuple of Tensor, tuple"),
}


@pytest.mark.parametrize("what", RETURNED)
def test_a_layer_that_returns_no_tensors_is_refused_with_its_name(what):
    make, told = RETURNED[what]
    with refuses("layers", "odd", told):
        model_shape(with_layer(make))


def test_a_layer_may_return_a_tensor_a_tuple_or_a_list():
    values = torch.ones(2, 6)
    for make, number in ((lambda v: v, 1), (lambda v: (v, v), 2), (lambda v: [v, v], 2)):
        layer = Layer(name="odd", build=nn.Identity)
        assert run_layer(layer, Returning(make), (values,), {}) == (values,) * number


def test_another_mistake_of_a_layer_is_told_with_its_name_and_what_it_takes():
    with pytest.raises(RuntimeError) as caught:
        model_shape(with_layer(lambda values: values @ torch.ones(5, 6)))
    assert caught.value.__notes__ == ["in the forward pass of layer 'odd', which takes (2, 6)"]


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (nn.ReLU(inplace=True), ()),
        (lambda values: values.view(-1, 3).mul_(2).view(-1, 6), ()),
        (lambda values, mask: values * mask.add_(1), ("mask",)),
    ],
)
def test_a_layer_that_changes_what_it_takes_is_refused_with_its_name(make, inputs):
    with refuses("layers", "odd", "layer 'odd' changes what it takes in place"):
        model_shape(with_layer(make, inputs))


def test_a_layer_may_change_in_place_what_it_made_itself():
    assert len(model_shape(with_layer(lambda values: (values * 2).relu_())).boundaries) == 4


def job_with(build: Callable[[], nn.Module]) -> TrainingJob:
    job = with_layer(lambda values: values)
    return replace(job, layers=[job.layers[0], Layer(name="odd", build=build), job.layers[2]])


def test_what_builds_no_module_is_refused():
    job = job_with(lambda: 3)
    for shape_or_layer in (model_shape, partial(build_layer, index=1)):
        with refuses("build", "odd", "makes a int, no module"):
            shape_or_layer(job)


def test_a_field_that_the_data_set_lacks_is_told_with_those_that_it_gives():
    with pytest.raises(InvalidInputError, match="layer 'odd' wants it; the data set gives values, mask") as caught:
        model_shape(with_layer(lambda values, **_: values, ("nope",)))
    assert caught.value.field == "nope"


class Holding(nn.Module):
    """Has a module of somebody else's."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values)


@pytest.mark.parametrize(
    ("wrapped", "told"), [(lambda part: part, "gives a module"), (Holding, "gives 'inner', a module")], ids=["itself", "part"]
)
@pytest.mark.parametrize("part", [nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False)], ids=["parameters", "buffers"])
def test_a_module_that_was_built_before_is_refused_with_the_way_out(wrapped, part, told):
    model = copy.deepcopy(part)
    with refuses("build", "odd", f"of layer 'odd' {told} that was built before, for this layer or another one: give a new one"):
        for _ in range(2):
            model_shape(job_with(lambda: wrapped(model)))


def test_parts_of_a_model_may_be_copied_and_what_has_no_state_may_be_shared():
    model, shared = nn.Linear(6, 6), nn.Tanh()
    job = job_with(lambda: nn.Sequential(copy.deepcopy(model), shared))
    for _ in range(2):
        model_shape(job)
        assert torch.equal(build_layer(job, 1)[0].weight, model.weight.double())


class Complex(nn.Module):
    """Turns by complex numbers; they are kept as they are, or in two real parts."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        numbers = torch.ones(3, dtype=torch.complex64)
        if kept == "parameter":
            self.turn = nn.Parameter(numbers)
        else:
            self.register_buffer("turn", numbers if kept == "buffer" else torch.view_as_real(numbers))

    def forward(self, values: Tensor) -> Tensor:
        turned = torch.view_as_complex(values.unflatten(-1, (3, 2))) * torch.view_as_complex(self.turn)
        return torch.view_as_real(turned).flatten(-2)


@pytest.mark.parametrize("kept", ["parameter", "buffer"])
def test_complex_numbers_that_would_be_made_real_are_refused(kept):
    job = with_layer(lambda values: values)
    job = replace(job, layers=[job.layers[0], Layer(name="odd", build=partial(Complex, kept)), job.layers[2]])
    for shape_or_layer in (model_shape, partial(build_layer, index=1)):
        with refuses("layers", "turn", f"layer 'odd' has a complex {kept}, 'turn'"):
            shape_or_layer(job)


def test_a_layer_may_put_complex_numbers_together_from_real_ones():
    job = with_layer(lambda values: values)
    job = replace(job, layers=[job.layers[0], Layer(name="odd", build=partial(Complex, "parts")), job.layers[2]])
    assert model_shape(job).boundaries[2][0].shape == (2, 6)


@pytest.mark.parametrize("build", [lambda: nn.LazyLinear(6), lambda: nn.Sequential(nn.Linear(6, 6), nn.LazyLinear(6))])
def test_parameters_without_a_size_are_refused(build):
    job = with_layer(lambda values: values)
    job = replace(job, layers=[job.layers[0], Layer(name="odd", build=build), job.layers[2]])
    for shape_or_layer in (model_shape, partial(build_layer, index=1)):
        with pytest.raises(InvalidInputError, match=r"layer 'odd' makes '.*weight' in its first pass: say its sizes"):
            shape_or_layer(job)


class Scaled(nn.Linear):
    """Made of values: divides by the spread of its first weights."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.scale = float(self.weight.std())

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) / self.scale


def refusing(*_: object) -> None:
    raise NotImplementedError("meta tensors are not supported")


@pytest.mark.parametrize(
    "build",
    [
        Scaled,
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)),
        lambda: torch.compile(nn.Linear(6, 6), backend=refusing),
    ],
    ids=["of values", "parametrized", "compiled"],
)
def test_a_layer_is_followed_that_is_made_of_values_or_compiled(build):
    job = with_layer(lambda values: values)
    job = replace(job, layers=[job.layers[0], Layer(name="odd", build=build), job.layers[2]])
    shape = model_shape(job)
    assert shape.boundaries[2] == (TensorSpec((2, 6), torch.float64, True),)
    assert sorted(map(prod, shape.parameters[1].values())) == [6, 36]


class Sparse(nn.Module):
    """A table whose gradient would hold the rows alone that were looked up."""

    def __init__(self, table: type[nn.Embedding | nn.EmbeddingBag]) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"words": table(4, 6, sparse=True)})


@pytest.mark.parametrize("table", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_with_the_layer_and_the_way_out(table):
    job = with_layer(lambda values: values)
    job = replace(job, layers=[job.layers[0], Layer(name="odd", build=partial(Sparse, table)), job.layers[2]])
    for shape_or_layer in (model_shape, partial(build_layer, index=1)):
        with refuses(
            "layers",
            "inner.words.weight",
            f"layer 'odd' has sparse gradients, of 'inner.words.weight': say sparse=False of its {table.__name__}",
        ):
            shape_or_layer(job)


class LookedUp(nn.Module):
    """Looks rows up by a function, of which nobody can tell before."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 6))

    def forward(self, values: Tensor) -> Tensor:
        return values + functional.embedding((values > 0).long()[:, 0], self.table, sparse=True)


def test_sparse_gradients_that_come_of_functions_are_refused_with_their_parameter():
    job = job_with(LookedUp)
    for trains in (Sweeper(job).warmed_up, lambda: executor_of(job, Alone()).run(0)):
        with refuses("layers", "odd.table", "has a parameter with sparse gradients, 'odd.table': say sparse=False"):
            trains()


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda outputs, _: outputs[0].square(), "returns a tensor of shape (2, 6); return one number"),
        (lambda outputs, _: outputs[0].mean().item(), "returns a float; return the tensor"),
        (lambda outputs, _: outputs[0].mean().detach(), "returns a number without a gradient"),
        (lambda outputs, _: (outputs[0].sum(), outputs[0]), "the second is a tensor of shape (2, 6) with a gradient; return a sum"),
        (lambda outputs, _: (outputs[0].sum(), outputs[0].sum()), "the second is a tensor of shape () with a gradient"),
        (lambda outputs, _: (outputs[0].sum(), None), "the second is a NoneType; return a sum and of how many"),
        (lambda outputs, _: (outputs[0], 12), "returns a tensor of shape (2, 6); return one number"),
        (lambda outputs, _: (outputs[0].sum(), 12, 1), "returns a tuple; return the tensor"),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_refused(loss, told):
    with refuses("loss", ..., told):
        Sweeper(replace(odd_job(), loss=loss)).warmed_up()
    with refuses("loss", ..., told):
        executor_of(replace(odd_job(), loss=loss), Alone()).run(0)


def test_a_loss_that_takes_the_outputs_for_a_tensor_is_told_that_they_are_a_tuple():
    with pytest.raises(AttributeError) as caught:
        loss_of(replace(odd_job(), loss=lambda outputs, _: outputs.mean()), (torch.ones(2),), {})
    assert "outputs[0] is the first" in caught.value.__notes__[0]


def test_what_is_no_optimizer_is_refused():
    with refuses("optimizer", "NoneType", "return a torch.optim.Optimizer"):
        ModelState.initial(replace(odd_job(), optimizer=lambda _: None), range(1))


def test_an_optimizer_of_one_layers_parameters_alone_is_told_what_it_is_given():
    job = replace(odd_job(), optimizer=lambda parameters: torch.optim.SGD([p for name, p in parameters if name.startswith("exit")]))
    with pytest.raises(ValueError, match="empty parameter list") as caught:
        ModelState.initial(job, [0])
    assert caught.value.__notes__ == [
        "each layer has an optimizer of its own, here that of entry.weight: what is not to be trained must not require a gradient"
    ]


def test_an_optimizer_that_refuses_something_else_is_told_of_which_layer_it_is():
    job = replace(odd_job(), optimizer=lambda named: torch.optim.SGD([parameter for _, parameter in named], lr=-0.1))
    with pytest.raises(ValueError, match="Invalid learning rate") as caught:
        ModelState.initial(job, [0])
    assert caught.value.__notes__ == ["each layer has an optimizer of its own, here that of entry.weight"]


def test_an_optimizer_that_wants_to_compute_the_loss_is_refused_before_anything_starts():
    with refuses(
        "optimizer", "LBFGS", "is LBFGS, whose step() needs a closure: no worker can compute the loss of all again; take another"
    ):
        train(wanting_closure_job, workers=2)


def wanting_closure_job() -> TrainingJob:
    return replace(odd_job(), optimizer=lambda named: torch.optim.LBFGS([parameter for _, parameter in named]))


def rateless(named: NamedParameters) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.1)
    for group in optimizer.param_groups:
        group["rate"] = group.pop("lr")
    return optimizer


def test_an_optimizer_without_learning_rates_takes_no_factor_on_them():
    job = replace(odd_job(), optimizer=rateless)
    with refuses("learning_rate_factor", "SGD", "is a factor on 'lr', which the parameter groups of SGD do not have; leave it out"):
        ModelState.initial(job, range(2))
    ModelState.initial(replace(job, learning_rate_factor=None), range(2)).set_learning_rate(3)


@pytest.mark.parametrize("factor", [None, float("nan"), float("inf"), "0.5"])
def test_a_factor_that_is_no_finite_number_is_refused_with_its_step(factor):
    state = ModelState.initial(replace(odd_job(), learning_rate_factor=lambda step: factor if step == 3 else 1.0), range(1))
    state.set_learning_rate(2)
    with refuses("learning_rate_factor", repr(factor), "for step 3"):
        state.set_learning_rate(3)


def test_a_factor_may_be_any_number():
    for factor in (0.5, 1, torch.tensor(0.5), -1e-3):
        assert finite_factor(factor, 0) is factor


def test_what_crosses_a_boundary_must_have_the_shape_that_was_found_first():
    specs = [TensorSpec((2, 6), torch.float64, True)]
    for other in (torch.ones(2, 5, dtype=torch.float64), torch.ones(2, 6)):
        with refuses("layers", "odd", "(2, 6) float64 of the first sample"):
            as_announced([other], specs, "odd")


def test_a_gradient_that_is_not_needed_this_time_goes_nowhere_and_one_that_would_not_come_is_refused():
    values = torch.ones(2, 6)
    (crossing,) = as_announced([values], [TensorSpec((2, 6), torch.float32, True)], "odd")
    assert crossing.requires_grad
    assert not values.requires_grad
    (as_it_is,) = as_announced([crossing], [TensorSpec((2, 6), torch.float32, True)], "odd")
    assert as_it_is is crossing
    with refuses("layers", "odd", "returns a tensor here that needs a gradient, and of the first sample one that needs none"):
        as_announced([crossing], [TensorSpec((2, 6), torch.float32)], "odd")


def test_a_function_that_workers_cannot_import_is_refused():
    def within() -> TrainingJob:
        return tiny_gpt()

    for make_job in (within, lambda: tiny_gpt(), partial(within)):  # noqa: PLW0108  # what cannot be imported
        with refuses("make_job", repr(make_job), "define it at the top level of a module"):
            train(make_job, workers=2)


def job_without_factor() -> TrainingJob:
    return replace(tiny_gpt(), learning_rate_factor=lambda _: None)


def test_a_factor_that_is_wrong_from_the_first_step_on_is_refused_before_anything_starts():
    with refuses("learning_rate_factor", "None", "for step 0"):
        train(job_without_factor, workers=2)


def test_a_function_that_makes_no_job_is_refused():
    with refuses("make_job", "dict", "return a TrainingJob"):
        train(dict, workers=2)
