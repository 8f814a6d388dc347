"""What is missing where nothing fits: of the arrangement that needs least, not of some other."""

import re

import pytest

from estimator.costs import Costs
from estimator.estimate import priced
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from planner.replan import replan
from tests.builders import grid_plan, snapshot_of, uniform_profile

NUM_LAYERS, NUM_MICROBATCHES = 6, 8
SMALL = 10_000_000
ACTIVE = {"activation_bytes": 300_000_000}


def least_by_even_cuts(cluster: Cluster, dps: range, pps: range) -> int:
    """The greatest peak of the grid that makes it smallest, of all that the workers suffice for."""
    costs = Costs(uniform_profile(NUM_LAYERS, layer_changes=ACTIVE), cluster)
    peaks = []
    for dp in dps:
        for pp in pps:
            if dp * pp <= len(cluster.workers):
                shares = [NUM_MICROBATCHES // dp + (place < NUM_MICROBATCHES % dp) for place in range(dp)]
                price = priced(grid_plan(NUM_LAYERS, [pp] * dp, shares), costs, reconfiguration_seconds=0.0, mtbf_seconds=3_600.0)
                peaks.append(max(stage.peak_memory_bytes for stage in price.stages))
    return min(peaks)


@pytest.mark.parametrize("num_workers", [1, 5, 6, 13, 20, 40])
@pytest.mark.parametrize("ranges", [Ranges(), Ranges(max_dp=2), Ranges(max_pp=3)], ids=["any", "max_dp=2", "max_pp=3"])
def test_no_grid_of_the_workers_lacks_less_than_is_said(num_workers, ranges):
    cluster = Cluster.uniform(num_workers)
    profile = uniform_profile(NUM_LAYERS, layer_changes=ACTIVE, memory_bytes=SMALL)
    with pytest.raises(InfeasibleError) as refused:
        replan(snapshot_of(profile, cluster, NUM_MICROBATCHES, ranges=ranges))
    lacking, needed = (int(re.search(words, refused.value.message)[1]) for words in (r"lacks (\d+) bytes", r"need (\d+),"))
    dps, pps = range(1, (ranges.max_dp or NUM_MICROBATCHES) + 1), range(1, (ranges.max_pp or NUM_LAYERS) + 1)
    assert 0 < lacking < needed <= least_by_even_cuts(cluster, dps, pps)
