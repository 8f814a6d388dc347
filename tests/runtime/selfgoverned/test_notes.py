"""What is said in a ring comes back as it was said."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.errors import InfeasibleError
from kintsugi.runtime.ring.messages import Agreement, Ballot, Contribution, Promise, Proposal, Reconcile
from kintsugi.runtime.ring.wire import framed, frames
from kintsugi.runtime.selfgoverned.notes import Note, heard, note_of, note_of_error
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


def test_a_thousand_workers_hear_all_of_each_other_within_a_frame():
    """However many micro-batches they share: what is longest has what all said twice, and an accepted agreement."""
    workers = tuple(f"w{number:03d}" for number in range(1000))
    record = CommitRecord(step=10**6, squared_norm=1 / 3, loss=1 / 3, divisor=16_000.0, microbatches=(1,) * 16_000)
    said = tuple(Contribution(worker, 10**6, Note(99, record).text()) for worker in workers)
    agreement = Agreement(100, workers, said, note="x" * 1_000_000)
    accepted = Proposal(Ballot(1, "w000"), agreement, by_lease=False)
    promises = tuple(Promise(contribution, None) for contribution in said[1:])
    frame = Reconcile(Ballot(2, "w000"), agreement, frozenset(), (Promise(said[0], accepted), *promises))
    assert [*frames(bytearray(framed(frame)))] == [frame]


def test_decisions_come_back():
    decision = course_of().decision
    assert heard(note_of(decision)) == decision


def test_refusals_are_raised():
    with pytest.raises(InfeasibleError, match="too few"):
        heard(note_of_error(InfeasibleError("too few workers")))
