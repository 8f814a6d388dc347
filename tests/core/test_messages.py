"""Invariants of what trainers report."""

import pytest

from kintsugi.core import codec
from kintsugi.core.messages import LayerTimes, Measurement, Report, ReportStatus
from tests.core.refusals import refuses


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"step": -1}, "step"),
        ({"iteration_seconds": 0.0}, "iteration_seconds"),
        ({"worker_busy_seconds": {"w03": -1.0}}, "worker_busy_seconds.w03"),
        ({"phase_seconds": {"planned": float("nan")}}, "phase_seconds.planned"),
        ({"incarnations": {"w03": -1}}, "incarnations.w03"),
    ],
)
def test_measurement_refuses(changes, field):
    with refuses(field):
        Measurement(**changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layer": -1}, "layer"),
        ({"forward_seconds": -1.0}, "forward_seconds"),
        ({"backward_seconds": float("inf")}, "backward_seconds"),
    ],
)
def test_layer_times_refuse(changes, field):
    with refuses(field):
        LayerTimes(**{"layer": 0, "worker": "w00", "forward_seconds": 0.1, "backward_seconds": 0.2, **changes})


@pytest.mark.parametrize(
    ("status", "field"), [(ReportStatus.REJECTED, "reason"), (ReportStatus.MEASURED, "measured")], ids=["rejected", "measured"]
)
def test_a_report_says_what_its_status_needs(status, field):
    with refuses(field, fragment=status.value):
        Report(generation=1, status=status)
    with refuses("generation", -1):
        Report(generation=-1, status=ReportStatus.APPLIED)


def test_a_report_survives_the_round_trip():
    measured = Measurement(
        step=7,
        iteration_seconds=0.5,
        worker_busy_seconds={"w00": 0.25},
        layers=(LayerTimes(layer=0, worker="w00", forward_seconds=0.1, backward_seconds=0.2),),
        phase_seconds={"planned": 0.01},
        incarnations={"w00": 2},
    )
    report = Report(generation=3, status=ReportStatus.MEASURED, measured=measured)
    assert codec.loads(Report, codec.dumps(report)) == report
