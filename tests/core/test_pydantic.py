"""Pydantic, and so FastAPI, takes the nouns as they are."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.membership import Event, Membership
from kintsugi.core.plan import Plan
from kintsugi.core.profile import LayerProfile, Profile
from tests.core import samples

KINDS = [Profile, Cluster, Plan, Decision, Snapshot, Event, Membership, JobSettings]
NOUNS = [(Profile, samples.PROFILES), (Cluster, samples.CLUSTERS), (Plan, samples.plans()), (Event, samples.events())]


@pytest.mark.parametrize("kind", KINDS)
def test_every_noun_has_a_schema(kind):
    assert TypeAdapter(kind).json_schema()["type"] == "object"


@pytest.mark.parametrize("kind", KINDS)
def test_schema_refuses_unknown_fields(kind):
    assert TypeAdapter(kind).json_schema()["additionalProperties"] is False


def test_docstrings_of_fields_are_their_descriptions():
    properties = TypeAdapter(LayerProfile).json_schema()["properties"]
    assert properties["forward_seconds"]["description"] == "Forward pass of one micro-batch."
    assert properties["tied_to"]["description"] == "The layer whose parameters this one shares."


@pytest.mark.parametrize(("kind", "strategy"), NOUNS, ids=[kind.__name__ for kind, _ in NOUNS])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_pydantic_and_the_codec_agree(kind, strategy, data):
    noun = data.draw(strategy)
    adapter = TypeAdapter(kind)
    assert adapter.validate_python(json.loads(codec.dumps(noun))) == noun
    assert codec.loads(kind, adapter.dump_json(noun)) == noun


@pytest.mark.parametrize(
    ("kind", "document", "fragment"),
    [
        (Ranges, {"min_dp": 4, "max_dp": 2}, "max_dp: must be at least min_dp = 4"),
        (Worker, {"id": "w00", "host": "h00", "speed_ratio": -1}, "speed_ratio: must be a finite number above 0"),
        (Plan, {"pipelines": []}, "pipelines: must have at least one item"),
    ],
)
def test_a_broken_invariant_is_a_validation_error(kind, document, fragment):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(document)
    (error,) = caught.value.errors()
    assert error["type"] == "value_error"
    assert fragment in error["msg"]
    assert isinstance(error["ctx"]["error"], InvalidInputError)


def test_an_invariant_of_an_inner_noun_keeps_its_place():
    document = {"name": "c", "workers": [{"id": "w00", "host": "h"}, {"id": "w01", "host": "h", "speed_ratio": 0}]}
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Cluster).validate_python(document)
    assert caught.value.errors()[0]["loc"] == ("workers", 1)


@pytest.mark.parametrize(
    ("document", "kind"),
    [({"min_dp": "four"}, "int_parsing"), ({"min_dq": 4}, "unexpected_keyword_argument"), ({"min_dp": 1.5}, "int_from_float")],
)
def test_wrong_types_and_unknown_fields_are_validation_errors(document, kind):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Ranges).validate_python(document)
    assert caught.value.errors()[0]["type"] == kind
