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
