"""What the nouns' invariants refuse before they are looked at."""

from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core import checks
from kintsugi.core.plan import Policy
from tests.core.refusals import refuses

NUMBERS = (checks.positive, checks.non_negative, checks.seconds, checks.beta, checks.rate, checks.device_memory)


@pytest.mark.parametrize("check", NUMBERS)
@pytest.mark.parametrize("value", ["4", "nan", None, [4], {}])
def test_what_is_no_number_is_refused(check, value):
    with refuses("x", value if isinstance(value, str) else repr(value), f"not {value!r}"):
        check("x", value)


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checks.beta, 1e-2),
        (checks.rate, 100),
        (checks.microbatches, 65_536),
        (checks.speed_ratio, 1e-6),
        (checks.speed_ratio, 1e6),
        (checks.device_memory, 10**6),
        (checks.mean_time, 1.0),
        (checks.heartbeat_timeout, 0.1),
        (checks.positive, 2**63 - 1),
    ],
)
def test_the_last_credible_value_is_taken_and_none_beyond(check, value):
    check("x", value)
    beyond = {checks.rate: 99, checks.device_memory: 10**6 - 1, checks.mean_time: 0.99, checks.heartbeat_timeout: 0.09}
    beyond = beyond.get(check, value * 0.5 if value == 1e-6 else value + 1)
    with refuses("x"):
        check("x", beyond)


def test_a_name_has_at_most_200_characters():
    checks.name("id", "x" * 200)
    with refuses("id", "x" * 200):
        checks.name("id", "x" * 201)


@dataclass(frozen=True, slots=True)
class Told:
    why: str

    def __post_init__(self) -> None:
        checks.settle_text(self, "why")


@given(st.text(max_size=60), st.integers(0, 3 * checks.LONGEST_TEXT))
def test_a_long_text_for_people_loses_its_middle_once(words, count):
    text = (words or "x") * (count // max(len(words), 1))
    told = Told(text).why
    assert len(told) == min(len(text), checks.LONGEST_TEXT)
    if told != text:
        assert f" [... {len(text):,} characters in all ...] " in told
        assert (told[:4_000], told[-4_000:]) == (text[:4_000], text[-4_000:])
    assert Told(told).why == told


@pytest.mark.parametrize("value", [None, 5, b"bytes"])
def test_a_text_for_people_is_a_text(value):
    with refuses("why", repr(value), "must be a text"):
        Told(value)


@pytest.mark.parametrize("value", ["a\x00", "\ud800", "\udfffb"])
def test_what_no_database_can_store_is_refused(value):
    with refuses("x", value, "no characters"):
        checks.storable("x", value)
    checks.storable("x", "\U0001f525 \n")


def test_long_values_are_told_by_their_beginning():
    with refuses("x", "9" * 200):
        checks.positive("x", "9" * 201)
    with refuses("x", "an integer beyond 64 bits", "not an integer beyond 64 bits"):
        checks.non_negative("x", -(2**70))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2**70])
def test_what_is_not_finite_is_refused(value):
    with refuses("x"):
        checks.positive("x", value)


@pytest.mark.parametrize("value", [1, 0.5, 1e300, np.int64(3), np.float32(0.5), Decimal(2)])
def test_any_finite_number_is_one(value):
    checks.positive("x", value)


@pytest.mark.parametrize("value", [1.5, 2.0, True, 0])
def test_a_count_is_a_whole_number_above_0(value):
    checks.count("x", np.int64(3))
    with refuses("x", value, "number above 0"):
        checks.count("x", value)


@pytest.mark.parametrize("value", [5, None, b"w00"])
def test_a_name_is_a_text(value):
    with refuses("id", repr(value), "must be a text"):
        checks.name("id", value)


@pytest.mark.parametrize("value", ["a/b", "/", ".", ".."])
def test_a_path_segment_is_a_name_that_a_url_can_hold(value):
    checks.path_segment("job", "my job.1")
    with refuses("job", value, "without slashes"):
        checks.path_segment("job", value)


@pytest.mark.parametrize("value", ["", ".a", "a b", "a/b", "ä", "x" * 101])
def test_an_identifier_is_short_and_plain(value):
    checks.identifier("id", "0a._-" + "x" * 95)
    with refuses("id", value, "1 to 100 letters"):
        checks.identifier("id", value)


def test_a_choice_names_what_there_is():
    assert checks.choice(Policy, "policy", "fault_free") is Policy.FAULT_FREE
    with refuses("policy", "nonsense", "known ones: fault_free"):
        checks.choice(Policy, "policy", "nonsense")
