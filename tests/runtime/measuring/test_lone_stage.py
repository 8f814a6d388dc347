"""A stage alone: its passes in the order of its place, and as much memory as the model says from the layers' own."""

from dataclasses import replace

import pytest
import torch

from estimator.layers import LayerSums
from estimator.memory import stage_peak_bytes
from estimator.moments import stage_moments
from estimator.program import PASSES, ActionKind
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Schedule
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.measuring import profiler
from kintsugi.runtime.measuring.lone_stage import LoneStage, Place
from kintsugi.runtime.measuring.profiler import profile_job
from tests.runtime.jobs import frozen_job
from tests.runtime.measuring.test_profiler import PROBED

SHAPE = GptShape(num_blocks=4, width=64, num_heads=2, sequence_length=64, dropout=0.0)


def small_job(**changes):
    return replace(gpt_job(num_microbatches=4, num_steps=1, shape=SHAPE, microbatch_size=2, dtype=torch.float32), **changes)


@pytest.fixture(scope="module")
def sums():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiler, "probe", lambda *_, **__: PROBED)
        return LayerSums(profile_job(small_job, name="small", repeats=1))


PLACES = [(0, 6, 0, 1, 1), (0, 6, 0, 1, 3), (0, 3, 0, 3, 6), (2, 4, 1, 3, 6), (4, 6, 2, 3, 6), (1, 5, 0, 4, 2), (5, 6, 3, 4, 8)]
SPLIT = [(0, 3, 0, 3, 6), (2, 4, 1, 3, 6), (4, 6, 2, 3, 6), (1, 5, 1, 4, 2), (1, 3, 1, 2, 1), (5, 6, 3, 4, 8), (3, 6, 3, 4, 5)]


@pytest.mark.parametrize(
    ("schedule", "at"),
    [*((Schedule.ONE_F_ONE_B, at) for at in PLACES), *((split, at) for split in (Schedule.ZB_H1, Schedule.ZB_H2) for at in SPLIT)],
)
def test_the_most_memory_is_what_the_model_says(sums, schedule, at):
    start, stop, stage, num_stages, count = at
    place = Place(layer_start=start, layer_stop=stop, stage=stage, num_stages=num_stages, num_microbatches=count, schedule=schedule)
    with LoneStage(small_job(), place) as alone:
        measured = alone.memory.most_bytes
    moments = stage_moments(schedule, stage, num_stages, count)
    predicted = stage_peak_bytes(sums, start, stop, moments=moments, num_replicas=1)
    assert predicted == pytest.approx(measured, rel=0.02)


def test_passes_come_in_the_order_of_the_place_and_all_are_timed():
    place = Place(layer_start=2, layer_stop=4, stage=1, num_stages=3, num_microbatches=4)
    with LoneStage(small_job(), place) as alone:
        times = alone.times(num_steps=2)
    assert "".join(action.kind.value for action, _ in times if action.kind in PASSES) == "FFBFBFBB"
    assert times[-1][0].kind is ActionKind.APPLY
    assert all(seconds > 0 for _, seconds in times)


def test_a_stage_without_anything_to_train_is_refused():
    place = Place(layer_start=0, layer_stop=1, stage=0, num_stages=2, num_microbatches=2)
    with pytest.raises(InvalidInputError, match="layers: no layer of the stage is trained"), LoneStage(frozen_job(), place):
        pass
