from dataclasses import replace

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix.cell import Part, Variant
from kintsugi.matrix.data import DataFile
from kintsugi.matrix.runner import Asked
from kintsugi.matrix.suites import BASE, LATE, SHRINKING, Matrix, with_seeds
from kintsugi.matrix.workload import Orders, Schedule


def test_the_matrix_is_two_by_two_by_two_under_four_variants():
    cells = [cell for cell in Matrix().cells() if cell.part is Part.MATRIX]
    assert len({cell.suite for cell in cells}) == 8
    assert {len({getattr(cell.suite, axis) for cell in cells}) for axis in ("data_set", "schedule")} == {2}
    by_data = {
        cell.suite.data_set: {other.suite.model for other in cells if other.suite.data_set == cell.suite.data_set} for cell in cells
    }
    assert [len(models) for models in by_data.values()] == [2, 2]
    assert len(cells) == 8 * 4 * 3


def test_names_of_cells_are_distinct():
    cells = with_seeds(Matrix(), 5).cells(sweep=True)
    assert len({cell.name for cell in cells}) == len(cells)


def test_variants_of_a_suite_and_seed_follow_each_other_each_as_often_first():
    cells = [cell for cell in Matrix().cells() if cell.part is Part.MATRIX]
    rows = [cells[start : start + 4] for start in range(0, len(cells), 4)]
    assert all({cell.variant for cell in row} == set(Variant) for row in rows)
    for place in range(4):
        assert all(sum(row[place].variant is variant for row in rows) == len(rows) / 4 for variant in Variant)
    assert all(len({(cell.suite, cell.seed) for cell in row}) == 1 for row in rows)


def test_failures_come_where_the_paper_has_them_half_an_interval_after_a_checkpoint():
    model = replace(Matrix().models[0], num_steps=1600, every_steps=50)
    assert BASE.strikes(model) == (425, 1225)
    assert LATE.strikes(model) == (825, 1425)


def test_the_reference_is_never_struck_and_all_others_at_the_same_steps():
    matrix = Matrix()
    for cell in matrix.cells(sweep=True):
        expected = () if cell.variant is Variant.REFERENCE else matrix.schedule(cell.suite).strikes(matrix.model(cell.suite))
        assert matrix.strikes(cell) == expected


def test_failures_outside_the_run_or_at_one_step_are_refused():
    model = Matrix().models[0]
    for at in ((1.0,), (0.5, 0.5)):
        with pytest.raises(InvalidInputError, match="inside a run"):
            Schedule(name="wrong", at=at).strikes(model)


def test_workers_that_do_not_come_back_make_every_attempt_smaller():
    matrix = Matrix()
    cell = next(cell for cell in matrix.cells() if cell.part is Part.ELASTIC)
    model = matrix.model(cell.suite)
    orders = Orders(
        cell=cell,
        model=model,
        run="run",
        data=DataFile(path="data", sha256=""),
        profile="profile",
        strikes=SHRINKING.strikes(model),
        comes_back=SHRINKING.comes_back,
    )
    assert [orders.workers_in(attempt) for attempt in range(4)] == [4, 3, 2, 2]
    assert [replace(orders, comes_back=True).workers_in(attempt) for attempt in range(3)] == [4, 4, 4]
    assert [orders.victim(failure) for failure in range(2)] == ["w03", "w02"]


def test_global_batches_divide_among_four_three_and_two_workers():
    assert all(model.num_microbatches % count == 0 for model in Matrix().models for count in (4, 3, 2))


def test_patterns_choose_cells_and_name_at_least_one():
    names = [cell.name for cell in Asked(only=("digits-*-late/memory-*", "*/reference-seed0")).cells(Matrix())]
    assert "digits-resnet6-late/memory-seed2" in names
    assert "text-decoder4-base/reference-seed0" in names
    assert len(names) == 2 * 3 + 8
    with pytest.raises(InvalidInputError, match="names no cell"):
        Asked(only=("nothing",)).cells(Matrix())


@pytest.mark.parametrize("number", [0, 10**9, 10**30])
def test_seeds_that_nobody_can_wait_for_are_refused(number):
    with pytest.raises(InvalidInputError, match=r"seeds: must be 1 to 1,000"):
        with_seeds(Matrix(), number)


def test_matrices_are_alike_whatever_their_seeds():
    assert with_seeds(Matrix(), 5).without_seeds == Matrix().without_seeds
    assert replace(Matrix(), max_in_flight=1).without_seeds != Matrix().without_seeds
