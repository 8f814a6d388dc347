import io

import pytest
from rich.console import Console

from kintsugi.cli import demo as module
from kintsugi.cli.live import grid, timeline_table
from kintsugi.client import Client, Patience
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import UnavailableError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import Policy
from kintsugi.runtime.control.recovery import RecoveryTimeline
from kintsugi.runtime.faults import FaultKind
from kintsugi.runtime.records.compare import Difference
from planner.replan import replan
from tests.builders import snapshot_of, uniform_profile


def printed(*things) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=False)
    console.print(*things)
    return console.file.getvalue()


@pytest.fixture
def rerouted():
    cluster = Cluster.uniform(6)
    profile, ranges = uniform_profile(12), Ranges(min_dp=2, max_dp=2)
    first = replan(snapshot_of(profile, cluster, 12, ranges=ranges)).plan
    return replan(snapshot_of(profile, cluster, 12, plan=first, lost=["w01"], policy=Policy.DATA_REROUTING)).plan


@pytest.mark.parametrize("num_steps", [6, 12, 30])
def test_every_layout_kills_one_worker_in_a_step_and_freezes_one_later(num_steps):
    for layout in module.layouts(num_steps):
        killed, frozen = layout.faults
        assert (killed.how, frozen.how) == (FaultKind.KILL, FaultKind.FREEZE)
        assert 0 < killed.step < frozen.step < num_steps
        assert killed.worker != frozen.worker


def test_the_grid_shows_dead_slots_and_who_took_their_microbatches(rerouted):
    text = printed(grid(rerouted, rerouted.workers))
    assert "✗ →" in text
    for worker in rerouted.workers:
        assert worker in text


def test_a_worker_that_just_died_is_marked(rerouted):
    dead = rerouted.workers[0]
    assert f"✗ {dead}" in printed(grid(rerouted, rerouted.workers[1:]))


def test_the_timeline_shows_milliseconds_and_what_has_not_come_yet():
    timeline = RecoveryTimeline(lost=["w04"], policy="data_rerouting", failed_at=10.0, detected_at=10.025, planned_at=10.05)
    text = printed(timeline_table([timeline]))
    assert "w04" in text
    assert "25" in text
    assert "50" in text
    assert "…" in text


@pytest.mark.parametrize(
    ("difference", "is_equal"),
    [
        (Difference(0.0, 9e-13, has_equal_replicas=True), True),
        (Difference(2e-12, 0.0, has_equal_replicas=True), False),
        (Difference(0.0, 2e-12, has_equal_replicas=True), False),
        (Difference(0.0, 0.0, has_equal_replicas=False), False),
    ],
)
def test_the_verdict_is_strict(difference, is_equal):
    row = module._Row(module.layouts(12)[0], ("data_rerouting",), (1.0, 1.0), difference)
    assert row.is_equal is is_equal
    assert ("DIFFERENT" in printed(module._verdict([row]))) is not is_equal


@pytest.mark.processes
def test_the_service_of_the_demo_ends_with_its_block(tmp_path):
    quick = Patience(attempts=1, timeout_seconds=5.0)
    with module.service(tmp_path) as url, Client(url, patience=Patience(attempts=1, timeout_seconds=60.0)) as client:
        assert client.jobs().jobs == ()
    with Client(url, patience=quick) as client, pytest.raises(UnavailableError):
        client.jobs()
