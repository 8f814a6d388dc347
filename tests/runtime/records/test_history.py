"""What holds of a run is read in a time that its steps ask for, however many there were."""

from kintsugi.runtime.records.history import history_of
from kintsugi.runtime.records.journal import Record
from tests.runtime.journals import GEOMETRY

NUM_STEPS = 30_000


def test_a_long_run_is_gone_on_with_though_it_went_back_far():
    """A second life goes back to the middle: in a time that grew with the square of the steps it would never begin."""
    middle = NUM_STEPS // 2
    lives = [life(1, range(NUM_STEPS), "start"), life(2, range(middle, NUM_STEPS), "memory")]
    history = history_of(record for records in lives for record in records)
    assert [*history.losses] == [*history.microbatches] == [*range(NUM_STEPS)]
    assert [history.losses[step] for step in (0, middle - 1, middle)] == [1.0, 1.0, 2.0]
    assert [(undone.first, undone.last) for undone in history.undone] == [(middle, NUM_STEPS - 1)]
    assert len(history.problems) == 2 * (NUM_STEPS - middle)  # both had applied each of them


def life(number: int, steps: range, source: str) -> list[Record]:
    """The journals of two workers that commit these steps."""
    resume = {"kind": "resume", "attempt": 1, "step": steps.start, "source": source, "world_size": 2}
    commits = [{"kind": "commit", "attempt": 1, "step": step, "loss": float(number), "microbatches": [0, 1]} for step in steps]
    return [
        Record(name=worker, worker=worker, life=number, geometry=GEOMETRY, lines=(resume, *commits), problem=None)
        for worker in ("w00", "w01")
    ]
