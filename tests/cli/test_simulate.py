"""The command simulate."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kintsugi.cli import main
from kintsugi.cli import simulate as command
from tests.full_disks import without_room_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "scenario.json"


@pytest.fixture
def ask(capsys):
    """Run the command; returns exit status, standard output and standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["simulate", "--jobs", "1", *map(str, arguments)])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenario") / "short.json"
    document = json.loads(EXAMPLE.read_text())
    document |= {"duration_seconds": 7200, "profile": str((EXAMPLE.parent / document["profile"]).resolve())}
    path.write_text(json.dumps(document))
    return path


def test_who_waits_for_one_long_run_sees_how_many_are_done_and_that_time_passes():
    told = StringIO()
    progress = command.progress_on(Console(file=told, force_terminal=True, width=120))
    progress.add_task("simulating", total=13)
    progress.console.print(progress.get_renderable())
    assert "0/13" in told.getvalue()
    assert "0:00:00" in told.getvalue()


@pytest.mark.parametrize("number", [0, 10**9, 10**30])
def test_seeds_that_nobody_can_wait_for_are_refused(ask, short, number):
    status, _, err = ask("--scenario", short, "--policies", "oobleck", "--seeds", number)
    assert status == 2
    assert "'--seeds'" in err


def test_json_is_one_document(ask, short):
    status, out, _ = ask("--scenario", short, "--policies", "oobleck,varuna", "--vary", "spares=0..1", "--format", "json")
    assert status == 0
    document = json.loads(out)
    assert document["scenario"] == "eight-hosts"
    assert [(row["values"]["spares"], row["policy"]) for row in document["rows"]] == [
        (0, "oobleck"),
        (0, "varuna"),
        (1, "oobleck"),
        (1, "varuna"),
    ]
    assert all(row["samples_per_second"]["mean"] > 0 for row in document["rows"])


def test_tables_are_for_people(ask, short):
    status, out, _ = ask("--scenario", short, "--policies", "oobleck", "--seeds", 2)
    assert status == 0
    assert "oobleck" in out
    assert "±" in out


EVENTS = "0,add,a\n0,add,b\n600000,add,c\n"
COUNTS = "2021-12-11, 11:00:00, 4\n2021-12-11, 11:10:00, 3\n"


@pytest.mark.parametrize(
    ("texts", "num_runs", "title"),
    [
        ([EVENTS], [1], "one run, for nothing is left to chance;"),
        ([COUNTS], [3], "means of 3 runs with 95 % confidence;"),
        ([EVENTS, COUNTS], [1, 3], "means of 3 runs with 95 % confidence, of one where nothing is left to chance;"),
    ],
)
def test_runs_that_are_one_and_the_same_count_once(ask, short, texts, num_runs, title):
    paths = [short.parent / f"{number}.csv" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    arguments = ("--scenario", short, "--policies", "varuna", "--seeds", 3, "--vary", f"trace={','.join(map(str, paths))}")
    status, out, _ = ask(*arguments)
    assert status == 0
    assert title in " ".join(out.split())
    _, out, _ = ask(*arguments, "--format", "json")
    rows = json.loads(out)["rows"]
    assert [row["num_runs"] for row in rows] == num_runs
    assert [row["samples_per_second"]["margin"] is None for row in rows] == [number == 1 for number in num_runs]


def test_a_job_to_which_nothing_happens_runs_once(ask, short):
    quiet = [f"faults.{name}_mtbf_seconds=null" for name in ("worker", "host", "straggler")]
    arguments = ("--scenario", short, "--policies", "varuna", "--seeds", 3, *(word for text in quiet for word in ("--vary", text)))
    status, out, _ = ask(*arguments, "--format", "json")
    assert (status, json.loads(out)["rows"][0]["num_runs"]) == (0, 1)


def test_what_keeps_a_job_from_training_is_told_once_for_all_policies_alike(ask, short):
    crowded = ("--policies", "kintsugi,varuna", "--vary", "device_memory_bytes=5000000000,80000000000")
    status, out, _ = ask("--scenario", short, *crowded)
    assert status == 0
    assert " ".join(out.split()).count("never trained (kintsugi, varuna): memory_bytes: in the roomiest split") == 1
    _, out, _ = ask("--scenario", short, *crowded, "--format", "json")
    assert [row["stopped_because"] is None for row in json.loads(out)["rows"]] == [False, False, True, True]


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (["0,add,a", "0,remove,a"], "alive: no worker ever came"),
        (["0,add,a", "60000,remove,a"], "workers: "),
    ],
)
def test_a_policy_that_never_trained_on_a_trace_is_told_why(ask, tmp_path, events, why):
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(events) + "\n")
    arguments = ("--scenario", "spot", "--policies", "oobleck,varuna", "--trace", trace)
    status, out, _ = ask(*arguments)
    assert status == 0
    assert re.search(rf"never trained \([^)]*varuna\): {why}", " ".join(out.split()))
    _, out, _ = ask(*arguments, "--format", "json")
    assert all(row["stopped_because"] for row in json.loads(out)["rows"])


