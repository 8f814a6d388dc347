"""Reports of whole and of broken matrices: every file is there, links lead to it, and what is missing is said."""

import csv
import json
import re
from dataclasses import replace

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix import figures, store
from kintsugi.matrix.cell import Part, Variant
from kintsugi.matrix.manifest import CellStatus, Manifest, ManifestEntry
from kintsugi.matrix.report import TABLES, write_report
from tests.full_disks import without_room_for
from tests.matrix import records
from tests.matrix.records import SUITES, cell


def small_matrix():
    """Two suites, two seeds, a sweep and an elastic cell."""
    known = [each for each in records.whole_matrix(seeds=(0, 1)) if each.cell.suite in SUITES[:2]]
    for every, flight in ((5, 1), (5, 2), (20, 1)):
        known += [
            records.record(cell(variant, part=Part.SWEEP, every_steps=every, max_in_flight=flight))
            for variant in (Variant.BLOCKING, Variant.OVERLAPPED)
        ]
    elastic = cell(Variant.MEMORY, part=Part.ELASTIC, suite=replace(SUITES[0], schedule="4to3"))
    return [*known, records.record(elastic, world_sizes=(4, 3))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("matrix")
    records.write(small_matrix(), path)
    return path


@pytest.fixture(scope="module")
def report(folder):
    return write_report(folder)


def test_everything_is_written_and_links_lead_to_it(report, folder):
    assert report.path == folder / "report" / "report.md"
    assert all(path.is_file() and path.stat().st_size for path in report.written)
    text = report.path.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (report.path.parent / target).is_file()
    assert {path.name for path in report.written} >= {
        "manifest.csv",
        "cells.csv",
        "matrix.json",
        "table5_aggregate.csv",
        "sweep.csv",
    }
    assert report.is_accepted


def test_every_figure_is_there_as_png_and_svg(report):
    pytest.importorskip("matplotlib")
    names = {path.name for path in report.written if path.parent.name == "figures"}
    assert names == {f"{name}.{kind}" for name in figures.CAPTIONS for kind in ("png", "svg")}
    assert report.without_figures == ""


def test_programs_read_what_people_read(report, folder):
    document = json.loads((folder / "report" / "matrix.json").read_text())
    assert document["statuses"] == {"completed": 23}
    assert len(document["tables"]) == len(TABLES) + 2
    change = {row["variant"]: row["change"]["mean"] for row in document["tables"]["table5_aggregate"]["rows"]}
    assert change["overlapped - blocking"] == pytest.approx(125 / 120 - 1)
    assert all(gate["is_accepted"] for gate in document["gates"])
    assert {finding["verdict"] for finding in document["findings"]} == {"reached"}


def test_every_cell_is_in_the_csv_with_all_its_digits(report, folder):
    with (folder / "report" / "cells.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 23
    one = next(row for row in rows if (row["variant"], row["seed"], row["part"]) == ("overlapped", "1", "matrix"))
    assert float(one["goodput_steps_per_second"]) == 100 / (120 * 1.01)
    assert float(one["wall_total_seconds"]) == 120 * 1.01
    with (folder / "report" / "tables" / "table6_ranking.csv").open(newline="") as file:
        ranked = list(csv.DictReader(file))
    assert float(ranked[0]["overlapped_gain"]) == pytest.approx(125 / 120 - 1)
    assert float(ranked[0]["overlapped_gain_margin"]) == pytest.approx(0.0, abs=1e-9)


@pytest.fixture
def no_matplotlib(monkeypatch):
    def refuse():
        raise InvalidInputError("figures need matplotlib: pip install 'kintsugi[plot]'", field="out")

    monkeypatch.setattr(figures, "pyplot", refuse)


def test_without_matplotlib_there_is_a_report_that_says_so(tmp_path, no_matplotlib):
    records.write(small_matrix()[:4], tmp_path)
    report = write_report(tmp_path)
    assert "kintsugi[plot]" in report.without_figures
    assert "kintsugi[plot]" in report.path.read_text()


def test_a_second_report_is_the_same(tmp_path, no_matplotlib):
    records.write(small_matrix(), tmp_path)
    first, second = ({path: path.read_bytes() for path in write_report(tmp_path).written} for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["report.md", "matrix.json", "cells.csv", "tables/gates.csv"])
def test_without_room_the_earlier_report_stays(tmp_path, no_matplotlib, name):
    records.write(small_matrix()[:4], tmp_path)
    written = write_report(tmp_path).written
    path = next(each for each in written if str(each).endswith(name))
    before = path.read_bytes()
    without_room_for(path)
    with pytest.raises(InvalidInputError, match=r"cannot be written: No space left on device; make room") as caught:
        write_report(tmp_path)
    assert caught.value.value == str(path)
    assert path.read_bytes() == before
    assert set(path.parent.iterdir()) <= {*written, *(each.parent for each in written)}


def test_a_matrix_that_has_hardly_begun_can_be_reported(tmp_path):
    """One cell ran, one failed, the others are pending; nothing can be compared."""
    known = small_matrix()
    store.write_record(known[0], records.own_steps(known[0].cell), tmp_path)
    entries = [ManifestEntry(cell=each.cell, status=CellStatus.PENDING) for each in known]
    entries[1] = replace(entries[1], status=CellStatus.FAILED, reason="the disk is full")
    store.write_manifest(Manifest(name="begun", started_at="2026-01-31T12:00:00Z", entries=tuple(entries)), tmp_path)
    report = write_report(tmp_path)
    assert not report.is_accepted
    assert "has no record the disk is full" in report.path.read_text()
    assert {finding.is_reached for finding in report.findings if finding.name.startswith("goodput")} == {None}


def test_a_folder_without_a_manifest_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"manifest\.json.*run one by `kintsugi matrix`") as caught:
        write_report(tmp_path)
    assert (caught.value.field, caught.value.value) == ("folder", str(tmp_path))
    assert str(tmp_path) not in caught.value.message


def test_a_damaged_record_is_named(tmp_path):
    records.write(small_matrix()[:1], tmp_path)
    (path,) = tmp_path.rglob("record.json")
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InvalidInputError, match=r"record\.json") as caught:
        write_report(tmp_path)
    assert caught.value.message.count(str(path)) == 1
