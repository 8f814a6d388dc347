import pytest
import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.records.compare import difference
from kintsugi.runtime.result import RunResult


def result(losses, values, digests=None) -> RunResult:
    parameters = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    return RunResult(
        losses=losses,
        step_seconds=tuple(0.0 for _ in losses),
        parameters=parameters,
        digests=digests or {0: {"w00": "a", "w01": "a"}},
        recoveries=(),
        decisions=(),
    )


def test_a_run_does_not_differ_from_itself():
    run = result((2.0, 1.0), {"a": [1.0, -2.0], "nothing": []})
    assert difference(run, run).is_within(0.0)


def test_the_largest_relative_difference_counts():
    found = difference(result((2.0, 1.1), {"a": [1.0, 2.0]}), result((2.0, 1.0), {"a": [1.0, 4.0]}))
    assert found.loss_ratio == pytest.approx(0.1)
    assert found.parameter_ratio == pytest.approx(0.5)
    assert not found.is_within(0.4)
    assert found.is_within(0.6)


def test_replicas_that_differ_are_never_within():
    run = result((1.0,), {"a": [1.0]}, {0: {"w00": "a", "w01": "b"}})
    assert not difference(run, run).is_within(1.0)


@pytest.mark.parametrize("other", [result((1.0, 2.0), {"a": [1.0]}), result((1.0,), {"b": [1.0]})])
def test_runs_of_different_jobs_are_refused(other):
    with pytest.raises(InvalidInputError, match="runs of one job"):
        difference(result((1.0,), {"a": [1.0]}), other)
