"""`kintsugi audit`: what it prints and how it ends."""

import json

import pytest

from kintsugi.cli import main
from kintsugi.runtime.layout import JOURNALS
from kintsugi.runtime.records.journal import Source
from tests.runtime.journals import Scribe


@pytest.fixture
def scribe(tmp_path):
    made = Scribe(tmp_path)
    made.begin(0, Source.START, 2)
    yield made
    made.die()


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as left:
        main(["audit", *map(str, arguments)])
    return left.value.code


def test_a_whole_run_is_proven(scribe, capsys):
    scribe.train(range(7))
    assert run(scribe.run) == 0
    assert "proven" in capsys.readouterr().out
    assert run(scribe.run, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["is_proven"]
    assert document["epochs"][0] == {"epoch": 0, "num_steps": 3, "num_samples": 24, "duplicates": 0, "missing": 0, "extra": 0}


def test_an_unfinished_run_is_proven_only_as_far_as_it_came(scribe, capsys):
    scribe.train(range(4))
    assert run(scribe.run) == 1
    printed = capsys.readouterr().out
    assert "3 steps are not committed yet; --unfinished" in printed
    assert "not proven" in printed
    assert run(scribe.run, "--unfinished") == 0


def test_a_run_that_is_wrong_names_what_is(scribe, capsys):
    scribe.train(range(3))
    scribe.begin(2, Source.MEMORY, 2)
    scribe.train(range(2, 7))
    assert run(scribe.run, "--format", "json") == 1
    assert any("committed twice" in problem for problem in json.loads(capsys.readouterr().out)["problems"])


def test_a_journal_that_somebody_named_does_not_steer_the_terminal(scribe, capsys):
    (scribe.run / JOURNALS / "w\x1b[2J.jsonl").write_text("no journal\n")
    assert run(scribe.run) == 1
    printed = capsys.readouterr().out
    assert r"w\x1b[2J.jsonl" in printed
    assert "\x1b" not in printed


def test_equal_problems_are_one_line_with_a_total(scribe, capsys):
    for step in range(7):
        scribe.pass_step(step, only="w00")
        scribe.pass_step(step, only="w01")
        scribe.commit(step)
    assert run(scribe.run) == 1
    printed = capsys.readouterr().out
    assert "steps 0-6: layers 0-2 did not see samples 4 to 7" in printed
    assert "21 problems in all" in printed


def test_a_folder_without_journals_is_invalid_input(tmp_path, capsys):
    assert run(tmp_path, "--format", "json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["field"] == "run"
    assert run(tmp_path / "absent") == 2
    assert "run: there is no such folder" in capsys.readouterr().err
