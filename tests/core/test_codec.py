"""JSON out and in: round trips, canonical text, and errors that name the path."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from tests.core import samples
from tests.core.refusals import refuses


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: int
    ratio: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Outer:
    inners: tuple[Inner, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    flag: bool = False
    colour: Colour = Colour.RED
    named: Mapping[str, Inner] | None = None


@dataclass(frozen=True, kw_only=True)
class Tree:
    branches: "tuple[Tree, ...]" = ()
    weight: float = 0.5


NOUNS = [
    (Profile, samples.PROFILES),
    (Cluster, samples.CLUSTERS),
    (Plan, samples.plans()),
    (JobSettings, samples.SETTINGS),
    (Event, samples.events()),
]


@pytest.mark.parametrize(("kind", "strategy"), NOUNS, ids=[kind.__name__ for kind, _ in NOUNS])
@given(data=st.data())
def test_every_noun_survives_the_round_trip(kind, strategy, data):
    noun = data.draw(strategy)
    back = codec.loads(kind, codec.dumps(noun))
    assert back == noun
    assert codec.digest(back) == codec.digest(noun)
    assert codec.decode(kind, json.loads(json.dumps(codec.encode(noun)))) == noun


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_bit_for_bit_except_the_sign_of_zero(number):
    assert codec.loads(Inner, codec.dumps(Inner(number=1, ratio=number))).ratio == number


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (0.0, -0.0), (2**52, float(2**52))])
def test_equal_values_give_equal_text(one, other):
    assert codec.dumps(Inner(number=1, ratio=one)) == codec.dumps(Inner(number=1, ratio=other))


def test_different_values_give_different_digests():
    assert codec.digest(Inner(number=1, ratio=1.5)) != codec.digest(Inner(number=1, ratio=1.5000001))


def test_text_is_canonical():
    assert codec.dumps(Outer(named={"b": Inner(number=1), "a": Inner(number=2)})) == (
        '{"colour":"red","flag":false,"inners":[],"named":{"a":{"number":2,"ratio":1},"b":{"number":1,"ratio":1}},"pair":["a",1]}'
    )


@pytest.mark.parametrize(
    ("document", "field", "fragment"),
    [
        ([], "document", "an object (Outer)"),
        ({"inners": 3}, "inners", "a list"),
        ({"inners": [{"number": 1}, {"number": "two"}]}, "inners[1].number", 'an integer, not "two"'),
        ({"inners": [{"number": True}]}, "inners[0].number", "an integer, not true"),
        ({"inners": [{"number": 1.5}]}, "inners[0].number", "an integer, not 1.5"),
        ({"inners": [{"number": None}]}, "inners[0].number", "an integer, not null"),
        ({"inners": [{"number": 2**63}]}, "inners[0].number", "at most 64 bits"),
        ({"inners": [{"number": 1e300}]}, "inners[0].number", "at most 64 bits"),
        ({"inners": [{"number": 1, "ratio": False}]}, "inners[0].ratio", "a number, not false"),
        ({"inners": [{"number": 1, "ratio": 10**400}]}, "inners[0].ratio", "a finite number"),
        ({"inners": [{"number": 1, "ratio": float("inf")}]}, "inners[0].ratio", "a finite number"),
        ({"inners": [{"number": 1, "ratio": float("nan")}]}, "inners[0].ratio", "a finite number"),
        ({"inners": [{}]}, "inners[0].number", "is missing from Inner"),
        ({"inners": [{"number": 1, "numbre": 2}]}, "inners[0].numbre", "known fields: number, ratio"),
        ({"pair": ["a"]}, "pair", "a list of 2"),
        ({"pair": ["a", "b"]}, "pair[1]", "an integer"),
        ({"pair": {"a": 1, "b": 2}}, "pair", "a list"),
        ({"inners": [{"number": -(2**63)}]}, "inners[0].number", "at most 64 bits"),
        ({"flag": 1}, "flag", "true or false, not 1"),
        ({"flag": "no"}, "flag", "true or false"),
        ({"colour": "blue"}, "colour", "one of red"),
        ({"colour": []}, "colour", "one of red"),
        ({"named": {"x": {"number": "1"}}}, "named.x.number", "an integer"),
        ({"named": [1]}, "named", "an object"),
    ],
)
def test_errors_name_the_path_and_what_was_expected(document, field, fragment):
    with pytest.raises(InvalidInputError) as caught:
        codec.decode(Outer, document)
    assert caught.value.field == field
    assert fragment in caught.value.message


@pytest.mark.parametrize("number", [2**63 - 1, 1 - 2**63])
def test_integers_of_64_bits_are_taken(number):
    assert codec.loads(Inner, codec.dumps(Inner(number=number))).number == number


def test_error_of_a_noun_gets_the_path_of_its_place():
    with pytest.raises(InvalidInputError) as caught:
        codec.decode(Cluster, {"name": "c", "workers": [{"id": "w00", "host": "h"}, {"id": "w01", "host": "h", "speed_ratio": 0}]})
    assert (caught.value.field, caught.value.value) == ("workers[1].speed_ratio", 0)


def test_errors_do_not_carry_large_values():
    with pytest.raises(InvalidInputError) as caught:
        codec.decode(Inner, {"number": "9" * 10**6})
    assert len(caught.value.value) <= 200
    assert len(caught.value.message) <= 200
    with pytest.raises(InvalidInputError) as caught:
        codec.decode(Inner, {"number": 1, "extra": [0] * 10**5})
    assert caught.value.value == "list"


@pytest.mark.parametrize(("data", "told"), [([1], "must be an integer, not a list"), ({}, "must be an integer, not an object")])
def test_containers_are_called_what_json_calls_them(data, told):
    with pytest.raises(InvalidInputError) as caught:
        codec.decode(Inner, {"number": data})
    assert caught.value.message == told


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "is not JSON: it is empty"),
        (b" \n", "is not JSON: it is empty"),
        ("{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON: it is not UTF-8"),
        ('{"number": NaN}', "NaN is no JSON number"),
        ('{"number": -Infinity}', "-Infinity is no JSON number"),
        ('{"number": 1, "number": 2}', "'number' stands twice"),
        ("[" * 100_000, "is not JSON: it is nested too deeply"),
        ('{"number": ' + "9" * 5000 + "}", "is not JSON: a number has more than 4,300 digits"),
    ],
    ids=["empty", "blank", "open", "bytes", "nan", "infinity", "twice", "deep", "long integer"],
)
def test_text_that_is_no_json_is_refused(text, fragment):
    with pytest.raises(InvalidInputError) as caught:
        codec.loads(Inner, text)
    assert caught.value.field == "document"
    assert fragment in caught.value.message


def test_huge_exponent_is_refused():
    with pytest.raises(InvalidInputError) as caught:
        codec.loads(Inner, '{"number": 1, "ratio": 1e999}')
    assert caught.value.field == "ratio"


def test_dumps_refuses_what_json_cannot_say():
    with pytest.raises(ValueError, match="not JSON compliant"):
        codec.dumps(Inner(number=1, ratio=float("nan")))


def test_load_names_the_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidInputError) as caught:
        codec.load(Inner, tmp_path / "absent.json")
    assert caught.value.field == "file"
    assert caught.value.value.endswith("absent.json")
    with pytest.raises(InvalidInputError):
        codec.load(Inner, tmp_path)


def test_load_reads_a_file(tmp_path):
    path = tmp_path / "inner.json"
    path.write_text('{"number": 3.0}')
    assert codec.load(Inner, path) == Inner(number=3)


def test_a_noun_already_built_is_taken_as_it_is():
    inner = Inner(number=1)
    assert codec.decode(Outer, {"inners": [inner]}).inners[0] is inner
    assert replace(inner, number=2) == codec.decode(Inner, {"number": 2})


def test_a_class_may_contain_itself():
    tree = Tree(branches=(Tree(), Tree(branches=(Tree(weight=2.0),))))
    assert codec.loads(Tree, codec.dumps(tree)) == tree
    with pytest.raises(InvalidInputError) as caught:
        codec.decode(Tree, {"branches": [{}, {"branches": [{"weight": "2"}]}]}, field="trees[3]")
    assert caught.value.field == "trees[3].branches[1].branches[0].weight"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner, inner)))
def test_plain_data_is_encoded_as_json_itself_would(data):
    assert codec.dumps(data) == json.dumps(data, separators=(",", ":"))


def test_what_json_has_no_word_for_is_refused():
    with pytest.raises(TypeError, match="not JSON serializable"):
        codec.dumps({"kind": Colour})


@pytest.mark.parametrize(
    ("text", "field", "fragment"),
    [
        (None, "file", "cannot be read"),
        ("{", "document", "is not JSON"),
        ("[]", "document", "an object"),
        ("{}", "name", "missing"),
    ],
)
def test_an_error_says_which_file_is_wrong(tmp_path, text, field, fragment):
    path = tmp_path / "cluster.json"
    if text is not None:
        path.write_text(text)
    for named, told in (("", "in"), ("--cluster", "--cluster")):
        with pytest.raises(InvalidInputError, match=fragment) as refused:
            codec.load(Cluster, path, named=named)
        assert refused.value.field == field
        assert refused.value.message.endswith(f" ({told} {path})")


def test_a_list_of_another_length_is_told_its_length():
    with refuses("between", 3, "must be a list of 2, not of 3"):
        codec.decode(HostLink, {"between": ["a", "b", "c"], "alpha_seconds": 0, "beta_seconds_per_byte": 0})
