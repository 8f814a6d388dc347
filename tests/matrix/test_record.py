"""Records come back as they were written, and errors name file and field."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix import store
from kintsugi.matrix.cell import Part, Suite, Variant
from kintsugi.matrix.manifest import CellStatus
from kintsugi.matrix.record import CellRecord, Verdict, WallTime
from tests.matrix import records
from tests.matrix.records import cell

TIMES = st.floats(0, 1e6)


def test_a_record_comes_back_as_it_was_written(tmp_path):
    written = records.record(cell(Variant.MEMORY))
    steps = records.steps(written.cell, distance=0.25)
    assert not store.has_record(written.cell, tmp_path)
    store.write_record(written, steps, tmp_path)
    assert store.has_record(written.cell, tmp_path)
    assert store.read_record(written.cell, tmp_path) == written
    assert store.read_steps(written.cell, tmp_path) == steps


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    written = records.manifest([cell(Variant.BLOCKING), cell(Variant.MEMORY)], status=CellStatus.SKIPPED_EXISTS)
    store.write_manifest(written, tmp_path)
    assert store.read_manifest(tmp_path) == written


def test_distances_that_were_not_measured_stay_unknown(tmp_path):
    written = records.record(cell(Variant.BLOCKING))
    store.write_record(written, records.steps(written.cell, distance=None), tmp_path)
    assert {step.parameter_distance for step in store.read_steps(written.cell, tmp_path)} == {None}


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(loss=st.floats(allow_nan=False, allow_infinity=False), distance=st.none() | TIMES)
def test_every_number_of_a_step_comes_back_exactly(tmp_path, loss, distance):
    written = records.record(cell(Variant.BLOCKING))
    (first, *_) = records.steps(written.cell)
    step = replace(first, loss=loss, parameter_distance=distance)
    store.write_record(written, [step], tmp_path)
    assert store.read_steps(written.cell, tmp_path) == (step,)


@settings(deadline=None)
@given(parts=st.tuples(*[TIMES] * 7), rest=TIMES)
def test_the_parts_of_the_wall_time_and_the_rest_are_all_of_it(parts, rest):
    total = sum(parts) + rest + 1.0
    wall = WallTime(**dict(zip(WallTime.__dataclass_fields__, (total, *parts), strict=True)))
    whole = wall.compute_seconds + wall.stall_seconds + wall.recovery_seconds + wall.start_seconds + wall.rest_seconds
    assert whole == pytest.approx(total)


def test_goodput_counts_committed_steps_alone():
    done = records.record(cell(Variant.BLOCKING), committed_steps=50)
    assert done.goodput == 50 / 125
    assert done.useful_samples == 400
    assert done.trained_samples == 880
    assert done.num_bytes_written == 10_000_000


@pytest.mark.parametrize("name", ["duplicates", "missing", "extra"])
def test_one_sample_too_much_or_too_little_fails_the_audit(name):
    clean = {"is_complete": True, "duplicates": 0, "missing": 0, "extra": 0}
    assert Verdict(**clean).has_passed
    assert not Verdict(**{**clean, name: 1}).has_passed
    assert not Verdict(**{**clean, "is_complete": False}).has_passed
    assert not Verdict(**clean, problems=("a journal is torn",)).has_passed


def test_names_of_cells_are_paths_of_their_own():
    suites = [Suite(data_set="digits", model=model, schedule="early") for model in ("small", "large")]
    cells = [
        cell(variant, suite=suite, seed=seed, part=part, every_steps=every, max_in_flight=flight)
        for variant in Variant
        for suite in suites
        for seed in (0, 1)
        for part in Part
        for every, flight in (((5, 1), (10, 2)) if part is Part.SWEEP else ((10, 2),))
    ]
    assert len({each.name for each in cells}) == len(cells)
    assert cell(Variant.MEMORY).name == "digits-small-early/memory-seed0"


def changed(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def written(tmp_path):
    """The record's path, and its cell."""
    done = records.record(cell(Variant.BLOCKING))
    store.write_record(done, records.steps(done.cell), tmp_path)
    return done.cell.folder(tmp_path) / store.RECORD, done.cell


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"schema_version": 2, "of_the_future": 1}, "schema_version"),
        ({"committed_steps": "many"}, "committed_steps"),
        ({"committed_steps": -1}, "committed_steps"),
        ({"trained_samples": 1}, "trained_samples"),
        ({"world_sizes": []}, "world_sizes"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_wrong_record_is_refused_with_file_and_field(written, tmp_path, values, field):
    path, of = written
    changed(path, **values)
    with pytest.raises(InvalidInputError, match=r"record\.json") as caught:
        store.read_record(of, tmp_path)
    assert caught.value.field == field


def test_negative_times_are_refused_with_their_place(written, tmp_path):
    path, of = written
    document = json.loads(path.read_text())
    document["wall"]["write_seconds"] = -1
    changed(path, wall=document["wall"])
    with pytest.raises(InvalidInputError, match=r"record\.json") as caught:
        store.read_record(of, tmp_path)
    assert caught.value.field == "wall.write_seconds"


def test_the_record_of_another_cell_is_refused(written, tmp_path):
    path, of = written
    changed(path, cell=codec.encode(replace(of, seed=7)))
    with pytest.raises(InvalidInputError, match="remove that folder"):
        store.read_record(of, tmp_path)


def test_a_missing_record_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"record\.json"):
        store.read_record(cell(Variant.BLOCKING), tmp_path)


@pytest.mark.parametrize(("old", "new", "field"), [("0.5", "half", "loss"), ("0.5", "nan", "loss"), ("epoch", "age", "header")])
def test_a_wrong_step_is_refused_with_file_line_and_field(written, tmp_path, old, new, field):
    path, of = written
    steps = path.with_name(store.STEPS)
    steps.write_text(steps.read_text().replace(old, new, 1))
    with pytest.raises(InvalidInputError, match=r"steps\.csv") as caught:
        store.read_steps(of, tmp_path)
    assert caught.value.field == field
    assert field == "header" or "line 3" in caught.value.message


def test_a_cell_stands_in_a_manifest_once():
    with pytest.raises(InvalidInputError, match="twice") as caught:
        records.manifest([cell(Variant.BLOCKING)] * 2)
    assert caught.value.field == "entries[1].cell"


def test_a_record_survives_the_codec():
    done = records.record(cell(Variant.MEMORY))
    assert codec.loads(CellRecord, codec.dumps(done)) == done