@pytest.mark.parametrize(
    ("varied", "title"),
    [
        ((), "eight-hosts: 8 workers, 2 h, one run;"),
        (("num_workers=9..10",), "eight-hosts: 2 h, one run;"),
        (("duration=60,90",), "eight-hosts: 8 workers, one run;"),
        (("num_workers=9", "duration=1800"), "eight-hosts: 9 workers, 0.5 h, one run;"),
    ],
)
def test_the_title_says_what_all_rows_have_in_common(ask, short, varied, title):
    status, out, _ = ask("--scenario", short, "--policies", "varuna", *(word for text in varied for word in ("--vary", text)))
    assert status == 0
    assert out.startswith(title)


def test_a_title_names_the_trace_that_is_varied(ask, short, tmp_path):
    (tmp_path / "own.csv").write_text("0,add,a\n60000,add,b\n")
    status, out, _ = ask("--scenario", short, "--policies", "varuna", "--vary", f"trace={tmp_path / 'own.csv'}")
    assert status == 0
    assert out.startswith("eight-hosts: workers of own.csv, 2 h")


def test_files_are_written(ask, short, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "out"
    status, _, _ = ask("--scenario", short, "--policies", "oobleck,recycle", "--vary", "spares=0..1", "--out", folder)
    assert status == 0
    pictures = {f"{name}.{kind}" for name in ("workers", "throughput", "samples", "time", "varied") for kind in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == pictures | {"runs.csv", "summary.csv"}


@pytest.mark.parametrize("name", ["runs.csv", "summary.csv"])
def test_without_room_earlier_files_stay(ask, short, tmp_path, name):
    (tmp_path / name).write_text("what was there")
    without_room_for(tmp_path / name)
    status, out, _ = ask("--scenario", short, "--policies", "varuna", "--out", tmp_path, "--format", "json")
    error = json.loads(out)["error"]
    assert (status, error["field"], error["value"]) == (2, "out", str(tmp_path / name))
    assert error["message"] == "cannot be written: No space left on device"
    assert (tmp_path / name).read_text() == "what was there"
    assert not list(tmp_path.glob("*.new"))


def test_a_trace_takes_the_place_of_the_scenarios(ask, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("".join(f"{n},add,n{n}\n" for n in range(8)) + "3600000,remove,n3\n")
    arguments = ("--scenario", "spot", "--policies", "oobleck", "--vary", "duration=7200", "--format", "json")
    status, out, _ = ask(*arguments, "--trace", trace)
    assert status == 0
    assert json.loads(out)["rows"][0]["num_transitions"] >= 2


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--scenario", "nowhere"), "scenario"),
        (("--scenario", "spot", "--policies", "luck"), "policies"),
        (("--scenario", "spot", "--vary", "spares"), "vary"),
        (("--scenario", "spot", "--vary", "nothing=1"), "vary"),
        (("--scenario", "spot", "--trace", "/nowhere.csv", "--policies", "oobleck"), "trace"),
        (("--scenario", "spot", "--vary", "mtbf=100", "--policies", "oobleck"), "mtbf"),
        (("--scenario", "spot", "--dask", "tcp://127.0.0.1:1", "--policies", "oobleck"), "dask"),
    ],
)
def test_bad_input_is_told_by_field(ask, arguments, field):
    status, out, _ = ask(*arguments, "--format", "json")
    assert status == 2
    assert json.loads(out)["error"]["field"] == field


@pytest.mark.parametrize("value", ["nan", "inf", "abc", "null", "NaN", "0"])
def test_a_time_between_failures_is_a_number(ask, short, value):
    status, out, _ = ask("--scenario", short, "--policies", "oobleck", "--vary", f"mtbf={value}", "--format", "json")
    assert status == 2
    assert json.loads(out)["error"]["field"] == "mtbf"


def test_files_are_looked_at_before_anything_is_simulated(ask, short, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_run", lambda *_: pytest.fail("began to simulate"))
    (tmp_path / "file").write_text("1,2")
    common = ("--scenario", short, "--policies", "oobleck", "--format", "json")
    status, out, _ = ask(*common, "--out", tmp_path / "file" / "below")
    assert (status, json.loads(out)["error"]["field"]) == (2, "out")
    status, out, _ = ask(*common, "--trace", tmp_path / "absent.csv")
    assert (status, json.loads(out)["error"]["message"]) == (2, "cannot be read: No such file or directory")
    assert ask(*common, "--trace", tmp_path / "file")[0] == 2
    assert ask(*common, "--vary", "profile=absent.json")[0] == 2
