"""Scenarios by name and by file, and what may be varied."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError
from kintsugi.simulator.faults import Faults
from kintsugi.simulator.job import incidents_of, job_of
from kintsugi.simulator.scenario import load, names, varied
from kintsugi.simulator.variations import parsed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [*names(), str(ROOT / "examples" / "scenario.json")])
def test_every_committed_scenario_reads_its_profile_and_its_trace(name):
    scenario = load(name)
    incidents = incidents_of(scenario, 0)
    job = job_of(scenario, incidents)
    assert job.mtbf_seconds(scenario.num_workers) > 0
    assert incidents
    assert all(0 <= i.at_seconds < scenario.duration_seconds or i.joined or i.speeds for i in incidents)


def test_the_scenarios_that_the_documents_tell_of_are_there():
    assert {"chameleon-32", "chameleon-32-tp8", "spot", "llama3-16k"} <= set(names())
    llama = load("llama3-16k")
    assert llama.num_workers * job_of(llama, ()).profile.tensor_parallel_degree == 16_384
    assert sum(bool(i.lost) for i in incidents_of(llama, 0)) == 419
    assert load("chameleon-32").faults.mtbf_seconds(32, 1, 1.0) == pytest.approx(36_000 / 32)


def test_failures_are_not_varied_where_a_trace_tells_them():
    for name in ("mtbf", "faults.repair_seconds"):
        with pytest.raises(InvalidInputError, match="changes nothing") as caught:
            varied(load("spot"), {name: 100.0})
        assert caught.value.field == name


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_workers": 0}, "num_workers"),
        ({"first": {"dp": 5, "pp": 5}}, "first"),
        ({"settings": {"num_microbatches": 16, "ranges": {"min_dp": 3}}}, "first"),
        ({"settings": {"num_microbatches": 16, "ranges": {"max_pp": 3}}}, "first"),
        ({"faults": {"repair_seconds": -1}}, "faults.repair_seconds"),
        ({"wrong": 1}, "wrong"),
        ({"settings": {}}, "settings.num_microbatches"),
        ({"schema_version": 2}, "schema_version"),
        ({"profile": 3}, "profile"),
        ({"faults": {"worker_mtbf_seconds": 1e-3, "repair_seconds": 1e-3}}, "faults"),
        ({"faults": {"host_mtbf_seconds": 5e-324, "repair_seconds": 5e-324}}, "faults"),
        ({"faults": {"straggler_mtbf_seconds": 1e-3, "straggler_seconds": 1e-3}}, "faults"),
        ({"faults": {"num_failures": 2**62}}, "faults"),
    ],
)
def test_bad_files_name_the_field(tmp_path, changes, field):
    document = json.loads((ROOT / "examples" / "scenario.json").read_text())
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**document, **changes}))
    with pytest.raises(InvalidInputError) as caught:
        load(str(path))
    assert caught.value.field == field


def test_about_as_much_happens_as_is_expected():
    faults = Faults(worker_mtbf_seconds=60.0, repair_seconds=60.0, straggler_mtbf_seconds=30.0, straggler_seconds=30.0)
    scenario = replace(load("chameleon-32"), faults=faults)
    expected = faults.expected_incidents(scenario.num_workers, scenario.num_workers, scenario.duration_seconds)
    assert len(incidents_of(scenario, 0)) == pytest.approx(expected, rel=0.05)


def test_an_unknown_name_tells_the_known_ones(tmp_path):
    with pytest.raises(InvalidInputError, match="chameleon-32"):
        load("chameleon-33")


def test_fields_are_varied_by_path():
    scenario = load("chameleon-32")
    changed = varied(scenario, {"spares": 3, "settings.num_microbatches": 32, "faults.repair_seconds": 60, "mtbf": 100.0})
    assert (changed.spares, changed.settings.num_microbatches, changed.faults.repair_seconds) == (3, 32, 60.0)
    assert changed.faults.mtbf_seconds(32, 1, 1.0) == pytest.approx(100.0)
    assert varied(scenario, {"duration": 60}).duration_seconds == 60


def test_the_order_of_values_makes_no_difference():
    """The mean time between failures is that of the job that all of them describe."""
    changes = {"mtbf": 900.0, "num_workers": 64, "faults.host_mtbf_seconds": 1e6, "workers_per_host": 4}
    first, second = (varied(load("chameleon-32"), dict(items)) for items in (changes.items(), reversed(changes.items())))
    assert first == second
    assert first.faults.mtbf_seconds(64, 4, 1.0) == pytest.approx(900.0)
    assert first.faults.host_mtbf_seconds is not None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"settings.mtbf_seconds": 100.0}, "settings.mtbf_seconds"),
        ({"notice_seconds": 100.0}, "notice_seconds"),
        ({"spare": 1}, "vary"),
        ({"spares.x": 1}, "vary"),
        ({"spares": -1}, "spares"),
        ({"num_workers": 10**9, "faults": {}}, "num_workers"),
        ({"first": {"dp": 0, "pp": 1}}, "first.dp"),
        ({"faults.straggler_speed_ratio": 1e-300}, "faults.straggler_speed_ratio"),
        ({"mtbf": 0}, "mtbf"),
        ({"folder": "/tmp"}, "vary"),
        ({"duration": 60, "duration_seconds": 90}, "vary"),
    ],
)
def test_what_cannot_be_varied_is_refused_by_name(changes, field):
    with pytest.raises(InvalidInputError) as caught:
        varied(load("chameleon-32"), changes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "field", "told"),
    [
        ({"device_memory_bytes": 10**9}, "device_memory_bytes", "the profile's device reserves 2,000,000,000 bytes"),
        ({"device_memory_bytes": 1}, "device_memory_bytes", "a number of gigabytes?"),
        ({"profile": "nope.json"}, "profile", "cannot be read: No such file"),
        ({"profile": "a\0b"}, "profile", "cannot be read: embedded null byte"),
        ({"trace": "a\0b"}, "trace", "cannot be read: embedded null byte"),
    ],
)
def test_what_does_not_go_with_a_file_names_the_scenarios_own_field(changes, field, told):
    with pytest.raises(InvalidInputError, match=told) as caught:
        varied(load("chameleon-32"), changes).check_files()
    assert caught.value.field == field


def test_where_a_scenario_lies_is_none_of_its_fields(tmp_path):
    with pytest.raises(InvalidInputError, match="known: ") as caught:
        varied(load("chameleon-32"), {"foo": 1})
    assert "folder" not in caught.value.message
    (tmp_path / "bad.json").write_text('{"foo": 1}')
    with pytest.raises(InvalidInputError, match=r"known fields: .*planning_seconds") as caught:
        load(str(tmp_path / "bad.json"))
    assert "folder" not in caught.value.message


def test_a_file_cannot_say_where_it_lies(tmp_path):
    path = tmp_path / "moved.json"
    path.write_text(codec.dumps({**codec.encode(load("chameleon-32")), "folder": "/elsewhere"}))
    with pytest.raises(InvalidInputError, match="start where it lies") as caught:
        load(str(path))
    assert (caught.value.field, caught.value.value) == ("folder", "/elsewhere")


@pytest.mark.parametrize("values", ["1,1", "1,1.0", "0..2,1", "null,null"])
def test_a_value_that_stands_there_twice_is_refused(values):
    with pytest.raises(InvalidInputError, match=r"gives spares the value .* twice") as caught:
        parsed([f"spares={values}"])
    assert (caught.value.field, caught.value.value) == ("vary", f"spares={values}")


def test_values_are_lists_ranges_and_words():
    assert parsed(["spares=0..3", "mtbf=3600,7200.5", "x=0..1..0.5", "settings.schedule=1f1b,zb-h1", "y=null"]) == {
        "spares": (0, 1, 2, 3),
        "mtbf": (3600, 7200.5),
        "x": (0, 0.5, 1),
        "settings.schedule": ("1f1b", "zb-h1"),
        "y": (None,),
    }


@pytest.mark.parametrize(
    "text",
    [
        *("spares", "=3", "spares=", "spares=3..1", "spares=0..9..0", "spares=a..b", "x=0..1e9", "x=0..nan"),
        *("x=0..10..1e-999999", "x=1e999999..1e999999"),
    ],
)
def test_bad_values_are_refused(text):
    with pytest.raises(InvalidInputError) as caught:
        parsed([text])
    assert caught.value.field == "vary"


@pytest.mark.parametrize("text", [None, "nonsense", '{"layers": 1}'])
def test_errors_name_the_file_that_is_wrong(tmp_path, text):
    profile = tmp_path / "broken.json"
    if text is not None:
        profile.write_text(text)
    scenario = replace(load("chameleon-32"), profile=str(profile))
    with pytest.raises(InvalidInputError, match=r"broken\.json"):
        scenario.load_profile()
