"""What is said in a ring comes back as it was said."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.errors import InfeasibleError
from kintsugi.runtime.selfgoverned.notes import Note, heard, told, told_error
from kintsugi.runtime.workers.commit import CommitRecord
from tests.runtime.selfgoverned.courses import course_of

RECORDS = st.builds(
    CommitRecord,
    step=st.integers(0, 10**6),
    squared_norm=st.floats(allow_nan=False),
    loss=st.floats(allow_nan=False),
    microbatches=st.lists(st.integers(0, 2)).map(tuple),
    asks_for_checkpoint=st.booleans(),
)


@given(st.builds(Note, st.integers(-1, 1000), st.none() | RECORDS))
def test_notes_come_back(note):
    assert Note.parsed(note.text()) == note


def test_a_loss_that_is_no_number_stays_one():
    note = Note.parsed(Note(0, CommitRecord(step=1, squared_norm=1.0, loss=math.nan)).text())
    assert note.record is not None
    assert math.isnan(note.record.loss)


def test_decisions_come_back():
    decision = course_of().decision
    assert heard(told(decision)) == decision


def test_refusals_are_raised():
    with pytest.raises(InfeasibleError, match="too few"):
        heard(told_error(InfeasibleError("too few workers")))
