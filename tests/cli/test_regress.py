"""`kintsugi regress`: better, worse, illegal, new, gone, and bad input."""

import json
from dataclasses import replace

import pytest

from kintsugi.cli import main
from kintsugi.core import codec
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.plan import Policy
from planner.quality import Case, Change
from tests.builders import uniform_profile

CASE = Case(inline_profile=uniform_profile(6), workers=6, settings=JobSettings(num_microbatches=12))

GRID = Ranges(min_dp=2, max_dp=2, min_pp=3, max_pp=3)


@pytest.fixture
def folder(tmp_path):
    """Two cases with a baseline."""
    (tmp_path / "cases").mkdir()
    write(tmp_path, "first", CASE)
    moving = replace(CASE.settings, policy=Policy.DYNAMIC_PARALLELISM)
    write(tmp_path, "loss", replace(CASE, settings=moving, first_ranges=GRID, changes=(Change(fail=("w01",)),)))
    return tmp_path


def write(folder, name, case):
    (folder / "cases" / f"{name}.json").write_text(codec.dumps(case))


def status_of(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["regress", *map(str, arguments)])
    return caught.value.code


def run(capsys, *arguments):
    """Exit status and the JSON document on stdout."""
    status = status_of(*arguments, "--format", "json")
    return status, json.loads(capsys.readouterr().out)


def baseline(folder, change=None):
    """The baseline's document, written back once `change` has spoilt it."""
    path = folder / "baseline.json"
    document = json.loads(path.read_text())
    if change is not None:
        change(document["cases"])
        path.write_text(json.dumps(document))
    return document


@pytest.fixture
def committed(folder, capsys):
    assert status_of(folder, "--update") == 0
    capsys.readouterr()
    return folder


def test_nothing_changed(committed, capsys):
    assert status_of(committed) == 0
    assert capsys.readouterr().out == "2 cases: 2 same\n"


@pytest.mark.parametrize(
    ("figure", "factor"),
    [("iteration_seconds", 0.99), ("pipeline_seconds", 0.99), ("goodput_samples_per_second", 1.01), ("makespan_seconds", 0.9)],
)
def test_a_loss_fails_and_is_named(committed, capsys, figure, factor):
    baseline(committed, lambda cases: cases["loss"].update({figure: cases["loss"][figure] * factor}))
    assert status_of(committed) == 1
    told = capsys.readouterr().out
    assert figure in told
    assert "2 cases: 1 worse, 1 same" in told


def test_a_gain_is_named_and_does_not_fail(committed, capsys):
    baseline(committed, lambda cases: cases["loss"].update(iteration_seconds=1e3, goodput_samples_per_second=1e-3))
    status, document = run(capsys, committed)
    assert status == 0
    assert document["passed"] is True
    assert [case["verdict"] for case in document["cases"]] == ["same", "better"]
    assert document["cases"][1]["verdicts"]["iteration_seconds"] == "better"


def test_a_small_loss_is_none(committed):
    baseline(committed, lambda cases: cases["loss"].update(iteration_seconds=cases["loss"]["iteration_seconds"] * 0.9995))
    assert status_of(committed) == 0


def test_an_illegal_plan_fails_and_is_not_made_the_baseline(committed, capsys, monkeypatch):
    before = baseline(committed)
    monkeypatch.setattr("planner.quality.violations", lambda *_: ("claims a worker on the moon",))
    assert status_of(committed) == 1
    assert "claims a worker on the moon" in capsys.readouterr().out
    assert status_of(committed, "--update") == 1
    assert baseline(committed) == before


def test_a_plan_that_is_no_longer_found_fails(committed, capsys):
    write(committed, "loss", replace(CASE, inline_profile=uniform_profile(6, memory_bytes=1_500_000_000)))
    write(committed, "first", replace(CASE, inline_profile=uniform_profile(6, memory_bytes=1_000_000)))
    status, document = run(capsys, committed)
    assert status == 1
    assert document["cases"][0]["verdict"] == "illegal"
    assert document["cases"][0]["illegal"][0].startswith("no plan: ")
    assert document["cases"][0]["after"] is None


def test_a_new_case_is_told_and_one_that_is_gone_fails(committed, capsys):
    write(committed, "new", CASE)
    status, document = run(capsys, committed)
    assert (status, document["cases"][2]["verdict"]) == (0, "new")
    (committed / "cases" / "loss.json").unlink()
    assert status_of(committed) == 1
    assert "the case is gone" in capsys.readouterr().out


