"""The error tree: codes, JSON form and the way back."""

import pytest

from kintsugi.core import errors
from kintsugi.core.errors import (
    InvalidInputError,
    KintsugiError,
    StaleGenerationError,
    StaleIncarnationError,
    StaleTermError,
    StateLostError,
    error_from,
    some,
    told_as,
)


def _tree(kind):
    return [kind, *(found for child in kind.__subclasses__() for found in _tree(child))]


KINDS = [kind for kind in _tree(KintsugiError) if kind.__module__ == errors.__name__]
EXAMPLES = {
    StaleGenerationError: lambda: StaleGenerationError("is over", current_generation=7, value=3),
    StaleIncarnationError: lambda: StaleIncarnationError("is over", incarnations={"w05": 2}),
    StaleTermError: lambda: StaleTermError("somebody took over", current_term=4, value=3),
    StateLostError: lambda: StateLostError("nobody holds them", layers=(2, 5)),
}


def example(kind):
    return EXAMPLES.get(kind, lambda: kind("is wrong", field="layers[3].name", value="x"))()


def test_codes_are_unique():
    assert len({kind.code for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_picture_at_the_top_names_every_error(kind):
    assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_json_form_names_code_field_value_and_message(kind):
    document = example(kind).as_dict()
    assert {"code", "field", "value", "message"} <= set(document)
    assert document["code"] == kind.code


@pytest.mark.parametrize("kind", KINDS)
def test_json_form_leads_back_to_the_same_error(kind):
    error = error_from(example(kind).as_dict())
    assert type(error) is kind
    assert error.as_dict() == example(kind).as_dict()


def test_unknown_code_gives_the_root():
    assert type(error_from({"code": "of tomorrow", "message": "?"})) is KintsugiError


def test_a_child_without_a_code_of_its_own_is_told_as_its_parent():
    class PrivateError(InvalidInputError):
        pass

    assert type(error_from(PrivateError("is wrong").as_dict())) is InvalidInputError


def test_text_names_the_field_first():
    assert str(InvalidInputError("is negative", field="layers[0].forward_seconds")) == "layers[0].forward_seconds: is negative"
    assert str(InvalidInputError("is negative")) == "is negative"


def test_state_lost_carries_its_layers_and_stale_generation_the_current_one():
    assert example(StateLostError).layers == (2, 5)
    assert example(StaleGenerationError).as_dict()["current_generation"] == 7


def test_invalid_input_is_a_value_error():
    assert issubclass(InvalidInputError, ValueError)


def test_a_few_names_stand_for_many():
    assert some(["a", "b"]) == "a, b"
    assert some([str(n) for n in range(2000)], most=3) == "0, 1, 2 and 1,997 more"


def test_an_error_names_the_field_as_it_is_known():
    with pytest.raises(InvalidInputError) as told, told_as({"min_dp": "dp"}):
        raise InvalidInputError("is too much", field="min_dp", value=20)
    assert (told.value.field, told.value.value) == ("dp", 20)
