import pytest
from rich.console import Console

from benchmarks.convergence import all_runs, draw, loss_differences, report
from benchmarks.validation.learning import SHAPE, help_job, learning_rate_factor
from kintsugi.runtime.records.compare import difference
from tests.builders import transformer_profile


def test_learning_rate_rises_to_one_and_falls_to_the_least():
    factors = [learning_rate_factor(step, num_steps=1000) for step in range(1000)]
    assert factors[0] < 0.05
    assert max(factors) == pytest.approx(1.0, abs=0.01)
    assert factors[-1] == pytest.approx(0.05, abs=0.001)


def test_the_text_is_the_same_everywhere():
    first, again = help_job(1).dataset, help_job(1).dataset
    assert len(first) == len(again) > help_job(1).global_batch_size
    assert all((first[index]["tokens"] == again[index]["tokens"]).all() for index in range(len(first)))


@pytest.mark.processes
def test_a_struck_run_has_the_losses_of_one_that_was_left_alone(tmp_path):
    runs = all_runs(8, 1, transformer_profile(SHAPE.num_blocks), Console(quiet=True))
    assert runs.troubles.struck_at == [4]
    assert len(runs.struck.recoveries) >= 1
    assert len(runs.struck.losses) == 8
    assert difference(runs.struck, runs.reference).is_within(1e-12)
    assert max(loss_differences(runs.control, runs.reference)) <= 1e-12
    assert runs.is_same
    assert "| steps | 8 |" in report(runs)
    written = draw(runs, tmp_path / "picture")
    assert {path.suffix for path in written if path.stat().st_size > 10_000} == {".png", ".svg"}
