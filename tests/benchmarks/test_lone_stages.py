"""A pipeline put together from stages that ran alone takes what the recurrence says where their times are even."""

import csv
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import lone_stages
from benchmarks.lone_stages import emulated_seconds, pipelines
from estimator.pipeline import pipeline_times
from estimator.program import Action, ActionKind
from estimator.schedule import Pass, order
from kintsugi.core.plan import Schedule

times = st.floats(1e-3, 1.0)
UPDATE_SECONDS = 0.25


@settings(deadline=None)
@given(st.lists(st.tuples(times, times), min_size=1, max_size=5), st.integers(1, 7))
def test_even_passes_take_what_the_recurrence_says(stages, count):
    runs = []
    for stage, (forward, backward) in enumerate(stages):
        steps = order(Schedule.ONE_F_ONE_B, stage, len(stages), count)
        passes = [(Action(ActionKind(s.kind.value), s.microbatch), forward if s.kind is Pass.FORWARD else backward) for s in steps]
        runs.append((*passes, (Action(ActionKind.APPLY), UPDATE_SECONDS)))
    forward, backward = zip(*stages, strict=True)
    known = pipeline_times(Schedule.ONE_F_ONE_B, forward, backward, [0.0] * (len(stages) - 1), count)
    assert emulated_seconds(runs) == pytest.approx(known.pipeline_seconds + UPDATE_SECONDS)


def test_every_layer_is_in_one_stage_of_every_pipeline():
    for pipeline in pipelines(10):
        layers = [layer for place in pipeline.places for layer in range(place.layer_start, place.layer_stop)]
        assert layers == list(range(10))
    assert {len(pipeline.places) for pipeline in pipelines(3)} == {1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "toaster"], "is no device"),
        (["--precision", "fp8"], "is no precision"),
        (["--job", "nowhere"], "MODULE:FUNCTION"),
        (["--steps", "0"], "must be at least 1"),
    ],
)
def test_what_is_not_there_is_refused(monkeypatch, capsys, options, message):
    monkeypatch.setattr(sys, "argv", ["lone_stages", *options])
    with pytest.raises(SystemExit) as ended:
        lone_stages.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def findings_of(memory, time):
    return lone_stages.Findings(
        memory=[(f"stage {index}", 1.0, 1.0, -40.0, 1.0, error) for index, error in enumerate(memory)],
        time=[(2, 4, 1.0, 1.0, error) for error in time],
    )


@pytest.mark.parametrize(
    ("memory", "time", "lines"),
    [
        ([-2.0, *[5.0] * 11], [-5.0, 5.0], []),
        (
            [-2.1, 5.1, *[0.0] * 10],
            [-5.1],
            [
                "memory of stage 0: -2.10 %, asked -2 to +5 %",
                "memory of stage 1: +5.10 %, asked -2 to +5 %",
                "time of 2 stages, 4 micro-batches: -5.10 %, asked -5 to +5 %",
            ],
        ),
        ([0.0], [], ["memory of 1 stages was compared, asked 12", "the time of no pipeline was compared"]),
    ],
)
def test_what_was_asked_for_and_is_not_so_is_said(memory, time, lines):
    assert lone_stages.missed(findings_of(memory, time)) == lines


def test_an_error_that_is_too_large_fails_whoever_checks(monkeypatch, capsys):
    def compared(bench, _):
        bench.findings.time.append((1, 4, 1.0, 2.0, 100.0))

    monkeypatch.setattr(lone_stages.Bench, "run", compared)
    options = ["lone_stages", "--job", "tests.runtime.jobs:tiny_gpt", "--distinct", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", options)
    lone_stages.main()
    monkeypatch.setattr(sys, "argv", [*options, "--check"])
    with pytest.raises(SystemExit, match=r"missed: time of 1 stages, 4 micro-batches: \+100\.00 %"):
        lone_stages.main()
    assert "errors: memory none, time +100.00 %" in capsys.readouterr().out


def test_who_cuts_it_off_has_the_pipelines_before(monkeypatch, capsys, tmp_path):
    compare, compared = lone_stages.Bench._compare, []

    def cut_off(bench, pipeline, advance):
        if compared:
            raise KeyboardInterrupt
        compared.append(pipeline)
        compare(bench, pipeline, advance)

    monkeypatch.setattr(lone_stages.Bench, "_compare", cut_off)
    options = ["--job", "tests.runtime.jobs:tiny_gpt", "--distinct", "--steps", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["lone_stages", *options])
    with pytest.raises(KeyboardInterrupt):
        lone_stages.main()
    lines = capsys.readouterr().err.splitlines()
    least = "4 stages, 2 micro-batches"
    for name, begin, count in (("memory", "layers 0-1, stage 1 of 4, 2 micro-batches", 4), ("time", least, 1)):
        with (tmp_path / f"{name}.csv").open() as file:
            assert len(list(csv.DictReader(file))) == count
        assert sum(line.startswith(begin) for line in lines) == 1