def test_an_update_makes_present_figures_the_baseline_and_drops_what_is_gone(committed, capsys):
    baseline(committed, lambda cases: cases["first"].update(iteration_seconds=1e-3))
    (committed / "cases" / "loss.json").unlink()
    assert status_of(committed) == 1
    assert status_of(committed, "--update") == 0
    assert set(baseline(committed)["cases"]) == {"first"}
    assert status_of(committed) == 0


def test_cases_are_asked_for_by_name_and_the_others_stay_as_they_were(committed, capsys):
    def spoil(cases):
        for figures in cases.values():
            figures["iteration_seconds"] *= 0.99
        cases["gone"] = cases["first"]

    before = baseline(committed, spoil)["cases"]
    status, document = run(capsys, committed, "--only", "lo*")
    assert (status, [case["name"] for case in document["cases"]]) == (1, ["loss"])
    assert status_of(committed, "--only", "loss", "--only", "none", "--update") == 0
    after = baseline(committed)["cases"]
    assert {name: after[name] for name in ("first", "gone")} == {name: before[name] for name in ("first", "gone")}
    assert after["loss"] != before["loss"]
    assert status_of(committed, "--only", "loss") == 0
    assert status_of(committed, "--only", "gone", "--only", "loss") == 1


def test_an_update_of_some_cases_does_not_lose_the_others_of_a_broken_baseline(committed, capsys):
    (committed / "baseline.json").write_text("{")
    assert status_of(committed, "--only", "loss", "--update") == 2
    assert "figures of all cases" in capsys.readouterr().err
    assert (committed / "baseline.json").read_text() == "{"


def test_a_pattern_that_names_no_case_is_refused(committed, capsys):
    assert status_of(committed, "--only", "last-*") == 2
    assert "only: names no case; one is first (value: " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", '{"cases": {"first": {"iteration_seconds": "fast"}}}'])
def test_an_update_takes_the_place_of_a_broken_baseline(committed, capsys, text):
    before = baseline(committed)
    (committed / "baseline.json").write_text(text)
    assert status_of(committed, "--update") == 0
    assert "the baseline is broken" in capsys.readouterr().err
    assert baseline(committed) == before


def test_figures_are_told_as_json(committed, capsys):
    _, document = run(capsys, committed)
    case = document["cases"][1]
    assert case["name"] == "loss"
    assert case["is_loss"] is False
    assert case["before"] == case["after"]
    assert set(case["after"]) == set(case["verdicts"])


def refusal(capsys, folder):
    status, document = run(capsys, folder)
    assert status == 2
    return document["error"]


def test_bad_input_is_refused_by_name(folder, tmp_path, capsys):
    assert refusal(capsys, folder)["field"] == "baseline"
    (folder / "baseline.json").write_text("{")
    assert "is not JSON" in (told := refusal(capsys, folder)["message"])
    assert told.endswith("--update makes it from the present figures of all cases")
    (folder / "baseline.json").write_text('{"cases": {"first": {"iteration_seconds": "fast"}}}')
    assert refusal(capsys, folder)["field"] == "cases.first.iteration_seconds"
    (folder / "cases" / "first.json").write_text(json.dumps({**codec.encode(CASE), "colour": "red"}))
    assert refusal(capsys, folder)["field"] == "first: colour"
    told = refusal(capsys, tmp_path / "nowhere")
    assert (told["field"], told["message"]) == ("folder", "there is no such folder")
    assert refusal(capsys, folder / "baseline.json")["message"] == "is a file, not a folder"
    (tmp_path / "empty").mkdir()
    assert refusal(capsys, tmp_path / "empty")["message"] == "has no cases/*.json"


def test_a_case_whose_file_is_missing_or_whose_worker_is_unknown_is_bad_input(committed, capsys):
    write(committed, "first", replace(CASE, changes=(Change(fail=("w77",)),)))
    assert refusal(capsys, committed)["field"] == "first: worker"
    write(committed, "first", replace(CASE, inline_profile=None, profile="absent.json"))
    assert refusal(capsys, committed)["field"] == "first: file"


def test_the_folder_is_needed(capsys):
    assert status_of() == 2
