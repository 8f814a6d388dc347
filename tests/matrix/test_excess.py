from dataclasses import replace

import pytest

from kintsugi.matrix.cell import Variant
from kintsugi.matrix.excess import excess, excess_of
from kintsugi.matrix.results import Results
from tests.matrix.records import cell, manifest, own_steps, record


def timed(of, *, every: int, stall: float, slower: float):
    """Steps of 0.1 s; the one after a checkpoint takes `stall` more, the next one `slower`."""
    extra = {0: stall, 1: slower}
    return tuple(
        replace(step, seconds=0.1 + (extra.get(step.global_step % every, 0.0) if step.global_step >= every else 0.0))
        for step in own_steps(of)
    )


def test_what_the_steps_after_a_checkpoint_take_more_is_told_per_checkpoint():
    found = excess_of(timed(cell(Variant.OVERLAPPED), every=10, stall=0.02, slower=0.05), 10)
    assert found.other_seconds == pytest.approx(0.1)
    assert found.excess_seconds == pytest.approx(0.07)


def test_intervals_of_which_a_step_has_no_time_are_left_out():
    steps = list(timed(cell(Variant.OVERLAPPED), every=10, stall=0.02, slower=0.05))
    steps[21] = replace(steps[21], seconds=None)
    steps[20] = replace(steps[20], seconds=99.0)
    assert excess_of(steps, 10).excess_seconds == pytest.approx(0.07)


def test_without_times_there_is_no_excess():
    assert excess_of([replace(step, seconds=None) for step in own_steps(cell(Variant.OVERLAPPED))], 10) is None


def test_the_table_tells_what_no_stall_tells():
    own = record(cell(Variant.OVERLAPPED))
    steps = {own.cell: timed(own.cell, every=10, stall=0.3, slower=0.2)}
    table = excess(Results(manifest([own.cell]), {own.cell: own}, steps))
    figures = dict(zip([column.key for column in table.columns], table.rows[0], strict=True))
    assert figures["stall_seconds"].mean == pytest.approx(0.3)
    assert figures["hidden_seconds"].mean == pytest.approx(0.2)
