import pytest
from rich.console import Console

from benchmarks.convergence import SHAPE, both_runs, draw, help_job, learning_rate_factor, loss_differences, report
from kintsugi.runtime.compare import difference
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
    reference, struck, troubles = both_runs(12, 1, transformer_profile(SHAPE.num_blocks), Console(quiet=True))
    assert troubles.struck_at == [6]
    assert len(struck.recoveries) >= 1
    assert len(struck.losses) == 12
    assert difference(struck, reference).is_within(1e-12)
    assert max(loss_differences(struck, reference)) <= 1e-12
    assert "| steps | 12 |" in report(struck, reference)
    written = draw(struck, reference, troubles, tmp_path / "picture")
    assert {path.suffix for path in written if path.stat().st_size > 10_000} == {".png", ".svg"}
