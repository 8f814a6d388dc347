"""`kintsugi trace`: a schedule, a recorded run, or both, and what it refuses."""

import json
from pathlib import Path

import pytest

from kintsugi.cli import main
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from tests.builders import grid_plan, transformer_profile
from tests.estimator.test_trace import require_paired_flows, require_valid

RUN = str(Path(__file__).parents[2] / "examples" / "traced-run")


@pytest.fixture
def files(tmp_path):
    profile, plan = tmp_path / "profile.json", tmp_path / "plan.json"
    profile.write_text(codec.dumps(transformer_profile(6)))
    plan.write_text(codec.dumps({"plan": grid_plan(8, [2, 2], [3, 3])}))
    return "--profile", str(profile), "--plan", str(plan)


def run(capsys, *arguments):
    """Exit status and what was printed."""
    with pytest.raises(SystemExit) as left:
        main(["trace", *arguments])
    return left.value.code, capsys.readouterr().out


def test_a_plans_schedule(files, capsys):
    status, out = run(capsys, *files)
    assert status == 0
    document = json.loads(out)
    require_valid(document)
    require_paired_flows(document)
    assert document["otherData"] == {"kind": "predicted"}
    assert {event["cat"] for event in document["traceEvents"] if event["ph"] == "X"} >= {"forward", "reduce"}, "it has no rounds"


def test_a_recorded_run(capsys, tmp_path):
    status, out = run(capsys, "--run", RUN, "--output", str(tmp_path / "trace.json"))
    assert (status, out) == (0, "")
    document = json.loads((tmp_path / "trace.json").read_text())
    require_valid(document)
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert names == ["measured, generation 0", "measured, generation 1"]


def test_both_side_by_side(capsys, tmp_path):
    arguments = ("--run", RUN, "--compare", "--generation", "0", "--format", "json", "--output", str(tmp_path / "both.json"))
    status, out = run(capsys, *arguments)
    assert status == 0
    kinds = {row["kind"]: row for row in json.loads(out)["kinds"]}
    assert {"forward", "backward", "reduce", "apply", "step"} <= kinds.keys()
    assert kinds["forward"]["measured_seconds"] == pytest.approx(kinds["forward"]["predicted_seconds"], rel=0.5)
    document = json.loads((tmp_path / "both.json").read_text())
    require_valid(document)
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    named = [{event["name"] for event in slices if event["pid"] == pid} for pid in (1, 2)]
    assert named[0] == named[1]


def test_a_comparison_is_a_table_for_people(capsys):
    status, out = run(capsys, "--run", RUN, "--compare")
    assert status == 0
    assert "median of" in out
    assert "backward" in out


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((), "profile"),
        (("--profile", "p.json"), "plan"),
        (("--compare",), "compare"),
        (("--run", RUN, "--plan", "p.json"), "run"),
        (("--run", RUN, "--workers-per-host", "2"), "run"),
        (("--run", RUN, "--compare", "--generation", "9"), "generation"),
        (("--run", "absent"), "run"),
        (("--run", RUN, "--generation", "0"), "generation"),
        (("--profile", "p.json", "--plan", "p.json", "--generation", "3"), "generation"),
    ],
)
def test_what_is_refused(capsys, arguments, field):
    status, out = run(capsys, *arguments, "--format", "json")
    assert status == 2
    assert json.loads(out)["error"]["field"] == field


def test_a_folder_that_is_not_there_is_told_from_one_without_a_recording(capsys, tmp_path):
    for folder, told in ((tmp_path / "absent", "there is no such folder"), (tmp_path, "holds no recorded actions")):
        status, out = run(capsys, "--run", str(folder), "--format", "json")
        assert status == 2
        assert json.loads(out)["error"]["message"].startswith(told)


@pytest.mark.parametrize("num_blocks", [3, 9])
def test_a_plan_of_another_model_is_refused(capsys, files, tmp_path, num_blocks):
    other = tmp_path / "other.json"
    other.write_text(codec.dumps(transformer_profile(num_blocks)))
    status, out = run(capsys, "--profile", str(other), *files[2:], "--format", "json")
    assert status == 2
    error = json.loads(out)["error"]
    assert (error["field"], error["message"]) == ("plan", f"holds 8 layers where the profile has {num_blocks + 2}")


def test_a_plan_of_another_cluster_is_refused(capsys, files, tmp_path):
    cluster = tmp_path / "cluster.json"
    cluster.write_text(codec.dumps(Cluster.uniform(3)))
    status, out = run(capsys, *files, "--cluster", str(cluster), "--format", "json")
    assert (status, json.loads(out)["error"]["value"]) == (2, "w03")
