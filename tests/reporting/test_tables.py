"""Tables say the same to people and to programs."""

import csv

from kintsugi.reporting.intervals import Interval
from kintsugi.reporting.tables import Column, Table

TABLE = Table(
    name="gains",
    title="Gains",
    columns=(Column(key="suite", title="suite"), Column(key="gain", title="gain", form="+.1%"), Column(key="n", title="runs")),
    rows=(("a|b", Interval(mean=0.125, margin=0.01), 3), ("c", Interval(mean=-0.5, margin=None), 1), ("d", None, 0)),
    note="By hand.",
)


def test_people_read_means_margins_and_gaps():
    assert TABLE.markdown().splitlines() == [
        "**Gains**",
        "",
        "| suite | gain | runs |",
        "| --- | ---: | ---: |",
        "| a\\|b | +12.5% ± 1.0% | 3 |",
        "| c | -50.0% | 1 |",
        "| d | - | 0 |",
        "",
        "By hand.",
    ]


def test_csv_has_margins_in_columns_of_their_own(tmp_path):
    with TABLE.write_csv(tmp_path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"suite": "a|b", "gain": "0.125", "gain_margin": "0.01", "n": "3"},
        {"suite": "c", "gain": "-0.5", "gain_margin": "", "n": "1"},
        {"suite": "d", "gain": "", "gain_margin": "", "n": "0"},
    ]


def test_programs_read_objects():
    assert TABLE.document()["rows"][0] == {"suite": "a|b", "gain": {"mean": 0.125, "margin": 0.01}, "n": 3}
    assert TABLE.document()["note"] == "By hand."
