"""That one loss may end a job is told while something can still be done about it."""

import pytest
from structlog.testing import capture_logs

from kintsugi.runtime.control.exposure import tell_exposure
from tests.builders import grid_plan, uniform_profile

PROFILE = uniform_profile(4)


@pytest.mark.parametrize(
    ("lengths", "has_checkpoints", "is_told"),
    [([2], False, True), ([2], True, False), ([2, 2], False, False), ([2, 1], False, False), ([1], False, False)],
)
def test_layers_with_one_holder_are_told_where_nothing_would_bring_them_back(lengths, has_checkpoints, is_told):
    plan = grid_plan(4, lengths, [2] * len(lengths))
    with capture_logs() as logs:
        tell_exposure(plan, PROFILE, has_checkpoints=has_checkpoints)
    assert [log["log_level"] for log in logs] == ["warning"] * is_told
    if is_told:
        assert logs[0]["holders"] == ["w00", "w01"]
        assert logs[0]["layers"] == ", ".join(layer.name for layer in PROFILE.layers)
        assert "dp=2" in logs[0]["way_out"]
