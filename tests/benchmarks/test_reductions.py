"""What overlapped rounds save after DP 4 x PP 2 became pipelines of 2, 2 and 3 stages, in the replay: more than was published."""

from pathlib import Path

import pytest

from benchmarks.reductions import (
    DEFAULT_PROFILE,
    PUBLISHED_REDUCTION_LESS,
    PUBLISHED_STEP_LESS,
    compared,
    in_layer_order,
    mended,
    with_share,
)
from estimator.costs import Costs
from estimator.program import compile_program
from estimator.replay import replay
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.profile import Profile

PROFILE = codec.load(Profile, Path(__file__).parents[2] / DEFAULT_PROFILE)


@pytest.mark.parametrize(("num_microbatches", "published"), PUBLISHED_STEP_LESS.items())
def test_more_is_saved_than_was_published(num_microbatches, published):
    plan = mended(PROFILE, num_microbatches)
    row = compared(with_share(PROFILE, plan, published / PUBLISHED_REDUCTION_LESS), plan)
    assert row.reduction_less > PUBLISHED_REDUCTION_LESS
    assert row.step_less > published
    assert row.gap_ratio <= 0.05
    assert compared(PROFILE, plan).reduction_less > PUBLISHED_REDUCTION_LESS


def test_the_serial_baseline_is_no_slower_than_layer_order_is_replayed():
    """Neighbouring buckets share a worker, so that layer order makes each wait for the one before."""
    plan, cluster = in_layer_order(mended(PROFILE, 16)), Cluster.uniform(8)
    costs = Costs(PROFILE, cluster)
    step = replay(compile_program(plan, PROFILE, cluster), costs)
    row = compared(PROFILE, plan)
    assert step.iteration_seconds == pytest.approx(row.serial_step_seconds, rel=0.02)
