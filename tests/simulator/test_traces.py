"""Traces as the field writes them."""

from dataclasses import replace
from pathlib import Path

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.simulator.job import incidents_of, job_of
from kintsugi.simulator.scenario import load
from kintsugi.simulator.sweep import run_one
from kintsugi.simulator.traces import read, shipped, written

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "traces"


def lines(tmp_path, *text):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(text) + "\n")
    return path


def test_events_begin_at_zero_and_those_of_one_moment_are_one(tmp_path):
    path = lines(tmp_path, "480000,add,a", "480000,add,b", "500000,remove,a", "500000,add,c", "501500,remove,c")
    incidents = read(path, notice_seconds=30.0)
    assert [(i.at_seconds, i.lost, i.joined, i.notice_seconds) for i in incidents] == [
        (0.0, (), ("a", "b"), 0.0),
        (20.0, ("a",), ("c",), 30.0),
        (21.5, ("c",), (), 30.0),
    ]


def test_a_trace_may_begin_before_its_own_zero(tmp_path):
    path = lines(tmp_path, "-5000,add,a", "-1000,add,b", "1000,add,c")
    assert [(i.at_seconds, i.joined) for i in read(path)] == [(0.0, ("a",)), (4.0, ("b",)), (6.0, ("c",))]


def test_who_comes_and_goes_in_one_moment_was_never_there(tmp_path):
    path = lines(tmp_path, "0,add,a", "1000,add,b", "1000,remove,b", "2000,add,c")
    assert [i.joined for i in read(path)] == [("a",), ("c",)]


def test_who_goes_and_comes_in_one_moment_is_lost_and_joins_without_state(tmp_path):
    path = lines(tmp_path, "0,add,a", "0,add,b", "1000,remove,a", "1000,add,a", "2000,remove,b", "2000,add,b", "2000,remove,b")
    incidents = read(path)
    assert [(i.lost, i.joined) for i in incidents] == [((), ("a", "b")), (("a",), ("a",)), (("b",), ())]
    again = tmp_path / "again.csv"
    again.write_text(written(incidents))
    assert read(again) == incidents


def test_policies_know_how_many_nodes_a_trace_loses_at_once(tmp_path):
    path = lines(tmp_path, "0,add,a", "0,add,b", "0,add,c", "0,add,d", "1000,remove,a", "2000,remove,b", "2000,remove,c")
    scenario = replace(load("spot"), trace=str(path))
    assert job_of(scenario, incidents_of(scenario, 0)).workers_per_failure == pytest.approx(1.5)
    assert job_of(scenario, ()).workers_per_failure == 1.0


def test_counts_are_met_with_the_fewest_changes(tmp_path):
    days = ("2021-12-11, 11:00:00, 5", "2021-12-11, 11:00:30, 5", "2021-12-11, 11:01:00, 3", "2021-12-12, 00:00:00, 4")
    path = lines(tmp_path, *days)
    incidents = read(path, seed=1)
    assert [(i.at_seconds, len(i.lost), len(i.joined)) for i in incidents] == [(0.0, 0, 5), (60.0, 2, 0), (46_800.0, 0, 1)]
    assert incidents == read(path, seed=1)
    assert set(incidents[1].lost) < set(incidents[0].joined)
    assert not set(incidents[2].joined) & set(incidents[0].joined)


@pytest.mark.parametrize(
    ("text", "field", "part"),
    [
        (["0,add,a", "5,take,b"], "trace line 2", "is no"),
        (["0,add,a", "x,add,b"], "trace line 2", "is no"),
        (["0,add,a", "5,add," + 199 * "b"], "trace line 2", "at most 198 printable characters"),
        (["0,add,a", "5,add,b\x07c"], "trace line 2", "at most 198 printable characters"),
        (["0,add,a", "0,add,a"], "trace", "although it is there"),
        (["0,add,a", "1,remove,b"], "trace", "not there"),
        (["9,add,a", "9,add,b", "1,add,c"], "trace line 3", "back in time"),
        (["2021-12-11, 11:00:00, many"], "trace line 1", "is no"),
        (["2021-12-11, 11:00:00, -1"], "trace line 1", "is no"),
        (["2021-12-11, 11:00:00, 2", "2021-12-10, 11:00:00, 3"], "trace line 2", "back in time"),
        (["2021-12-11, 11:00:00, 0", "2021-12-11, 10:00:00, 5"], "trace line 2", "back in time"),
        (["2021-12-11, 11:00:00, 5", "2021-12-11, 12:00:00, 5", "2021-12-11, 11:30:00, 4"], "trace line 3", "back in time"),
        (["2021-12-11, 11:00:00, 5", "2021-12-11, 11:10:00+00:00, 4"], "trace line 2", "on every line or on none"),
        (["0,add,a", "nan,add,b", "5,add,c"], "trace line 2", "is no"),
        (["0,add,a", "inf,add,b"], "trace line 2", "is no"),
        (["0,add,a", "", "  ", "5,take,b"], "trace line 4", "is no"),
        (["", "9,add,a", "", "1,add,c"], "trace line 4", "back in time"),
        (["2021-12-11, 11:00:00, 5", "", "2021-12-10, 11:00:00, 4"], "trace line 3", "back in time"),
        (["2021-12-11, 11:00:00, 5", "2021-12-11, 11:30:00, 1000000000"], "trace line 2", "more than 131,072 nodes at once"),
        (["hello"], "trace line 1", r"is no .*nodes` and no .*remove,node` \(in .*trace"),
    ],
)
def test_bad_lines_are_named(tmp_path, text, field, part):
    with pytest.raises(InvalidInputError, match=part) as caught:
        read(lines(tmp_path, *text))
    assert caught.value.field == field


def test_nodes_with_the_longest_names_are_simulated(tmp_path):
    longest = 198 * "b"
    scenario = replace(load("spot"), trace=str(lines(tmp_path, "0,add,a", f"0,add,{longest}")), duration_seconds=600.0)
    assert run_one(scenario, "varuna", 0).live[-1] == (0.0, 2)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = lines(tmp_path, "\ufeff0,add,a", "1000,add,b")
    assert [i.joined for i in read(path)] == [("a",), ("b",)]


def test_a_missing_and_an_empty_file_are_refused(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InvalidInputError, match="cannot be read"):
            read(path)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InvalidInputError, match="no lines"):
        read(tmp_path / "empty.csv")


def test_the_shipped_trace_is_what_is_drawn_and_reads_back():
    path = ROOT / "profiles" / "traces" / "spot-synthetic.csv"
    assert path.read_text() == written(shipped())
    incidents, live = read(path), 0
    assert len(incidents[0].joined) == 24
    for incident in incidents:
        live += len(incident.joined) - len(incident.lost)
        assert 1 <= live <= 24


@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured traces are not there")
@pytest.mark.parametrize(("name", "most", "changes"), [("aws-g4dn.csv", 24, 153), ("gcp-a100-east1b.csv", 64, None)])
def test_measured_traces_are_read_as_they_are(name, most, changes):
    live, sizes, total = set(), [], 0
    for incident in read(SHARED / name):
        assert live.issuperset(incident.lost)
        live = (live - set(incident.lost)) | set(incident.joined)
        total += len(incident.lost) + len(incident.joined)
        sizes.append(len(live))
    assert max(sizes) == most
    assert changes in (None, total)
