"""`kintsugi export` and `kintsugi profile import`: from files to files, and what they refuse."""

import json
from pathlib import Path

import pytest

from kintsugi.cli import main
from kintsugi.core import codec
from kintsugi.core.profile import Profile
from tests.builders import grid_plan, transformer_profile, uniform_profile

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "layers.csv")


def run(capsys, *arguments):
    """Exit status, and what was printed on either stream."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return left.value.code, *capsys.readouterr()


def files(folder, *lengths):
    profile, plan = folder / "profile.json", folder / "plan.json"
    profile.write_text(codec.dumps(transformer_profile(6)))
    plan.write_text(codec.dumps(grid_plan(8, lengths, [4] * len(lengths))))
    return "--profile", str(profile), "--plan", str(plan)


def test_a_layout_for_megatron(tmp_path, capsys):
    assert run(capsys, "export", "megatron", *files(tmp_path, 2, 2)) == (0, "Et*3|t*3L\n", "")


def test_a_schedule_in_a_file(tmp_path, capsys):
    status, out, _ = run(capsys, "export", "csv", *files(tmp_path, 2), "--output", str(tmp_path / "s.csv"))
    assert (status, out) == (0, "")
    assert (tmp_path / "s.csv").read_text().splitlines()[1].startswith("1F0,1B0")


def test_pipelines_that_differ_are_told_one_by_one(tmp_path, capsys):
    own = files(tmp_path, 2, 3)
    status, out, _ = run(capsys, "export", "torchtitan", *own, "--format", "json")
    assert status == 0
    assert [part["pipelines"] for part in json.loads(out)["parts"]] == [[0], [1]]
    status, out, told = run(capsys, "export", "torchtitan", *own, "--pipeline", "1")
    assert (status, len(json.loads(out))) == (0, 3)
    assert "differ" in told
    status, _, told = run(capsys, "export", "torchtitan", *own)
    assert status == 2
    assert "must name one of the pipelines" in told


def test_a_document_goes_to_a_file_and_tells_the_pipeline_that_is_asked_for(tmp_path, capsys):
    output, own = tmp_path / "m.json", files(tmp_path, 2, 3)
    wanted = ("--pipeline", "1", "--format", "json", "--output", str(output))
    assert run(capsys, "export", "megatron", *own, *wanted) == (0, "", "")
    assert [part["pipelines"] for part in json.loads(output.read_text())["parts"]] == [[1]]


@pytest.mark.parametrize("form", [(), ("--format", "json")])
@pytest.mark.parametrize("lengths", [(2, 2), (2, 3)])
def test_a_pipeline_that_is_not_there_is_told_which_are(tmp_path, capsys, lengths, form):
    status, out, told = run(capsys, "export", "megatron", *files(tmp_path, *lengths), "--pipeline", "2", *form)
    assert status == 2
    assert "is no pipeline of the plan; it has 0, 1" in out + told


def test_a_layer_profile_is_imported(tmp_path, capsys):
    like, output = tmp_path / "like.json", tmp_path / "imported.json"
    like.write_text(codec.dumps(uniform_profile(2)))
    arguments = ("--like", str(like), "--activation-ratio", "0.5", "--output-bytes", "1000")
    assert run(capsys, "profile", "import", EXAMPLE, *arguments, "--output", str(output)) == (0, "", "")
    profile = codec.load(Profile, output)
    assert (profile.name, profile.num_layers) == ("layers", 6)
    marked = tmp_path / "marked.csv"
    marked.write_text(Path(EXAMPLE).read_text(), encoding="utf-8-sig")
    again = run(capsys, "profile", "import", str(marked), *arguments, "--name", "layers")
    assert (again[0], json.loads(again[1])) == (0, json.loads(output.read_text()))
    status, _, told = run(capsys, "profile", "import", str(tmp_path / "absent.csv"), *arguments)
    assert status == 2
    assert "cannot be read" in told
