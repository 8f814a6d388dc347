"""What the benchmark of accuracy says of its runs."""

import math

import pytest

from benchmarks.synchronization_accuracy import ADAPTIVE, PLAIN, RUNS, SYNCHRONOUS, differences, report, standard_error


def test_runs_are_compared_seed_by_seed():
    accuracies = {SYNCHRONOUS: [97.0, 99.0, 95.0], ADAPTIVE: [97.5, 99.5, 95.5], PLAIN: [96.0, 98.0, 97.0]}
    assert differences(accuracies, ADAPTIVE) == [0.5, 0.5, 0.5]
    assert standard_error(differences(accuracies, ADAPTIVE)) == 0.0
    assert standard_error(differences(accuracies, PLAIN)) == pytest.approx(math.sqrt(3.0) / math.sqrt(3))
    text = report(accuracies, ["because"])
    assert f"| seed | {' | '.join(f'{run} (%)' for run in RUNS)} |" in text
    assert "| mean | 97.00 | 97.50 | 97.00 |" in text
    assert "| +0.50 ± 0.00 | +0.00 ± 1.00 |" in text
    assert "- because" in text


def test_one_seed_has_no_standard_error():
    assert math.isnan(standard_error([0.5]))
