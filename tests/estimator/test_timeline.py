"""The bars of a schedule are what the replay of its program says."""

import itertools
from dataclasses import replace

import pytest

from estimator.estimate import estimate
from estimator.timeline import BarKind, panel, timeline
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Schedule
from restorer.rounds import colour_rounds
from tests.builders import grid_plan, transformer_profile, uniform_profile
from tests.core.samples import rerouted

PROFILE = uniform_profile(4)
CLUSTER = Cluster.uniform(4)
REROUTED = replace(rerouted(), rounds=colour_rounds(rerouted(), PROFILE))
BARS = timeline(REROUTED, PROFILE, CLUSTER)


def test_ends_with_the_step():
    price = estimate(REROUTED, PROFILE, CLUSTER)
    assert max(bar.end_seconds for bar in BARS) == pytest.approx(price.iteration_seconds)
    backward = (BarKind.BACKWARD, BarKind.REROUTED_BACKWARD)
    assert max(bar.end_seconds for bar in BARS if bar.kind in backward) == pytest.approx(price.pipeline_seconds)


def test_nobody_does_two_things_at_once():
    for worker in REROUTED.workers:
        own = sorted((bar for bar in BARS if bar.worker == worker), key=lambda bar: bar.start_seconds)
        for one, following in itertools.pairwise(own):
            assert one.end_seconds <= following.start_seconds + 1e-12


def test_every_microbatch_passes_every_stage_forward_and_backward():
    forward = [bar.microbatch for bar in BARS if bar.kind in (BarKind.FORWARD, BarKind.REROUTED_FORWARD)]
    backward = [bar.microbatch for bar in BARS if bar.kind in (BarKind.BACKWARD, BarKind.REROUTED_BACKWARD)]
    assert sorted(forward) == sorted(backward) == sorted(2 * list(range(4)))


def test_what_is_done_for_a_dead_slot_is_marked():
    marked = {(bar.worker, bar.microbatch) for bar in BARS if bar.kind in (BarKind.REROUTED_FORWARD, BarKind.REROUTED_BACKWARD)}
    assert marked == {("w00", 2), ("w00", 3)}


def test_bars_of_one_reduction_start_together():
    starts = [(bar.start_seconds, bar.end_seconds) for bar in BARS if bar.kind is BarKind.REDUCE]
    assert starts
    assert len(set(starts)) == 1, "w01 and w03 reduce one bucket; w00 alone holds its layers"
    assert {bar.worker for bar in BARS if bar.kind is BarKind.REDUCE} == {"w01", "w03"}


def test_rows_follow_the_slots_and_name_the_lost():
    rows = panel("after", REROUTED, PROFILE, CLUSTER, lost=["w02", "w09"]).rows
    assert [(row.worker, row.group, row.is_lost) for row in rows] == [
        ("w00", "pipeline 0", False),
        ("w01", "pipeline 0", False),
        ("w02", "pipeline 1", True),
        ("w03", "pipeline 1", False),
        ("w09", "", True),
    ]


def test_a_dead_slot_without_a_name_is_still_drawn():
    assert panel("after", REROUTED, transformer_profile(2), CLUSTER).rows[2].label == "?"


def test_a_worker_with_several_stages_has_one_row():
    plan = grid_plan(4, [2], [2], schedule=Schedule.INTERLEAVED, stages_per_worker=2)
    drawn = panel("interleaved", plan, PROFILE, Cluster.uniform(2))
    assert [(row.worker, row.is_lost) for row in drawn.rows] == [("w00", False), ("w01", False)]
    forward = [bar.microbatch for bar in drawn.bars if bar.kind is BarKind.FORWARD and bar.worker == "w00"]
    assert sorted(forward) == [0, 0, 1, 1]
