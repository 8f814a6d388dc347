"""What a user says of layers and jobs is looked at where it is said."""

import re
from dataclasses import replace

import pytest
from torch import nn

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.layer import Layer
from tests.core.refusals import refuses
from tests.runtime.jobs import odd_job


@pytest.mark.parametrize(
    ("build", "told"), [(nn.Identity(), "is a module; give what makes one"), (None, "is a NoneType; give a function")]
)
def test_what_cannot_build_is_refused_at_once(build, told):
    with refuses("build", "odd", told):
        Layer(name="odd", build=build)


@pytest.mark.parametrize(
    ("said", "field", "told"),
    [
        ({"inputs": "tokens"}, "inputs", "as in inputs="),
        ({"inputs": (3,)}, "inputs", "as in inputs="),
        ({"tied": ["weight"]}, "tied", "must be of Mapping"),
        ({"name": ""}, "name", "1 to 200"),
    ],
)
def test_a_layer_of_wrong_words_is_refused_at_once(said, field, told):
    with pytest.raises(InvalidInputError, match=re.escape(told)) as caught:
        Layer(**{"name": "odd", "build": nn.Identity, **said})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"layers": None}, "layers: must be a list of kintsugi.Layer(name=..., build=...), not a NoneType"),
        (
            {"layers": nn.Sequential(nn.Linear(2, 2))},
            "layers: must be a list of kintsugi.Layer(name=..., build=...), not a Sequential",
        ),
        ({"layers": [nn.Linear(2, 2)]}, "layers[0]: must be of Layer, not Linear"),
        ({"recomputes_activations": "no"}, "recomputes_activations: must be True or False, not 'no'"),
    ],
)
def test_a_job_of_other_things_is_refused_at_once(said, told):
    with pytest.raises(InvalidInputError, match=re.escape(told)):
        replace(odd_job(), **said)
